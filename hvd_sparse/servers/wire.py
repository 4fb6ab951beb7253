"""How pushes and pulls travel: forms of headers, and payloads of values and places, little-endian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from hvd_sparse.servers.messages import Codes, Entries, MessageError, Pull, Push
from link import Protocol

Decode: TypeAlias = Callable[[Codes, np.ndarray], np.ndarray]  # codes and places to values [k] float32

_COUNT = 2**62
_VALUE, _PLACE = np.dtype("<f4"), np.dtype("<i4")

_LEAST_BYTES = 64 << 20  # what payloads may have in any case: what is not trained is not counted in a shard

_ENTRIES = {"values": (int, 2**31), "everywhere": (bool, 1), "scales": (int, 2**31), "codes": (int, 2**31)}
_PUSH = {"push": (int, _COUNT), "rate": (float, 1e30), **_ENTRIES}
_PULL = {"push": (int, _COUNT), "version": (int, _COUNT), "pushes": (int, _COUNT), **_ENTRIES}


def protocol(size: int) -> Protocol:
    """What is said between clients and servers, where the largest shard has `size` elements."""
    most = max(size * (_VALUE.itemsize + _PLACE.itemsize), _LEAST_BYTES)
    return Protocol(
        name="hvd_sparse servers",
        version=1,
        requests={"begin": {}, "push": _PUSH, "publish": {}, "pause": {}, "average": _ENTRIES, "leave": {}, "part": {}},
        answers={"pull": _PULL, "parted": {}},
        request_bytes=most,
        answer_bytes=most,
    )


def push_fields(push: Push) -> dict[str, Any]:
    """The header's fields of a push."""
    return {"push": push.number, "rate": push.rate, **entries_fields(push.gradient)}


def pull_fields(pull: Pull) -> dict[str, Any]:
    """The header's fields of a pull."""
    return {"push": pull.number, "version": pull.version, "pushes": pull.pushes, **entries_fields(pull.parameters)}


def payload(entries: Entries) -> bytes | np.ndarray:
    """Values or scales, then places, then codes; where values are all of it, the memory of these."""
    numbers = entries.values if entries.coded is None else entries.coded.scales
    parts = [np.ascontiguousarray(numbers, _VALUE)]
    if entries.indices is not None:
        parts.append(np.ascontiguousarray(entries.indices, _PLACE))
    if entries.coded is not None:
        parts.append(np.ascontiguousarray(entries.coded.codes))
    return parts[0].view(np.uint8) if len(parts) == 1 else b"".join(part.data for part in parts)


def entries_of(fields: dict[str, Any], received: Any, decode: Decode | None = None) -> Entries:
    """The entries that came.

    Args:
        fields: of the header.
        received: the payload.
        decode: gives the values of codes, where such may come.

    Raises:
        MessageError: where the payload is of another length than the header says, or cannot be decoded.
    """
    count, codes = fields["values"], fields["codes"]
    numbers = fields["scales"] if codes else count
    places = 0 if fields["everywhere"] else count
    if len(received) != numbers * _VALUE.itemsize + places * _PLACE.itemsize + codes:
        raise MessageError(f"{len(received)} bytes for {numbers} numbers, {places} places and {codes} bytes of codes")
    values = np.frombuffer(received, _VALUE, numbers).astype(np.float32, copy=False)
    indices = np.frombuffer(received, _PLACE, places, values.nbytes).astype(np.int32, copy=False)
    if not codes:
        return Entries(values, None if fields["everywhere"] else indices)
    if decode is None or fields["everywhere"]:
        raise MessageError("codes, where values were expected")
    coded = Codes(np.frombuffer(received, np.uint8, codes, values.nbytes + indices.nbytes), values)
    return Entries(decode(coded, indices), indices, coded)


def push_of(fields: dict[str, Any], received: Any, decode: Decode | None = None) -> Push:
    """The push that came; arguments and errors as of `entries_of`."""
    return Push(fields["push"], fields["rate"], entries_of(fields, received, decode))


def pull_of(fields: dict[str, Any], received: Any) -> Pull:
    """The pull that came; MessageError as `entries_of`."""
    return Pull(fields["push"], fields["version"], fields["pushes"], entries_of(fields, received))


def entries_fields(entries: Entries) -> dict[str, Any]:
    """The header's fields of entries."""
    scales, codes = (0, 0) if entries.coded is None else (len(entries.coded.scales), len(entries.coded.codes))
    return {"values": len(entries.values), "everywhere": entries.indices is None, "scales": scales, "codes": codes}

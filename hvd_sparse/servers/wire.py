"""The wire format of pushes and pulls: forms of headers, and payloads of values and places, little-endian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hvd_sparse.servers.messages import Codes, Entries, MessageError, Pull, Push
from link import Form, Protocol

Decode: TypeAlias = Callable[[Codes, np.ndarray], np.ndarray]  # codes and places -> values [k] float32

_COUNT = 2**62
_VALUE, _PLACE, _NUMBER = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8")

_PROBLEM = 4096  # bytes of an error message
_REPLICA_VALUES = 8  # vectors in a replica, at most: the parameters, the gathered sum, and slots
_LEAST_BYTES = 64 << 20  # a payload may always be this large: untrained values are not counted in a shard

_ENTRIES = {"values": (int, 2**31), "everywhere": (bool, 1), "scales": (int, 2**31), "codes": (int, 2**31)}
_SHARD = {"shard": (int, 2**31)}
_VERSION = {"version": (int, _COUNT), "pushes": (int, _COUNT)}
_PULL = {"push": (int, _COUNT), **_VERSION, **_ENTRIES}
_OF_SHARDS: dict[str, Form] = {
    "begin": {"push": (int, _COUNT), "again": (bool, 1)},
    "push": {"push": (int, _COUNT), "rate": (float, 1e30), **_ENTRIES},
    **{kind: {} for kind in ("publish", "pause", "leave", "stand_still", "keep", "go_on")},
    "write": {"checkpoint": (int, _COUNT)},
}
OF_SERVICES: dict[str, Form] = {
    "average": _ENTRIES,
    "part": {},
    "replica": {**_SHARD, **_VERSION, "gathered": (int, _COUNT), "there": (bool, 1)},
    "heard": {"rank": (int, 2**31)},
    "returned": {},
    "take_over": {**_SHARD, "version": (int, _COUNT)},
}
"""What is not asked about a shard that the asked one serves."""


def protocol(size: int, replicas: bool) -> Protocol:
    """The protocol between clients and servers, where the largest shard has `size` elements."""
    values = _REPLICA_VALUES if replicas else 1
    most = max(size * (values * _VALUE.itemsize + _PLACE.itemsize), _LEAST_BYTES)
    return Protocol(
        name="hvd_sparse servers",
        version=3,
        requests={**{kind: {**_SHARD, **form} for kind, form in _OF_SHARDS.items()}, **OF_SERVICES},
        answers={
            **{"pull": _PULL, "done": {}, "numbers": {}, "moved": {}, "not_yet": {}},
            **{"written": {"sha256": (str, 64)}, "failed": {"problem": (str, _PROBLEM)}},
        },
        request_bytes=most,
        answer_bytes=most,
    )


def push_fields(push: Push) -> dict[str, Any]:
    """The header fields of a push."""
    return {"push": push.number, "rate": push.rate, **entries_fields(push.gradient)}


def pull_fields(pull: Pull) -> dict[str, Any]:
    """The header fields of a pull."""
    return {"push": pull.number, "version": pull.version, "pushes": pull.pushes, **entries_fields(pull.parameters)}


def numbers(values: Sequence[int]) -> bytes:
    """Numbers of pushes, as a payload."""
    return np.asarray(values, _NUMBER).tobytes()


def numbers_of(received: Any, count: int) -> list[int]:
    """The numbers received; MessageError if the count is wrong."""
    if len(received) != count * _NUMBER.itemsize:
        raise MessageError(f"{len(received)} bytes for {count} numbers of pushes")
    return np.frombuffer(received, _NUMBER).tolist()


def problem(error: BaseException) -> str:
    """An error message, cut to fit into an answer."""
    return f"{type(error).__name__}: {error}".encode()[:_PROBLEM].decode(errors="ignore")


def payload(entries: Entries) -> bytes | np.ndarray:
    """Values or scales, then places, then codes; the values' own memory if there is nothing else."""
    numbers = entries.values if entries.coded is None else entries.coded.scales
    parts = [np.ascontiguousarray(numbers, _VALUE)]
    if entries.indices is not None:
        parts.append(np.ascontiguousarray(entries.indices, _PLACE))
    if entries.coded is not None:
        parts.append(np.ascontiguousarray(entries.coded.codes))
    return parts[0].view(np.uint8) if len(parts) == 1 else b"".join(part.data for part in parts)


def entries_of(fields: dict[str, Any], received: Any, decode: Decode | None = None) -> Entries:
    """The entries received.

    Args:
        fields: of the header.
        received: the payload.
        decode: decodes values, if they may be coded.

    Raises:
        MessageError: if the payload's length is not what the header says, or it cannot be decoded.
    """
    count, codes, scales = fields["values"], fields["codes"], fields["scales"]
    is_coded = codes > 0 or scales > 0
    numbers = scales if is_coded else count
    places = 0 if fields["everywhere"] else count
    if len(received) != numbers * _VALUE.itemsize + places * _PLACE.itemsize + codes:
        raise MessageError(f"{len(received)} bytes for {numbers} numbers, {places} places and {codes} bytes of codes")
    values = np.frombuffer(received, _VALUE, numbers).astype(np.float32, copy=False)
    indices = np.frombuffer(received, _PLACE, places, values.nbytes).astype(np.int32, copy=False)
    if not is_coded:
        return Entries(values, None if fields["everywhere"] else indices)
    if decode is None or fields["everywhere"]:
        raise MessageError("codes, where values were expected")
    coded = Codes(np.frombuffer(received, np.uint8, codes, values.nbytes + indices.nbytes), values)
    return Entries(decode(coded, indices), indices, coded)


def push_of(fields: dict[str, Any], received: Any, decode: Decode | None = None) -> Push:
    """The push received; arguments and errors as of `entries_of`."""
    return Push(fields["push"], fields["rate"], entries_of(fields, received, decode))


def pull_of(fields: dict[str, Any], received: Any, decode: Decode | None = None) -> Pull:
    """The pull received; arguments and errors as of `entries_of`."""
    return Pull(fields["push"], fields["version"], fields["pushes"], entries_of(fields, received, decode))


def entries_fields(entries: Entries) -> dict[str, Any]:
    """The header fields of entries."""
    scales, codes = (0, 0) if entries.coded is None else (len(entries.coded.scales), len(entries.coded.codes))
    return {"values": len(entries.values), "everywhere": entries.indices is None, "scales": scales, "codes": codes}

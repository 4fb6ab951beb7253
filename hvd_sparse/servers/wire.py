"""How pushes and pulls travel: forms of headers, and payloads of values and places, little-endian."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_sparse.servers.messages import Entries, MessageError, Pull, Push
from link import Protocol

_COUNT = 2**62
_VALUE, _PLACE = np.dtype("<f4"), np.dtype("<i4")

_LEAST_BYTES = 64 << 20  # what payloads may have in any case: what is not trained is not counted in a shard

_ENTRIES = {"values": (int, 2**31), "everywhere": (bool, 1)}
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


def payload(entries: Entries) -> bytes:
    """Values, then places."""
    places = b"" if entries.indices is None else entries.indices.astype(_PLACE, copy=False).tobytes()
    return entries.values.astype(_VALUE, copy=False).tobytes() + places


def entries_of(fields: dict[str, Any], received: Any) -> Entries:
    """The entries that came; MessageError where the payload is of another length than the header says."""
    count, everywhere = fields["values"], fields["everywhere"]
    each = _VALUE.itemsize + (0 if everywhere else _PLACE.itemsize)
    if len(received) != count * each:
        raise MessageError(f"{len(received)} bytes for {count} values of {each}")
    values = np.frombuffer(received, _VALUE, count).astype(np.float32, copy=False)
    if everywhere:
        return Entries(values)
    return Entries(values, np.frombuffer(received, _PLACE, count, count * _VALUE.itemsize).astype(np.int32, copy=False))


def push_of(fields: dict[str, Any], received: Any) -> Push:
    """The push that came; MessageError as `entries_of`."""
    return Push(fields["push"], fields["rate"], entries_of(fields, received))


def pull_of(fields: dict[str, Any], received: Any) -> Pull:
    """The pull that came; MessageError as `entries_of`."""
    return Pull(fields["push"], fields["version"], fields["pushes"], entries_of(fields, received))


def entries_fields(entries: Entries) -> dict[str, Any]:
    """The header's fields of entries."""
    return {"values": len(entries.values), "everywhere": entries.indices is None}

"""What peers send: messages of a few frames, whose headers are msgpack and have one form for each kind.

A handshake's message is its header alone; all others are header, payload and tag. What comes from the network is looked
at in this order: lengths, the tag (`session`), the header's form, and only then what it says.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

VERSION = 1
NONCE = PROOF = 32
TAG = 16
MOST_SAMPLES = 8192  # of a request
MOST_BYTES = 256 << 20  # of a reply's payload; of a single sample, if it is larger
HEADER_BYTES = 256 << 10
REQUEST_BYTES = 8 * MOST_SAMPLES
_NUMBER = 2**63 - 1

INDEX, LABEL, CHECKSUM = np.dtype("<u8"), np.dtype("<i8"), np.dtype("<u8")

# kind: {field: (type, the most that it may be: a number's value, or a length)}
_FORMS: dict[str, dict[str, tuple[type, int]]] = {
    "hello": {
        "version": (int, 2**16),
        "asker": (int, 2**31),
        "owner": (int, 2**31),
        "data": (str, 256),
        "nonce": (bytes, NONCE),
    },
    "challenge": {"nonce": (bytes, NONCE)},
    "proof": {"proof": (bytes, PROOF)},
    "welcome": {"proof": (bytes, PROOF)},
    "refuse": {"reason": (str, 32)},
    "ask": {"number": (int, _NUMBER), "count": (int, MOST_SAMPLES)},
    "wait": {},
    "have": {
        "number": (int, _NUMBER),
        "found": (bytes, MOST_SAMPLES),
        "labels": (bytes, MOST_SAMPLES * LABEL.itemsize),
        "checksums": (bytes, MOST_SAMPLES * CHECKSUM.itemsize),
    },
}


class WireError(ValueError):
    """What came is no message of the expected form."""


def pack(kind: str, **fields: Any) -> bytes:
    """A header."""
    return msgpack.packb({"kind": kind, **fields}, use_bin_type=True)


def unpack(header: Any, *kinds: str) -> dict[str, Any]:
    """The fields of a header that must be of one of these kinds.

    Raises:
        WireError: where it is too long, of another kind, or not of its kind's form.
    """
    if len(header) > HEADER_BYTES:
        raise WireError(f"a header of {len(header)} bytes")
    try:
        fields = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            max_map_len=8,
            max_array_len=0,
            max_ext_len=0,
            max_str_len=256,
            max_bin_len=HEADER_BYTES,
        )
    except Exception as error:  # msgpack has no base class for what it raises
        raise WireError(f"no header ({type(error).__name__})") from None
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise WireError(f"{kinds[0]!r} was expected, another kind came")
    _check_form(kind, fields)
    return fields


def _check_form(kind: str, fields: dict[str, Any]) -> None:
    form = _FORMS[kind]
    if fields.keys() != {"kind", *form}:
        raise WireError(f"{kind!r} with other fields than it has")
    for name, (wanted, most) in form.items():
        value = fields[name]
        if type(value) is not wanted:
            raise WireError(f"{kind!r} with a {name} of type {type(value).__name__}")
        size = value if isinstance(value, int) else len(value)  # type: ignore[arg-type]
        if not 0 <= size <= most:
            raise WireError(f"{kind!r} with a {name} of {size}, more than {most} or negative")

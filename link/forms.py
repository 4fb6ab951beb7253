"""The wire format: messages of a few frames, whose headers are msgpack and have one form for each kind.

A handshake message is only a header; all others are header, payload and tag. What comes from the network is checked in
this order: lengths, the tag (`session`), the header's form, and only then its contents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

NONCE = PROOF = 32
TAG = 16
HEADER_BYTES = 256 << 10
_NUMBER = 2**63 - 1
_MOST_FIELDS = 16
_TYPES = (int, str, bytes, float, bool)
_FIELD_BYTES = 16  # of a number, or of msgpack's prefix of bytes; more than needed

Form = Mapping[str, tuple[type, float]]
"""Field: (type, the most that it may be: an int's value, a float's magnitude, or the bytes of a str or of bytes)."""

OF_CLIENTS: Mapping[str, Form] = {
    "hello": {
        "protocol": (str, 64),
        "version": (int, 2**16),
        "server": (int, 2**31),
        "subject": (str, 256),
        "asker": (int, 2**31),
        "nonce": (bytes, NONCE),
    },
    "proof": {"proof": (bytes, PROOF)},
}
OF_SERVERS: Mapping[str, Form] = {
    "challenge": {"nonce": (bytes, NONCE)},
    "welcome": {"proof": (bytes, PROOF)},
    "refuse": {"reason": (str, 32)},
}
SIGN_OF_LIFE: Mapping[str, Form] = {"wait": {}}
_OF_LINKS = {*OF_CLIENTS, *OF_SERVERS, *SIGN_OF_LIFE}
_RESERVED = {"kind", "number", "server", "payload", "check"}  # names that calls and headers use beside the fields


class WireError(ValueError):
    """A message does not have the expected form."""


class Protocol(NamedTuple):
    """The messages that a service and its callers may exchange.

    Attributes:
        name: of the service.
        version: must be the same on both sides.
        requests: forms by kind. Fields are of type int (from 0), float (finite), bool, str or bytes.
        answers: forms by kind.
        request_bytes: the largest size of a request's payload.
        answer_bytes: the largest size of an answer's payload.
    """

    name: str
    version: int
    requests: Mapping[str, Form]
    answers: Mapping[str, Form]
    request_bytes: int
    answer_bytes: int

    def check(self) -> None:
        """Checks that everything in these forms can be sent.

        Raises:
            ValueError: if it cannot.
        """
        for kind, form in [*self.requests.items(), *self.answers.items()]:
            problem = _problem(kind, form)
            if problem:
                raise ValueError(f"Expected forms of messages that a link can carry, got {kind!r} {problem}.")


def numbered(forms: Mapping[str, Form]) -> dict[str, Form]:
    """The forms of headers: with the number of the request, which the link adds."""
    return {kind: {"number": (int, _NUMBER), **form} for kind, form in forms.items()}


def require(forms: Mapping[str, Form], kind: str, fields: Mapping[str, Any]) -> None:
    """Checks that a message to be sent has its form.

    Raises:
        ValueError: if it does not.
    """
    if kind not in forms:
        raise ValueError(f"Expected one of the kinds {sorted(forms)}, got {kind!r}.")
    complaint = _complaint(kind, forms[kind], fields)
    if complaint:
        raise ValueError(f"Expected fields as {dict(forms[kind])}, got {complaint}.")


def flat(payload: Any, most: int) -> memoryview:
    """The bytes of a payload to be sent, not copied.

    Args:
        payload: bytes, or an object with contiguous memory, such as an array.
        most: the largest number of bytes allowed.

    Raises:
        ValueError: if it has more, or its memory is not contiguous.
    """
    view = memoryview(payload)
    if not view.c_contiguous:
        raise ValueError(f"Expected a payload of contiguous memory, got strides {view.strides}: copy it first.")
    if view.nbytes > most:
        raise ValueError(f"Expected a payload of at most {most} bytes, got {view.nbytes}.")
    return view.cast("B") if view.nbytes else memoryview(b"")


def pack(kind: str, **fields: Any) -> bytes:
    """Packs a header."""
    return msgpack.packb({"kind": kind, **fields}, use_bin_type=True)


def unpack(header: Any, forms: Mapping[str, Form]) -> dict[str, Any]:
    """Unpacks a header's fields, its kind among them; it must have one of these forms.

    Raises:
        WireError: if it is too long, of another kind, or not of its kind's form.
    """
    if len(header) > HEADER_BYTES:
        raise WireError(f"a header of {len(header)} bytes")
    try:
        fields = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            max_map_len=_MOST_FIELDS + 2,
            max_array_len=0,
            max_ext_len=0,
            max_str_len=HEADER_BYTES,
            max_bin_len=HEADER_BYTES,
        )
    except Exception as error:  # msgpack has no base class for what it raises
        raise WireError(f"no header ({type(error).__name__})") from None
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in forms:
        raise WireError(f"another kind, where {' or '.join(map(repr, forms))} was expected")
    complaint = _complaint(kind, forms[kind], fields)
    if complaint:
        raise WireError(complaint)
    return {"kind": kind, **fields}


def _complaint(kind: str, form: Form, fields: Mapping[str, Any]) -> str | None:
    """What is wrong with fields that should have a form; None if nothing is."""
    if fields.keys() != form.keys():
        return f"{kind!r} with other fields than it has"
    for name, (wanted, most) in form.items():
        value = fields[name]
        if type(value) is not wanted:
            return f"{kind!r} with a {name} of type {type(value).__name__}"
        size = _size(value)
        if not 0 <= size <= most:
            return f"{kind!r} with a {name} of {size}, more than {most} or negative"
    return None


def _size(value: Any) -> float:
    """The size that a form's limit applies to."""
    if isinstance(value, float):
        return abs(value) if math.isfinite(value) else math.inf
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    return len(value) if isinstance(value, bytes) else value


def _problem(kind: str, form: Form) -> str | None:
    """What is wrong with a form; None if nothing is."""
    if kind in _OF_LINKS or _RESERVED & form.keys():
        return f"with a name that the link uses itself, one of {sorted(_OF_LINKS | _RESERVED)}"
    if any(wanted not in _TYPES or not 0 <= most < math.inf for wanted, most in form.values()):
        return f"with a field that is none of {[each.__name__ for each in _TYPES]}, or has no finite bound"
    sizes = [most for wanted, most in form.values() if wanted in (str, bytes)]
    names = [*form, kind, "kind", "number"]
    if len(form) > _MOST_FIELDS or sum(sizes) + sum(len(name) + _FIELD_BYTES for name in names) > HEADER_BYTES:
        return f"with more than {_MOST_FIELDS} fields or {HEADER_BYTES} bytes: put what is large into the payload"
    return None

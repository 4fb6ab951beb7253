"""The messages between neighbouring stages: the forms of headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from link import Form, Protocol, WireError

WORDS = 8192  # bytes of a message text
_LOGS = 64 << 10  # bytes of metrics
_COUNT = 2**62
_MOST_BYTES = 1 << 31

_ACTIVATIONS: Form = {
    "mode": (str, 16),
    "step": (int, _COUNT),
    "micro": (int, _COUNT),
    "micros": (int, _COUNT),
    "shape": (bytes, 64),
    "dtype": (str, 16),
    "wire": (str, 16),
    "kept": (int, 2**31),
    "penalty": (float, 1e300),
    "batch": (int, 2**32),
}

PROTOCOL = Protocol(
    name="hvd_sparse pipeline",
    version=2,
    requests={
        "forward": _ACTIVATIONS,
        "decide": {"step": (int, _COUNT), "culprit": (str, WORDS), "squares": (float, 1e300)},
        "stop": {"why": (str, WORDS)},
        "part": {},
    },
    answers={
        "backward": {"culprit": (str, WORDS), "squares": (float, 1e300), "logs": (bytes, _LOGS)},
        "result": {"shape": (bytes, 64), "dtype": (str, 16), "logs": (bytes, _LOGS)},
        "failed": {"why": (str, WORDS)},
        "done": {},
    },
    request_bytes=_MOST_BYTES,
    answer_bytes=_MOST_BYTES,
)


def pack_logs(logs: Mapping[str, Any]) -> bytes:
    """Packs metrics by name for a header; each becomes a float."""
    packed = json.dumps({name: float(value) for name, value in logs.items()}).encode()
    return packed if len(packed) <= _LOGS else b""


def unpack_logs(packed: bytes) -> dict[str, float]:
    """Unpacks what `pack_logs` has packed.

    Raises:
        WireError: if it holds no metrics.
    """
    if not packed:
        return {}
    try:
        logs = json.loads(packed)
        if isinstance(logs, dict) and all(isinstance(each, (int, float)) for each in logs.values()):
            return {name: float(value) for name, value in logs.items()}
    except (ValueError, RecursionError, OverflowError):
        raise WireError("metrics that cannot be read") from None
    raise WireError("metrics that are no numbers by name")


def words(text: str) -> str:
    """A text, cut to fit into a header."""
    return text.encode()[: WORDS - 8].decode(errors="ignore")

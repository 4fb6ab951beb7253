"""Kinds of data, as decode functions return them: a new one needs one row, and test_kinds.py runs on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

COUNT = 23


def payload(index: int) -> bytes:
    """The bytes of a sample in the source."""
    return json.dumps({"number": int(index), "words": WORDS[: index % 4]}).encode()


WORDS = ["red", "grün", "", "blue\0"]


def _random(data: bytes) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(data).digest()[:8]))


def boxes(data: bytes) -> Any:
    """Detection: an image, boxes and their classes, as many as there are."""
    random = _random(data)
    count = int(random.integers(0, 4))
    image = random.integers(0, 256, (6, 5, 3), np.uint8)
    return {"image": image}, {"boxes": random.random((count, 4), np.float32), "classes": random.integers(0, 9, count)}


def masks(data: bytes) -> Any:
    """Segmentation: an image and a mask of its shape."""
    random = _random(data)
    return random.random((4, 6, 3), np.float32), random.random((4, 6)) < 0.5


def vectors(data: bytes) -> Any:
    """Regression: a label of several numbers, and a weight for each sample."""
    random = _random(data)
    return random.random(7, np.float32), random.standard_normal(2), float(random.random())


def texts(data: bytes) -> Any:
    """A line of text, its words and its length."""
    told = json.loads(data)
    words = told["words"] or np.array([], str)
    return {
        "text": " ".join(told["words"]),
        "words": words,
        "length": len(words),
        "raw": data[:4] + b"\0",
    }


def tokens(data: bytes) -> Any:
    """Tokens without a label, as many as there are."""
    return _random(data).integers(0, 1000, len(data) % 5)


def frames(data: bytes) -> Any:
    """A clip: eight frames, and sound of another length for each."""
    random = _random(data)
    return {"frames": random.integers(0, 256, (8, 3, 2, 3), np.uint8), "sound": random.random(len(data), np.float32)}


def formats(data: bytes) -> Any:
    """Numbers of other formats, and a scalar of each kind."""
    random = _random(data)
    wide = random.standard_normal(4)
    return wide.astype(ml_dtypes.bfloat16), (wide + 1j, wide.astype("f2"), np.int8(3), True, 5)


def unlabelled(data: bytes) -> Any:
    """An array, without anything else."""
    return _random(data).random((2, 3))


class Kind(NamedTuple):
    """What a decode function returns.

    Attributes:
        decode: the function.
        shape: of what varies; None if nothing does.
        varies: whether samples take different numbers of bytes.
    """

    decode: Callable[[bytes], Any]
    shape: Any = None
    varies: bool = False


KINDS = {
    "boxes": Kind(boxes, ({}, {"boxes": (None, 4), "classes": (None,)}), True),
    "masks": Kind(masks),
    "vectors": Kind(vectors),
    "texts": Kind(texts, {"words": (None,)}, True),
    "tokens": Kind(tokens, (None,), True),
    "frames": Kind(frames, {"sound": (None,)}, True),
    "formats": Kind(formats),
    "unlabelled": Kind(unlabelled),
}

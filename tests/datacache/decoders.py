"""Decode functions as people write them, each with a payload: a fingerprint refuses none of them.

As a program, prints the fingerprints by name, before and after each function has been called.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import logging
import operator
import os
import pathlib
import re
import string
import threading
import typing
import uuid

import numpy as np
from PIL import Image

from datacache import fingerprint

TEXT = b"3 red\n5 green\n"
WORDS = {"red", "green", "blue", "grey"}
COLOURS = {word: number for number, word in enumerate(sorted(WORDS))}
NUMBER = re.compile(r"\d+", re.ASCII)
FOLDER = pathlib.Path("/data") / "images"
SINCE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
STEP = datetime.timedelta(minutes=5)
SCALE, SHARE = decimal.Decimal("0.1"), fractions.Fraction(1, 3)
LIMITS = collections.OrderedDict(low=0, high=9)
COUNTS = collections.Counter("aab")
NAMESPACE = uuid.UUID(int=7)
TABLE = bytes.maketrans(b"r", b"R")
MISSING = object()
OPTIONS = argparse.Namespace(size=4, mean=[0.5], folder=FOLDER)
log = logging.getLogger(__name__)
local = threading.local()
size = np = np  # an attribute may have the name of a global
lower, first, KEYS, EVERY = str.lower, operator.itemgetter(0), COLOURS.keys(), slice(0, None, 2)
_table = None


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"

    def channel(self) -> int:
        return 0 if self is Colour.RED else 1


class Mode(enum.Flag):
    FLIP = enum.auto()
    CROP = enum.auto()


@dataclasses.dataclass
class Settings:
    mean: np.ndarray
    names: list[str] = dataclasses.field(default_factory=lambda: ["red"])
    colour: Colour = Colour.RED
    mode: Mode = Mode.FLIP | Mode.CROP


class Box(typing.NamedTuple):
    left: int = 0
    right: int = 4


class Tokenizer:
    """With attributes of all sorts, some of them made when they are needed."""

    def __init__(self, words: set[str]):
        self.index = {word: number for number, word in enumerate(sorted(words))}
        self.words, self.pattern, self.size, self.np = frozenset(words), re.compile(r"[a-z]+"), 4, "np"
        self.log = logging.getLogger("tokenizer")

    @functools.cached_property
    def longest(self) -> int:
        return max(map(len, self.words))

    @functools.lru_cache(100)  # noqa: B019 - as people write it
    def number(self, word: str) -> int:
        return self.index.get(word, -1)

    def __call__(self, payload: bytes) -> np.ndarray:
        found = [self.number(word) for word in self.pattern.findall(payload.decode())]
        return np.resize(np.array(found), (self.size * self.longest,))


class Transform:
    """As those of the image libraries are: nested, with plain attributes."""

    __slots__ = ("name", "p", "parts")

    def __init__(self, *parts: typing.Any, p: float = 1.0):
        self.parts, self.p, self.name = parts, p, type(self).__name__

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return functools.reduce(lambda made, part: part(made), self.parts, image)


class Normalize(Transform):
    def __init__(self, mean: typing.Sequence[float], std: typing.Sequence[float]):
        super().__init__()
        self.mean, self.std = np.array(mean), np.array(std)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return (image - self.mean) / self.std


class Handle:
    """Has a state of its own, without what is opened when it is needed."""

    def __init__(self, name: str):
        self.name, self.lock = name, threading.Lock()

    def __getstate__(self) -> dict[str, str]:
        return {"name": self.name}

    def decode(self, payload: bytes) -> np.ndarray:
        with self.lock:
            self.opened = io.BytesIO(payload)
            return np.frombuffer(self.opened.read(), np.uint8)


def numbers(payload):
    return np.array([int(each) for each in NUMBER.findall(payload.decode())])


def at_path(payload):
    return np.array([len(str(FOLDER / payload.decode().strip())), len(os.environ["PATH"]) > 0])


def logged(payload):
    log.debug("decoding %d bytes", len(payload))
    return np.frombuffer(payload, np.uint8)


def by_options(payload):
    return np.resize(np.frombuffer(payload, np.uint8), OPTIONS.size) - OPTIONS.mean[0]


def of_attributes(payload, settings=OPTIONS):
    return np.full(settings.size, len(payload))


def dated(payload):
    return np.array([(SINCE + int(each) * STEP).timestamp() for each in NUMBER.findall(payload.decode())])


def scaled(payload):
    return np.array([float(int(each) * SCALE) + float(SHARE) for each in NUMBER.findall(payload.decode())])


def in_colours(payload):
    return np.array([word in WORDS and word in {"red", "green", "grey"} for word in payload.decode().split()])


def by_table(payload):
    return np.array([COLOURS.get(word, LIMITS["low"]) for word in payload.decode().split()]) + COUNTS["a"]


def of_lines(payload, missing=MISSING):
    return np.array([len(first(lower(line))) for line in payload.decode().split("\n") if line is not missing and line])


def translated(payload):
    return np.frombuffer(payload.translate(TABLE)[EVERY], np.uint8) + len(KEYS) + len(string.ascii_letters)


def kept_for_later(payload):
    global _table
    if _table is None:
        _table = np.arange(256) ** 2
    return _table[np.frombuffer(payload, np.uint8)]


def for_each_thread(payload):
    if not hasattr(local, "buffer"):
        local.buffer = threading.Lock(), np.zeros(4)
    return local.buffer[1] + len(payload)


@functools.cache
def power(base, exponent=2):
    return base**exponent


def with_powers(payload):
    return np.array([power(each) for each in payload])


@contextlib.contextmanager
def opened(payload):
    with Image.open(io.BytesIO(payload)) as image:
        yield image


def image_of(payload):
    with opened(payload) as image:
        return np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BILINEAR))


@functools.singledispatch
def length(value):
    return len(value)


@length.register
def _(value: int):
    return value


def lengths(payload):
    return np.array([length(payload), length(payload[0])])


def bound(payload, *, settings, box, colour=Colour.GREEN):
    return np.full(box.right - box.left, settings.mean.sum() + colour.channel() + settings.colour.channel())


def used(payload, *, use):
    return use(np.frombuffer(payload, np.uint8))


def picture() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (16, 16), (1, 2, 3)).save(written, "PNG")
    return written.getvalue()


def pipeline(payload):
    transform = Transform(Normalize([0.5], [0.25]), np.square)
    return transform(np.frombuffer(payload, np.uint8))


def of_tensorflow() -> dict[str, tuple[typing.Callable, bytes]]:
    import tensorflow as tf

    features = {
        "label": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "words": tf.io.VarLenFeature(tf.string),
        "values": tf.io.RaggedFeature(tf.float32),
    }
    mean = tf.constant([0.5, 0.25])
    spec = tf.TensorSpec([None], tf.float32)
    ragged = tf.RaggedTensorSpec([None, None], tf.int32)
    example = tf.train.Example()
    example.features.feature["label"].int64_list.value.append(3)

    def parsed(payload):
        found = tf.io.parse_single_example(payload, features)
        return np.array([found["label"]])

    def less_mean(payload):
        return (tf.cast(tf.io.decode_raw(payload[:2], tf.uint8), spec.dtype) - mean).numpy()

    def with_rank(payload):
        return np.full(ragged.shape.rank, len(payload))

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def compiled(payload):
        return tf.io.decode_raw(payload, tf.uint8)

    def called(payload):
        return compiled(payload).numpy()

    return {
        "a tf.io specification": (parsed, example.SerializeToString()),
        "a constant of TensorFlow": (less_mean, TEXT),
        "a specification of ragged tensors": (with_rank, TEXT),
        "a tf.function": (called, TEXT),
    }


_nested = Transform(Transform(Normalize([0.5], [2.0]), p=0.5))
_settings, _box, _scale = Settings(np.array([0.5])), Box(1), 2.5
DECODERS: dict[str, tuple[typing.Callable, bytes]] = {
    "a compiled pattern": (numbers, TEXT),
    "a path": (at_path, TEXT),
    "a logger": (logged, TEXT),
    "a namespace of options": (by_options, TEXT),
    "a namespace as a default": (of_attributes, TEXT),
    "dates": (dated, TEXT),
    "decimals and fractions": (scaled, TEXT),
    "a set of words": (in_colours, TEXT),
    "dicts": (by_table, TEXT),
    "methods of Python and a sentinel": (of_lines, TEXT),
    "a table of bytes, a slice, the keys of a dict": (translated, TEXT),
    "a global that is made when needed": (kept_for_later, TEXT),
    "what each thread has": (for_each_thread, TEXT),
    "a cached function": (with_powers, TEXT),
    "a context manager": (image_of, picture()),
    "a function for each class": (lengths, TEXT),
    "bound settings": (functools.partial(bound, settings=_settings, box=_box), TEXT),
    "a tokenizer": (Tokenizer(WORDS), TEXT),
    "a method of a tokenizer": (Tokenizer(WORDS).__call__, TEXT),
    "a bound vocabulary": (functools.partial(lambda payload, index: np.array([len(index)]), index=COLOURS), TEXT),
    "transforms in a function": (pipeline, TEXT),
    "transforms in an object": (functools.partial(used, use=_nested), TEXT),
    "an object with a state of its own": (Handle("x").decode, TEXT),
    "a closure": ((lambda scale: lambda payload: np.frombuffer(payload, np.uint8) * scale)(_scale), TEXT),
    "a vectorized function": (functools.partial(used, use=np.vectorize(lambda x: x + 1, otypes=[int])), TEXT),
    "a function of NumPy": (functools.partial(np.frombuffer, dtype=np.dtype(">u2"), count=4), TEXT),
    "an identifier": (lambda payload: np.frombuffer(uuid.uuid5(NAMESPACE, payload.decode()).bytes, np.uint8), TEXT),
    **of_tensorflow(),
}

if __name__ == "__main__":
    before = {name: fingerprint.of(decode) for name, (decode, _) in DECODERS.items()}
    for decode, payload in DECODERS.values():
        decode(payload)
    after = {name: fingerprint.of(decode) for name, (decode, _) in DECODERS.items()}
    print(json.dumps({"before": before, "after": after}))

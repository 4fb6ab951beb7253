"""Samples of several parts: nests of arrays, numbers, strings and bytes, packed end to end into an array of bytes.

A nest is a dict or a tuple of nests, or a leaf: an array, a number, a string or bytes. Packed, its leaves follow one
another, each at a multiple of eight bytes. If shapes vary, a leaf begins with the sizes of its dimensions that vary,
and one of text with the length of each string, as little-endian uint64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from datacache.layout import Layout, Shape, common, parse_shape
from datacache.levels import DamagedRecordError

TEXT = {"str", "bytes"}  # leaves whose elements have lengths of their own
_WORD = np.dtype("<u8")
_NUMBERS = "biufc"  # kinds of dtypes, in NumPy's letters


class Leaf(NamedTuple):
    """A part of a nest that has no parts.

    Attributes:
        dtype: NumPy's name of it, "str" or "bytes".
        shape: with None for each dimension that varies from sample to sample.
    """

    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" if self.shape else self.dtype

    @property
    def is_text(self) -> bool:
        """Whether elements are strings or bytes."""
        return self.dtype in TEXT

    @property
    def varies(self) -> bool:
        """Whether samples differ in shape."""
        return None in self.shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, if all samples have the same."""
        assert not self.varies, "arrays of varying shape have no common sizes"
        return self.shape  # type: ignore[return-value]

    @property
    def numpy(self) -> np.dtype:
        """The dtype of its arrays."""
        return np.dtype(object) if self.is_text else dtype_of(self.dtype)

    def admits(self, other: Leaf) -> bool:
        """Whether a leaf all of whose dimensions are known fits this one."""
        return Layout(*self).admits(Layout(*other))


class Group(NamedTuple):
    """A part of a nest that has parts.

    Attributes:
        keys: of a dict; None for a tuple.
        parts: in the order of the keys.
    """

    keys: tuple[str, ...] | None
    parts: tuple[Nest, ...]

    def __str__(self) -> str:
        if self.keys is None:
            return f"({', '.join(map(str, self.parts))})"
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(self.keys, self.parts, strict=True))}}}"


Nest: TypeAlias = Leaf | Group


class MismatchError(ValueError):
    """Something that is no nest, or not like the others."""


def described(made: Any, path: str = "") -> Nest:
    """The nest that something is.

    Args:
        made: dicts with strings as keys, tuples, arrays, numbers, strings and bytes; lists are arrays.
        path: of messages, how one gets to it.

    Raises:
        MismatchError: if it has other parts.
    """
    if isinstance(made, Mapping):
        if not made or not all(isinstance(key, str) for key in made):
            raise MismatchError(f"Expected a dict with strings as keys{_at(path)}, got the keys {list(made)!r}.")
        return Group(tuple(made), tuple(described(part, f"{path}[{key!r}]") for key, part in made.items()))
    if isinstance(made, tuple):
        if not made:
            raise MismatchError(f"Expected at least one part in a tuple{_at(path)}, got none.")
        return Group(None, tuple(described(part, f"{path}[{number}]") for number, part in enumerate(made)))
    array, dtype = _array(made, path)
    if isinstance(made, list) and array.size == 0:
        raise MismatchError(
            f"Expected a list with elements{_at(path)} in the first sample, got {made!r}, which has no dtype: return "
            "an array, such as numpy.zeros((0, 4), 'float32') or numpy.array([], str)."
        )
    return Leaf(dtype, array.shape)


def arrays(nest: Nest, made: Any, path: str = "") -> Iterator[np.ndarray]:
    """The leaves of something that is such a nest, in order; an array without elements may be of any dtype.

    Raises:
        MismatchError: if it is another one.
    """
    if isinstance(nest, Leaf):
        array, dtype = _array(made, path, nest)
        if not nest.admits(Leaf(dtype, array.shape)):
            raise MismatchError(f"Expected {nest}{_at(path)}, got {Leaf(dtype, array.shape)}{_remedy(nest, array)}.")
        yield array
        return
    if not _has_keys(nest, made):
        raise MismatchError(f"Expected {_kind(nest)}{_at(path)}, got {_told(made)}.")
    for name, key, part in zip(*_steps(nest), nest.parts, strict=True):
        yield from arrays(part, made[key], f"{path}[{name}]")


def leaves(nest: Nest) -> list[Leaf]:
    """The leaves of a nest, in order."""
    return [nest] if isinstance(nest, Leaf) else list(itertools.chain.from_iterable(map(leaves, nest.parts)))


def built(nest: Nest, values: Iterator[Any]) -> Any:
    """The nest with these values in place of its leaves."""
    if isinstance(nest, Leaf):
        return next(values)
    parts = [built(part, values) for part in nest.parts]
    return tuple(parts) if nest.keys is None else dict(zip(nest.keys, parts, strict=True))


def with_shapes(nest: Nest, shapes: Any, path: str = "") -> Nest:
    """The nest with other shapes of its leaves.

    Args:
        nest: what to change.
        shapes: a nest of shapes, in which a part of a dict may be missing, or be None, to stay as it is.
        path: of messages.

    Raises:
        ValueError: if it is another nest.
    """
    if shapes is None:
        return nest
    if isinstance(nest, Leaf):
        shape = parse_shape(shapes)
        if len(shape) != len(nest.shape):
            raise ValueError(
                f"Expected a shape of {len(nest.shape)} dimensions{_at(path)}, as decoded samples have {nest}, got "
                f"shape={shape}."
            )
        return nest._replace(shape=shape)
    if isinstance(shapes, Mapping) and nest.keys is not None and set(shapes) <= set(nest.keys):
        given = [shapes.get(key) for key in nest.keys]
    elif isinstance(shapes, tuple) and nest.keys is None and len(shapes) == len(nest.parts):
        given = list(shapes)
    else:
        raise ValueError(f"Expected shapes like {nest}{_at(path)}, as samples are decoded to, got shape={shapes!r}.")
    names = _steps(nest)[0]
    parts = [
        with_shapes(part, each, f"{path}[{name}]") for part, each, name in zip(nest.parts, given, names, strict=True)
    ]
    return nest._replace(parts=tuple(parts))


def parse_shapes(shapes: Any) -> Any:
    """Checks and converts a shape given by a user, or a nest of shapes.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(shapes, Mapping):
        return {key: None if each is None else parse_shapes(each) for key, each in shapes.items()}
    if isinstance(shapes, tuple) and any(isinstance(each, tuple | list | Mapping) for each in shapes):
        return tuple(None if each is None else parse_shapes(each) for each in shapes)
    return parse_shape(shapes)


def is_nested(shapes: Any) -> bool:
    """Whether `parse_shapes` has returned a nest of shapes."""
    return isinstance(shapes, Mapping) or any(isinstance(each, tuple | Mapping) for each in shapes)


def to_json(nest: Nest) -> Any:
    """The nest as what JSON has; `from_json` is its inverse."""
    if isinstance(nest, Leaf):
        return {"dtype": nest.dtype, "shape": list(nest.shape)}
    return {"keys": nest.keys, "parts": [to_json(part) for part in nest.parts]}


def from_json(told: Any) -> Nest:
    """The nest of which this is `to_json`."""
    if "dtype" in told:
        return Leaf(told["dtype"], tuple(told["shape"]))
    keys = None if told["keys"] is None else tuple(told["keys"])
    return Group(keys, tuple(from_json(part) for part in told["parts"]))


def dtype_of(name: str) -> np.dtype:
    """The dtype with a name; that of bfloat16 and its like is in the package ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


class Packing:
    """How nests of one kind are packed.

    Attributes:
        leaves: in order.
        places: where each leaf begins and ends, in bytes; empty if they vary.
        layout: of what is packed.
    """

    def __init__(self, nest: Nest):
        """Takes what all nests are like."""
        self._nest, self.leaves = nest, leaves(nest)
        varies = any(leaf.varies or leaf.is_text for leaf in self.leaves)
        self.places: list[tuple[int, int]] = []
        if not varies:
            at = 0
            for leaf in self.leaves:
                size = math.prod(leaf.sizes) * leaf.numpy.itemsize
                self.places.append((at, at + size))
                at += -(-size // 8) * 8
        self.layout = Layout("uint8", (None,) if varies else (at,))

    def pack(self, made: Any) -> np.ndarray:
        """A nest as bytes, uint8 [n].

        Raises:
            MismatchError: if it is not like the others.
        """
        pieces: list[bytes] = []
        for leaf, array in zip(self.leaves, arrays(self._nest, made), strict=True):
            sizes = [size for size, wanted in zip(array.shape, leaf.shape, strict=True) if wanted is None]
            if leaf.is_text:
                texts = [_encoded(text) for text in array.flat]
                sizes, data = [*sizes, *map(len, texts)], b"".join(texts)
            else:
                data = array.tobytes()
            pieces += [np.array(sizes, _WORD).tobytes(), data, bytes(-len(data) % 8)]
        return np.frombuffer(b"".join(pieces), np.uint8)

    def unpack(self, packed: np.ndarray) -> list[np.ndarray]:
        """The leaves of what `pack` has made, read-only and without a copy, except for texts.

        Raises:
            DamagedRecordError: if it is not what `pack` makes.
        """
        cursor = _Cursor(packed)
        found = [self._read(leaf, cursor) for leaf in self.leaves]
        cursor.end()
        return found

    def rows(self, block: np.ndarray) -> list[np.ndarray]:
        """The leaves of a batch of nests that do not vary, each [b, ...].

        Args:
            block: uint8 [b, n], rows as `pack` makes them.
        """
        return [
            block[:, begin:end].view(leaf.numpy).reshape(len(block), *leaf.sizes)
            for leaf, (begin, end) in zip(self.leaves, self.places, strict=True)
        ]

    @staticmethod
    def _read(leaf: Leaf, cursor: _Cursor) -> np.ndarray:
        sizes = iter(cursor.words(sum(each is None for each in leaf.shape)))
        shape = tuple(next(sizes) if each is None else each for each in leaf.shape)
        count = math.prod(shape)
        if not leaf.is_text:
            return cursor.bytes(count * leaf.numpy.itemsize).view(leaf.numpy).reshape(shape)
        lengths = cursor.words(count)
        texts, at = cursor.bytes(sum(lengths)).tobytes(), 0
        found = np.empty(count, object)
        for number, length in enumerate(lengths):
            text = texts[at : at + length]
            found[number], at = text.decode() if leaf.dtype == "str" else text, at + length
        return found.reshape(shape)


class _Cursor:
    """Reads what is packed, from the beginning to the end."""

    def __init__(self, packed: np.ndarray):
        self._packed, self._at = packed, 0

    def words(self, count: int) -> list[int]:
        return list(map(int, self.bytes(8 * count).view(_WORD)))

    def bytes(self, count: int) -> np.ndarray:
        begin, self._at = self._at, self._at + -(-count // 8) * 8
        if self._at > len(self._packed):
            raise DamagedRecordError(f"it has {len(self._packed)} bytes, less than its parts take")
        return self._packed[begin : begin + count]

    def end(self) -> None:
        if self._at != len(self._packed):
            raise DamagedRecordError(f"it has {len(self._packed)} bytes, more than its parts take")


def stacked(leaf: Leaf, found: Sequence[np.ndarray]) -> Any:
    """The arrays of a leaf in a batch as one, [b, ...]; as they are, in a list, if their shapes vary."""
    return list(found) if leaf.varies else np.stack(found)


def _array(made: Any, path: str, like: Leaf | None = None) -> tuple[np.ndarray, str]:
    """Something as the array of a leaf, and the leaf's dtype; without elements it has that of `like`."""
    array: np.ndarray
    try:
        # NumPy would cut bytes at their trailing zeros.
        array = np.array(made, object) if isinstance(made, str | bytes) else np.asarray(made, order="C")
    except Exception as error:  # such as a list of lists of unequal length; other objects may raise anything
        raise MismatchError(
            f"Expected an array, a number, a string or bytes{_at(path)}, got {type(made).__name__} that is none "
            f"({error}): pad rows of unequal length, or put them end to end."
        ) from None
    if like is not None and array.size == 0:
        return np.empty(array.shape, like.numpy), like.dtype
    if array.dtype.kind in _NUMBERS or _is_bfloat16(array.dtype):
        array = array.astype(array.dtype.newbyteorder("="), copy=False)  # a dtype's name does not tell its byte order
        return array, array.dtype.name
    if array.dtype.kind in "US":
        # From the original, as NumPy has cut trailing zeros in `array`.
        return np.array(made, object), "str" if array.dtype.kind == "U" else "bytes"
    kinds = {type(each) for each in array.flat} if array.dtype == object else set()
    for kind in (str, bytes):
        if kinds and all(issubclass(each, kind) for each in kinds):
            return array, kind.__name__
    raise MismatchError(
        f"Expected an array of numbers, a number, a string or bytes{_at(path)}, got {_told(made)}"
        f"{' of ' + array.dtype.name if array.shape else ''}."
    )


def _is_bfloat16(dtype: np.dtype) -> bool:
    return dtype.kind == "V" and dtype.name == "bfloat16"


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _steps(nest: Group) -> tuple[list[str], list[Any]]:
    """The names of a group's parts in messages, and what leads to them."""
    keys: list[Any] = list(range(len(nest.parts))) if nest.keys is None else list(nest.keys)
    return [repr(key) for key in keys], keys


def _has_keys(nest: Group, made: Any) -> bool:
    if nest.keys is None:
        return isinstance(made, tuple) and len(made) == len(nest.parts)
    return isinstance(made, Mapping) and set(made) == set(nest.keys)


def _kind(nest: Group) -> str:
    return f"a tuple of {len(nest.parts)}" if nest.keys is None else f"a dict with the keys {list(nest.keys)}"


def _told(made: Any) -> str:
    if isinstance(made, Mapping):
        return f"a dict with the keys {list(made)}"
    return f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__


def _remedy(nest: Leaf, array: np.ndarray) -> str:
    """What to do about an array of another shape; nothing if its dtype is another one."""
    shape = common(nest.shape, array.shape)
    return f": bring all to one shape, or pass DataCache(shape=) with {shape} there" if shape else ""


def _at(path: str) -> str:
    return f" at {path}" if path else ""

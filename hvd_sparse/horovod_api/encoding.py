"""Objects as bytes that can be read without running anything: JSON, and after it the bytes of arrays.

    8 bytes     length of the JSON text, little-endian
    JSON        None, bool, int, float and str as they are; all else as a list that begins with its type
    the rest    bytes and arrays, end to end

Decoding restores the types: tuples, keys of any kind, NumPy's scalars and dtypes, TensorFlow's tensors.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import tensorflow as tf

_AS_THEY_ARE = (type(None), bool, int, float, str)
_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_NUMPYS_OWN = "biufcSUMm"  # kinds of dtypes for which NumPy has a short name
_DEEPEST = 100
_PREFIX = 8


def encode(value: Any) -> bytes:
    """Encodes an object as bytes.

    Args:
        value: None, bool, int, float, str, bytes, NumPy's scalars and arrays of numbers, texts and times, TensorFlow's
            eager tensors, and lists, tuples, sets and dictionaries of them, at most 100 deep.

    Raises:
        TypeError: if something cannot be encoded; it names it and its place.
    """
    blocks: list[bytes] = []
    header = json.dumps(_describe(value, blocks, "", 0)).encode()
    return b"".join([len(header).to_bytes(_PREFIX, "little"), header, *blocks])


def decode(data: bytes) -> Any:
    """Decodes an object that `encode` has encoded.

    Raises:
        ValueError: if the bytes are not what `encode` makes; no memory is reserved for sizes that they claim.
    """
    try:
        length = int.from_bytes(data[:_PREFIX], "little")
        if _PREFIX + length > len(data):
            raise ValueError(f"they announce a text of {length} bytes")
        blocks = _Blocks(data, _PREFIX + length)
        value = _rebuild(json.loads(data[_PREFIX : _PREFIX + length]), blocks)
        blocks.require_end()
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(
            f"Expected an encoded object, got {len(data)} bytes that are not one ({error}): all ranks must run the "
            "same version, and call the same collectives in the same order."
        ) from None
    return value


def _describe(value: Any, blocks: list[bytes], place: str, depth: int) -> Any:
    kind = type(value)
    if depth > _DEEPEST:
        raise TypeError(f"Expected an object nested at most {_DEEPEST} deep, got a deeper one: does it contain itself?")
    if kind in _AS_THEY_ARE:
        return value
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        listed = [_describe(each, blocks, f"{place}[{number}]", depth + 1) for number, each in enumerate(value)]
        return [kind.__name__, *listed]
    if kind is dict:
        return [
            "dict",
            *(
                [
                    _describe(key, blocks, f"{place} key {key!r}", depth + 1),
                    _describe(each, blocks, f"{place}[{key!r}]", depth + 1),
                ]
                for key, each in value.items()
            ),
        ]
    if kind is bytes:
        blocks.append(value)
        return ["bytes", len(value)]
    array = _array(value)
    if array is None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(
            f"Cannot send {place and f'the part {place} of the object, '}a {name}, without pickling: pass numbers, "
            "strings, bytes, arrays, and lists, tuples, sets and dictionaries of them; or pickled=True if every rank "
            "is trusted."
        )
    blocks.append(array.tobytes())
    form = "array" if kind is np.ndarray else "scalar" if isinstance(value, np.generic) else "tensor"
    return [form, _dtype_text(array.dtype), list(array.shape)]


def _array(value: Any) -> np.ndarray | None:
    """The elements of an array, a scalar or a tensor; None if it is none of these, or has elements of another kind."""
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype != tf.string:
        value = value.numpy()
    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        return None
    array = np.asarray(value)
    return array if _dtype_text(array.dtype) else None


def _dtype_text(dtype: np.dtype) -> str:
    """The name of a dtype that holds on every rank; "" if it has fields or holds objects."""
    if dtype.kind in _NUMPYS_OWN:
        return dtype.str
    return dtype.name if dtype.fields is None and dtype.kind == "V" and _is_tensorflows(dtype.name) else ""


def _is_tensorflows(name: str) -> bool:
    try:
        return tf.as_dtype(name).as_numpy_dtype is not None
    except TypeError:
        return False


def _dtype(text: str) -> np.dtype:
    dtype = np.dtype(text) if text[:1] in "<>|=" else np.dtype(tf.as_dtype(text).as_numpy_dtype)
    if dtype.hasobject:
        raise ValueError(f"they name the dtype {text}")
    return dtype


def _rebuild(told: Any, blocks: _Blocks) -> Any:
    if not isinstance(told, list):
        if isinstance(told, _AS_THEY_ARE):
            return told
        raise ValueError("they hold a JSON object")
    kind, *rest = told
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_rebuild(each, blocks) for each in rest)
    if kind == "dict":
        return {_rebuild(key, blocks): _rebuild(each, blocks) for key, each in rest}
    if kind == "bytes":
        return blocks.take(rest[0])
    if kind not in ("array", "scalar", "tensor"):
        raise ValueError(f"they hold a {kind}")
    dtype, shape = _dtype(rest[0]), rest[1]
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
        raise ValueError(f"they hold an array of shape {shape}")
    array = np.frombuffer(blocks.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    if kind == "tensor":
        return tf.constant(array)
    return array.copy() if kind == "array" else array[()]


class _Blocks:
    """The bytes after the JSON text, taken in order."""

    def __init__(self, data: bytes, start: int):
        self._data = data
        self._place = start

    def take(self, length: Any) -> bytes:
        """The next bytes; ValueError if there are fewer."""
        if not isinstance(length, int) or not 0 <= length <= len(self._data) - self._place:
            raise ValueError(f"they announce {length} bytes, {len(self._data) - self._place} follow")
        self._place += length
        return self._data[self._place - length : self._place]

    def require_end(self) -> None:
        """Raises ValueError if bytes are left."""
        if self._place != len(self._data):
            raise ValueError(f"{len(self._data) - self._place} of them are left over")

"""How activations and their gradients are sent between stages: values and their positions.

Forward, the kept values of each row and their positions are sent in one message; backward only the values, as both
sides know the positions by then (DCT-MP, Algorithm 2). Positions are sent as 16-bit numbers, or as one bit for each
element of a row, whichever takes fewer bytes. Everything is little-endian.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.pipeline import rows as of_rows
from link import WireError

_LARGEST = {"int8": 127, "int4": 7}  # largest code of each integer type
WIRE_DTYPES = ("float32", "float16", "bfloat16", *_LARGEST)
_SCALE = np.dtype("<f4")
_MOST_AXES = 8


class Wire(NamedTuple):
    """How values are sent over one split.

    Attributes:
        dtype: one of `WIRE_DTYPES`; "int8" and "int4" have a scale for each row, its largest magnitude / 127 or 7.
        kept: number of elements kept of each row; None for all.
    """

    dtype: str = "float32"
    kept: int | None = None


class Activations(NamedTuple):
    """What a stage sends on of one micro-batch.

    Attributes:
        values: [..., kept], or [..., d] if all are kept.
        positions: [..., kept] uint16 or int32, ascending; None if all are kept.
        width: d.
    """

    values: tf.Tensor
    positions: tf.Tensor | None
    width: int

    def dense(self) -> tf.Tensor:
        """[..., d], zeros where nothing was kept."""
        return placed(self.values, self.positions, self.width)

    @property
    def rows(self) -> int:
        """The number of rows, over all axes but the last."""
        return math.prod(self.values.shape[:-1])


def kept_of(activations: tf.Tensor, kept: int | None) -> Activations:
    """Selects what is sent of activations [..., d]: the `kept` elements of largest magnitude of each row, or all."""
    width = activations.shape[-1]
    if kept is None or kept == width:
        return Activations(activations, None, width)
    values, positions = of_rows.largest_rows(activations, kept)
    return Activations(values, positions, width)


def placed(values: tf.Tensor, positions: tf.Tensor | None, width: int) -> tf.Tensor:
    """Values [..., k] at their positions in rows of `width`, zeros elsewhere."""
    if positions is None:
        return values
    return of_rows.place_rows(values, positions, width)


def taken(rows: tf.Tensor, positions: tf.Tensor | None) -> tf.Tensor:
    """The values of rows [..., d] at positions [..., k]."""
    if positions is None:
        return rows
    return of_rows.gather_rows(rows, positions)


# ---- values ----


def value_bytes(rows: int, kept: int, dtype: str) -> int:
    """The number of bytes of the values of this many rows."""
    if dtype in _LARGEST:
        return rows * (_SCALE.itemsize + _code_bytes(kept, dtype))
    return rows * kept * tf.as_dtype(dtype).size


@np.errstate(invalid="ignore", over="ignore")  # non-finite values must stay non-finite
def encode_values(values: tf.Tensor, dtype: str) -> np.ndarray:
    """The bytes of values [..., k], uint8 [n]."""
    if dtype not in _LARGEST:
        return np.ascontiguousarray(tf.cast(values, dtype).numpy()).reshape(-1).view(np.uint8)
    rows = tf.cast(values, tf.float32).numpy().reshape(-1, values.shape[-1])
    scales = (np.abs(rows).max(axis=1, initial=0.0) / np.float32(_LARGEST[dtype])).astype(_SCALE)
    codes = np.rint(rows / np.where(scales > 0.0, scales, 1.0)[:, None])
    finite = np.where(np.isfinite(codes), codes, 0.0).astype(np.int8)  # a non-finite scale makes the row non-finite
    return np.concatenate([scales.view(np.uint8), _packed(finite, dtype).reshape(-1)])


@np.errstate(invalid="ignore", over="ignore")
def decode_values(payload: memoryview, shape: tuple[int, ...], dtype: str, to: str) -> tf.Tensor:
    """Decodes values of this shape that `encode_values` has encoded, as a tensor of the dtype `to`.

    Raises:
        WireError: if the number of bytes is wrong, or there is something behind the last code of a row.
    """
    rows, kept = math.prod(shape[:-1]), shape[-1]
    if len(payload) != value_bytes(rows, kept, dtype):
        raise WireError(f"{len(payload)} bytes of values where {value_bytes(rows, kept, dtype)} were expected")
    if dtype not in _LARGEST:
        return tf.cast(np.frombuffer(payload, tf.as_dtype(dtype).as_numpy_dtype).reshape(shape), to)
    scales = np.frombuffer(payload[: rows * _SCALE.itemsize], _SCALE)
    packed = np.frombuffer(payload[rows * _SCALE.itemsize :], np.uint8).reshape(rows, _code_bytes(kept, dtype))
    return tf.cast((_unpacked(packed, kept, dtype) * scales[:, None]).reshape(shape), to)


def _code_bytes(kept: int, dtype: str) -> int:
    """Bytes of the codes of a row; each row begins at a new byte."""
    return kept if dtype == "int8" else -(-kept // 2)


def _packed(codes: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of codes int8 [rows, kept]; of two 4-bit codes, the first is in the lower half."""
    if dtype == "int8":
        return codes.view(np.uint8)
    halves = np.pad(codes.view(np.uint8) & 15, ((0, 0), (0, codes.shape[1] % 2)))
    return halves[:, ::2] | halves[:, 1::2] << 4


def _unpacked(packed: np.ndarray, kept: int, dtype: str) -> np.ndarray:
    """Unpacks what `_packed` has packed, int8 [rows, kept].

    Raises:
        WireError: if there is something behind the last code.
    """
    if dtype == "int8":
        return packed.view(np.int8)
    halves = np.stack([packed << 4, packed & 240], axis=-1).reshape(len(packed), -1)  # each times 16
    if halves[:, kept:].any():
        raise WireError(f"data after the last of {kept} codes of a row")
    return halves[:, :kept].view(np.int8) >> 4


# ---- activations ----


def is_by_bits(width: int, kept: int) -> bool:
    """Whether one bit for each element of a row takes fewer bytes than a number for each kept element."""
    return -(-width // 8) < kept * _number(width).itemsize


def activation_bytes(rows: int, width: int, wire: Wire) -> int:
    """The number of bytes of a forward message, without its header."""
    if wire.kept is None or wire.kept == width:
        return value_bytes(rows, width, wire.dtype)
    by_bits = is_by_bits(width, wire.kept)
    places = -(-width // 8) if by_bits else wire.kept * _number(width).itemsize
    return value_bytes(rows, wire.kept, wire.dtype) + rows * places


def encode_activations(kept: Activations, dtype: str) -> np.ndarray:
    """The payload of a forward message, uint8 [n]."""
    values = encode_values(kept.values, dtype)
    if kept.positions is None:
        return values
    numbers = np.ascontiguousarray(kept.positions.numpy()).reshape(kept.rows, -1)
    return np.concatenate([values, _places(numbers, kept.width)])


def decode_activations(payload: memoryview, shape: tuple[int, ...], wire: Wire, to: str) -> Activations:
    """Decodes a forward message with activations of this shape and dtype.

    Raises:
        WireError: if it is not such a message.
    """
    width = shape[-1]
    if wire.kept is None or wire.kept == width:
        return Activations(decode_values(payload, shape, wire.dtype, to), None, width)
    rows, own = math.prod(shape[:-1]), (*shape[:-1], wire.kept)
    end = value_bytes(rows, wire.kept, wire.dtype)
    values = decode_values(payload[:end], own, wire.dtype, to)
    numbers = _numbers(payload[end:], rows, width, wire.kept)
    return Activations(values, tf.constant(numbers.reshape(own)), width)


def pack_shape(shape: tuple[int, ...]) -> bytes:
    """Packs a shape for a header."""
    return np.asarray(shape, "<i8").tobytes()


def unpack_shape(packed: bytes, least: int = 2) -> tuple[int, ...]:
    """Unpacks a header's shape, of at least this many axes.

    Raises:
        WireError: if it is not such a shape.
    """
    if len(packed) % 8 or not least <= len(packed) // 8 <= _MOST_AXES:
        raise WireError(f"a shape of {len(packed)} bytes")
    shape = tuple(int(each) for each in np.frombuffer(packed, "<i8"))
    if any(not 0 <= each < 2**31 for each in shape) or shape[-1] == 0 or math.prod(shape) >= 2**40:
        raise WireError(f"a shape of {list(shape)}")
    return shape


def _number(width: int) -> np.dtype:
    return np.dtype("<u2") if width <= 2**16 else np.dtype("<i4")


def _places(numbers: np.ndarray, width: int) -> np.ndarray:
    """The bytes of positions [rows, kept]."""
    if not is_by_bits(width, numbers.shape[1]):
        return numbers.astype(_number(width), copy=False).reshape(-1).view(np.uint8)
    marks = np.zeros((len(numbers), width), np.bool_)
    np.put_along_axis(marks, numbers.astype(np.int64), True, axis=1)
    return np.packbits(marks, axis=1).reshape(-1)


def _numbers(payload: memoryview, rows: int, width: int, kept: int) -> np.ndarray:
    """Positions [rows, kept], ascending in each row."""
    number = _number(width)
    by_bits = is_by_bits(width, kept)
    expected = rows * (-(-width // 8) if by_bits else kept * number.itemsize)
    if len(payload) != expected:
        raise WireError(f"{len(payload)} bytes of positions where {expected} were expected")
    if not by_bits:
        numbers = np.frombuffer(payload, number).reshape(rows, kept)
        if rows and (numbers.max() >= width or (numbers[:, 1:] <= numbers[:, :-1]).any() or numbers.min() < 0):
            raise WireError("positions that do not ascend within a row")
        return numbers
    marks = np.unpackbits(np.frombuffer(payload, np.uint8).reshape(rows, -1), axis=1)
    if marks[:, width:].any() or (marks.sum(axis=1, dtype=np.int64) != kept).any():
        raise WireError(f"marks of other than {kept} positions of {width} in a row")
    return np.nonzero(marks)[1].astype(number).reshape(rows, kept)

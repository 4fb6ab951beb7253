"""How activations and their gradients travel between stages: values, and where they stand.

Forward go the kept values of each row and their positions, in one message; backward the values alone, as both sides
know the positions by then (DCT-MP, Algorithm 2). Positions are 16-bit numbers, or a bit for each element of a row,
whichever is fewer bytes. All is little-endian.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.pipeline import rows as of_rows
from link import WireError

_LARGEST = {"int8": 127, "int4": 7}  # codes of whole numbers
WIRE_DTYPES = ("float32", "float16", "bfloat16", *_LARGEST)
_SCALE = np.dtype("<f4")
_MOST_AXES = 8


class Wire(NamedTuple):
    """How values travel over one split.

    Attributes:
        dtype: of `WIRE_DTYPES`; "int8" and "int4" have a scale for each row, its largest magnitude / 127 or 7.
        kept: of each row; None for all.
    """

    dtype: str = "float32"
    kept: int | None = None


class Activations(NamedTuple):
    """What a stage hands on of one micro-batch.

    Attributes:
        values: [..., kept], or [..., d] where all is kept.
        positions: [..., kept] uint16 or int32, ascending; None where all is kept.
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
        """How many rows there are, over all axes but the last."""
        return math.prod(self.values.shape[:-1])


def kept_of(activations: tf.Tensor, kept: int | None) -> Activations:
    """Chooses what travels of activations [..., d]: of each row the `kept` of largest magnitude, or all."""
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
    """Bytes of the values of so many rows."""
    if dtype in _LARGEST:
        return rows * (_SCALE.itemsize + _code_bytes(kept, dtype))
    return rows * kept * tf.as_dtype(dtype).size


@np.errstate(invalid="ignore", over="ignore")  # what is not finite is to come out so
def encode_values(values: tf.Tensor, dtype: str) -> np.ndarray:
    """The bytes of values [..., k], uint8 [n]."""
    if dtype not in _LARGEST:
        return np.ascontiguousarray(tf.cast(values, dtype).numpy()).reshape(-1).view(np.uint8)
    rows = tf.cast(values, tf.float32).numpy().reshape(-1, values.shape[-1])
    scales = (np.abs(rows).max(axis=1, initial=0.0) / np.float32(_LARGEST[dtype])).astype(_SCALE)
    codes = np.rint(rows / np.where(scales > 0.0, scales, 1.0)[:, None])
    finite = np.where(np.isfinite(codes), codes, 0.0).astype(np.int8)  # a scale that is not finite spoils the row
    return np.concatenate([scales.view(np.uint8), _packed(finite, dtype).reshape(-1)])


@np.errstate(invalid="ignore", over="ignore")
def decode_values(payload: memoryview, shape: tuple[int, ...], dtype: str, to: str) -> tf.Tensor:
    """What `encode_values` has made bytes of, of this shape, as a tensor of the dtype `to`.

    Raises:
        WireError: where that are not so many bytes, or there is something behind the last code of a row.
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
    """Of a row; a row begins with a byte of its own."""
    return kept if dtype == "int8" else -(-kept // 2)


def _packed(codes: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of codes int8 [rows, kept]; of two of 4 bits, the lower half is the first."""
    if dtype == "int8":
        return codes.view(np.uint8)
    halves = np.pad(codes.view(np.uint8) & 15, ((0, 0), (0, codes.shape[1] % 2)))
    return halves[:, ::2] | halves[:, 1::2] << 4


def _unpacked(packed: np.ndarray, kept: int, dtype: str) -> np.ndarray:
    """What `_packed` has made bytes of, int8 [rows, kept].

    Raises:
        WireError: where there is something behind the last one.
    """
    if dtype == "int8":
        return packed.view(np.int8)
    halves = np.stack([packed << 4, packed & 240], axis=-1).reshape(len(packed), -1)  # each times 16
    if halves[:, kept:].any():
        raise WireError(f"something behind the last of {kept} codes of a row")
    return halves[:, :kept].view(np.int8) >> 4


# ---- activations ----


def is_by_bits(width: int, kept: int) -> bool:
    """Whether a bit for each element of a row is fewer bytes than a number for each that is kept."""
    return -(-width // 8) < kept * _number(width).itemsize


def activation_bytes(rows: int, width: int, wire: Wire) -> int:
    """Bytes of a message forward, without its header."""
    if wire.kept is None or wire.kept == width:
        return value_bytes(rows, width, wire.dtype)
    by_bits = is_by_bits(width, wire.kept)
    places = -(-width // 8) if by_bits else wire.kept * _number(width).itemsize
    return value_bytes(rows, wire.kept, wire.dtype) + rows * places


def encode_activations(kept: Activations, dtype: str) -> np.ndarray:
    """The payload of a message forward, uint8 [n]."""
    values = encode_values(kept.values, dtype)
    if kept.positions is None:
        return values
    numbers = np.ascontiguousarray(kept.positions.numpy()).reshape(kept.rows, -1)
    return np.concatenate([values, _places(numbers, kept.width)])


def decode_activations(payload: memoryview, shape: tuple[int, ...], wire: Wire, to: str) -> Activations:
    """What a message forward holds, of activations of this shape and dtype.

    Raises:
        WireError: where that is no such message.
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
    """A shape for a header."""
    return np.asarray(shape, "<i8").tobytes()


def unpack_shape(packed: bytes, least: int = 2) -> tuple[int, ...]:
    """A shape of a header, of at least so many axes.

    Raises:
        WireError: where that is no such shape.
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

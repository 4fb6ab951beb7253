"""The largest elements of each row, and rows that are zero but at given positions: native operations, with gradients.

Rows are the last axis. Elements come out with the bits with which they went in, whatever they are. Magnitudes are
compared exactly: 0.0 and -0.0 are equal, and a NaN counts as larger than all numbers, so that it is never hidden.
Positions within a row are uint16 where rows have at most 65536 elements, else int32. The same bits come out with any
number of threads.

Gradients take positions for constants: what was not kept gets none (DCT Algorithm 2).
"""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse import ops

_FLOATS = (tf.float32, tf.float16, tf.bfloat16)
_NARROW = 65536  # elements of a row whose positions fit into uint16


def position_type(width: int) -> tf.DType:
    """Tells in which dtype positions within a row are.

    Args:
        width: elements of a row.

    Returns:
        tf.uint16 or tf.int32.
    """
    return tf.uint16 if width <= _NARROW else tf.int32


def threshold_rows(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Lets the k elements of largest magnitude of each row pass, exactly, and no others (DCT 2.2, Algorithm 2).

    Args:
        x: [..., d] float32, float16 or bfloat16; d is known.
        k: how many, in [0, d].

    Returns:
        y: like x, with zeros where an element did not pass; of equal magnitudes those at lower positions pass.
        positions: [..., k] uint16 or int32, of those that passed, ascending.

    Raises:
        TypeError: where x is of another dtype.
        ValueError: where d is not known, or k is outside [0, d].
        tf.errors.InvalidArgumentError: the same, in eager mode.
    """
    x = _floats(x)
    return ops.library().hvd_sparse_threshold_rows(x=x, k=k, P=_positions_in(x))


def largest_rows(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Takes the k elements of largest magnitude of each row, as `threshold_rows` does, without the zeros.

    Args:
        x: as for `threshold_rows`.
        k: as for `threshold_rows`.

    Returns:
        values: [..., k] in the dtype of x.
        positions: as `threshold_rows`.

    Raises:
        TypeError: as `threshold_rows`.
        ValueError: as `threshold_rows`.
        tf.errors.InvalidArgumentError: as `threshold_rows`.
    """
    x = _floats(x)
    return ops.library().hvd_sparse_largest_rows(x=x, k=k, P=_positions_in(x))


def place_rows(values: tf.Tensor, positions: tf.Tensor, width: int) -> tf.Tensor:
    """Puts values at their positions in rows of zeros.

    Args:
        values: [..., k] float32, float16 or bfloat16.
        positions: [..., k] uint16 or int32, ascending in each row.
        width: elements of a row, at least k.

    Returns:
        [..., width] in the dtype of the values.

    Raises:
        tf.errors.InvalidArgumentError: where positions do not ascend or are outside [0, width), and it tells the first
            row with such, or shapes do not fit together.
    """
    return ops.library().hvd_sparse_place_rows(values=values, positions=positions, width=width)


def gather_rows(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Takes the elements of each row that are at its positions.

    Args:
        x: [..., d] float32, float16 or bfloat16.
        positions: [..., k] uint16 or int32, ascending in each row.

    Returns:
        [..., k] in the dtype of x.

    Raises:
        tf.errors.InvalidArgumentError: as `place_rows`.
    """
    return ops.library().hvd_sparse_gather_rows(x=x, positions=positions)


def mask_rows(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Lets the elements of each row pass that are at its positions: `gather_rows`, then `place_rows`, in one pass.

    Args:
        x: as for `gather_rows`.
        positions: as for `gather_rows`.

    Returns:
        Like x, with zeros elsewhere.

    Raises:
        tf.errors.InvalidArgumentError: as `place_rows`.
    """
    return ops.library().hvd_sparse_mask_rows(x=x, positions=positions)


def _floats(x: tf.Tensor) -> tf.Tensor:
    converted = tf.convert_to_tensor(x)
    if converted.dtype not in _FLOATS:
        raise TypeError(f"Expected x of float32, float16 or bfloat16, got {converted.dtype.name}; cast it first.")
    return converted


def _positions_in(x: tf.Tensor) -> tf.DType:
    shape = x.shape
    width = None if shape.rank is None or shape.rank == 0 else shape[-1]
    if width is None:
        raise ValueError(
            f"Expected x of shape [..., d] with a known d, as the dtype of positions depends on it, got shape {shape}: "
            "set it, for example by tf.ensure_shape."
        )
    return position_type(width)


@tf.RegisterGradient("HvdSparseThresholdRows")
def _of_threshold_rows(operation, gradient, _):
    return mask_rows(gradient, operation.outputs[1])


@tf.RegisterGradient("HvdSparseLargestRows")
def _of_largest_rows(operation, gradient, _):
    return place_rows(gradient, operation.outputs[1], operation.inputs[0].shape[-1])


@tf.RegisterGradient("HvdSparsePlaceRows")
def _of_place_rows(operation, gradient):
    return gather_rows(gradient, operation.inputs[1]), None


@tf.RegisterGradient("HvdSparseGatherRows")
def _of_gather_rows(operation, gradient):
    positions = operation.inputs[1]
    return place_rows(gradient, positions, operation.inputs[0].shape[-1]), None


@tf.RegisterGradient("HvdSparseMaskRows")
def _of_mask_rows(operation, gradient):
    return mask_rows(gradient, operation.inputs[1]), None

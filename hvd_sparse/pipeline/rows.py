"""The largest elements of each row, and rows of zeros with values at given positions: differentiable native operations.

Rows are the last axis. Elements keep their bits, whatever they are. Magnitudes are compared exactly: 0.0 and -0.0 are
equal, and a NaN counts as larger than all numbers, so that it is never hidden. Positions within a row are uint16 if
rows have at most 65536 elements, otherwise int32. The result has the same bits with any number of threads.

Gradients treat positions as constants: elements that were not kept get none (DCT Algorithm 2).
"""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse import ops

_FLOATS = (tf.float32, tf.float16, tf.bfloat16)
_NARROW = 65536  # largest number of elements whose positions fit into uint16


def position_type(width: int) -> tf.DType:
    """Returns the dtype of positions within a row.

    Args:
        width: number of elements of a row.

    Returns:
        tf.uint16 or tf.int32.
    """
    return tf.uint16 if width <= _NARROW else tf.int32


def threshold_rows(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Passes exactly the k elements of largest magnitude of each row (DCT 2.2, Algorithm 2).

    Args:
        x: [..., d] float32, float16 or bfloat16; d is known.
        k: number of elements, in [0, d].

    Returns:
        y: like x, with zeros where an element was not passed; of equal magnitudes those at lower positions are passed.
        positions: [..., k] uint16 or int32, of the passed elements, ascending.

    Raises:
        TypeError: if x is of another dtype.
        ValueError: if d is not known, or k is outside [0, d].
        tf.errors.InvalidArgumentError: the same, in eager mode.
    """
    x = _floats(x)
    return ops.library().hvd_sparse_threshold_rows(x=x, k=k, P=_positions_in(x))


def largest_rows(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k elements of largest magnitude of each row, as `threshold_rows` does, without the zeros.

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
        width: number of elements of a row, at least k.

    Returns:
        [..., width] in the dtype of the values.

    Raises:
        tf.errors.InvalidArgumentError: if positions do not ascend or are outside [0, width) (it names the first such
            row), or shapes do not fit together.
    """
    return ops.library().hvd_sparse_place_rows(values=values, positions=positions, width=width)


def gather_rows(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns the elements of each row at its positions.

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
    """Passes the elements of each row at its positions: `gather_rows`, then `place_rows`, in one pass.

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
            "set it, for example with tf.ensure_shape."
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

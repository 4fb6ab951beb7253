"""Computes norms from partial sums of squares, and each layer's trust ratio from norms.

Everything is float64, and every sum has a fixed order, so that ranks with the same partial sums get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lars import ops

_BLOCK = 1_024


def sum_of_squares(values: tf.Tensor) -> tf.Tensor:
    """Adds up the squares of a vector in float64, in blocks that do not depend on the number of threads.

    Args:
        values: [k] float32.

    Returns:
        float64 [].
    """
    left = tf.square(tf.cast(values, tf.float64))
    size = values.shape[0]
    while size > _BLOCK:
        blocks = size // _BLOCK
        whole = tf.reshape(left[: blocks * _BLOCK], [blocks, _BLOCK])
        left = tf.concat([tf.reduce_sum(whole, axis=1), [tf.reduce_sum(left[blocks * _BLOCK :])]], 0)
        size = blocks + 1
    return tf.reduce_sum(left)


def norms(partials: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Euclidean norms from the sums of squares of blocks, which are added in order.

    Args:
        partials: float64 [blocks, c], those of all tensors in order.
        sizes: number of elements of each of N tensors.

    Returns:
        float64 [N, c]; 0 for an empty tensor.
    """
    return tf.sqrt(ops.layer_sums(partials, sizes))


def lars(
    norms: tf.Tensor, decays: tf.Tensor, adapted: tf.Tensor, trust_coefficient: float, epsilon: float
) -> tf.Tensor:
    """The trust ratios of LARS (CommLib Eq. 11 without the learning rate; You et al. 2017, Eq. 6).

    Args:
        norms: float64 [N, 2], |w| and |g|.
        decays: float64 [N], the weight decay of each tensor.
        adapted: bool [N]; others get 1.
        trust_coefficient: as in the formula.
        epsilon: added to the denominator.

    Returns:
        float64 [N]: trust_coefficient |w| / (|g| + decay |w| + epsilon); 1 where |w| or |g| is 0.
    """
    weight, gradient = norms[:, 0], norms[:, 1]
    return _where_usable(norms, adapted, trust_coefficient * weight / (gradient + decays * weight + epsilon))


def lamb(norms: tf.Tensor, adapted: tf.Tensor) -> tf.Tensor:
    """The trust ratios of LAMB (You et al. 2020, Algorithm 2, with the identity for phi).

    Args:
        norms: float64 [N, 2], |w| and |u|.
        adapted: bool [N]; others get 1.

    Returns:
        float64 [N]: |w| / |u|; 1 where either is 0.
    """
    return _where_usable(norms, adapted, norms[:, 0] / norms[:, 1])


def _where_usable(norms: tf.Tensor, adapted: tf.Tensor, ratios: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.logical_and(adapted, tf.reduce_all(norms > 0, axis=1)), ratios, tf.ones_like(ratios))

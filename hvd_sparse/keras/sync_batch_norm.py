"""Batch normalization over the batches of all ranks, as in one process with all of them."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse._living import Living
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Communicator

_SCOPE = "hvd.SyncBatchNormalization_cannot_be_compiled_by_XLA.leave_out_jit_compile"
_made: Living[SyncBatchNormalization] = Living()
_counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@keras.saving.register_keras_serializable(package="hvd_sparse")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras's batch normalization with the mean and variance of the batches of all ranks together.

    In training, outputs, gradients and moving statistics are those of one process with all ranks' batches as one batch:
    ranks are weighted by their number of values, which may differ, and masked values do not count. Statistics are
    computed in float32 or wider, with the same bits on every rank. In inference, on one rank, or when frozen, it is the
    same as Keras's layer.

    All ranks must call it equally often. XLA cannot compile collectives, so a train step with such a layer is not
    compiled.

    Args:
        fused: must be False.
        **options: the options of `keras.layers.BatchNormalization`, except `renorm`.

    Raises:
        ValueError: if `fused` is not False, or `renorm` is requested.

    Steps and bytes sent per rank, for C features: forward an all-gather of 3 C values, backward an all-reduce of 2 C.
    """

    def __init__(self, fused: bool | None = False, **options: Any):
        if fused is not False:
            raise ValueError(
                f"Expected fused=False, got fused={fused}: SyncBatchNormalization cannot be fused, because ranks "
                "communicate in the middle of it. Pass keras.layers.BatchNormalization's options by name, e.g. axis=1."
            )
        if options.get("renorm"):
            raise ValueError(
                "Expected renorm=False, got True: SyncBatchNormalization uses the statistics of all ranks' batches, "
                "which are large enough without it: leave it out, or use keras.layers.BatchNormalization."
            )
        super().__init__(**options)
        _made.add(self)

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs, training=None, mask=None):
        world = topology.world()
        if world.size == 1 or not training or not self.trainable:
            return super().call(inputs, training=training, mask=mask)
        values = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        mean, variance = _moments(values, _counted(values, mask), self.axis, world)
        for moving, current in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + tf.cast(current, moving.dtype) * (1.0 - self.momentum))
        scale, offset = (None if each is None else tf.cast(each, values.dtype) for each in (self.gamma, self.beta))
        outputs = keras.ops.batch_normalization(values, mean, variance, self.axis, offset, scale, self.epsilon)
        return tf.cast(outputs, self.compute_dtype)


def synchronises(model: keras.Model) -> bool:
    """Whether a built model has a layer with a collective in its forward pass."""
    if topology.world().size == 1:
        return False
    held = {id(variable) for variable in model.variables}
    return any(layer.built and id(layer.moving_mean) in held for layer in _made)


def _counted(values: tf.Tensor, mask: Any) -> tf.Tensor | None:
    """Which values count, bool in their shape; None if all do."""
    if mask is None:
        return None
    mask = tf.cast(mask, tf.bool)
    if mask.shape.rank != values.shape.rank - 1:
        raise ValueError(
            f"Expected a mask with one dimension fewer than the inputs {values.shape}, got one of shape {mask.shape}."
        )
    return tf.broadcast_to(mask[..., tf.newaxis], tf.shape(values))


def _moments(values: tf.Tensor, counted: tf.Tensor | None, axis: int, world: Communicator) -> tuple[Any, Any]:
    """Mean and variance [C] of the counted values of all ranks; their gradients go to all ranks.

    Each rank sends its mean and the sum of squares around it, not the plain sum of squares, which loses precision in
    float32 if the mean is large (Chan, Golub and LeVeque 1983, equation 2.1).
    """
    rank = values.shape.rank
    features = axis % rank
    axes = [each for each in range(rank) if each != features]
    shape = [-1 if each == features else 1 for each in range(rank)]

    def chosen(tensor: tf.Tensor) -> tf.Tensor:
        return tensor if counted is None else tf.where(counted, tensor, tf.zeros([], tensor.dtype))

    @tf.custom_gradient
    def moments(values):
        with tf.name_scope(_SCOPE):
            count = tf.reduce_sum(chosen(tf.ones_like(values)), axes)
            own = tf.math.divide_no_nan(tf.reduce_sum(chosen(values), axes), count)
            squares = tf.reduce_sum(chosen(tf.square(values - tf.reshape(own, shape))), axes)
            message = tf.stack([count, own, squares])[tf.newaxis]
            total, mean, variance = _pooled(world.allgather(message, _name("moments"), lengths=[1] * world.size))

        def gradient(by_mean, by_variance):
            with tf.name_scope(_SCOPE):
                by_all = world.allreduce(tf.stack([by_mean, by_variance]), "sum", _name("gradients"))
                by_mean, by_variance = (
                    tf.reshape(tf.math.divide_no_nan(each, total), shape) for each in tf.unstack(by_all)
                )
                return chosen(by_mean + 2 * by_variance * (values - tf.reshape(mean, shape)))

        return (mean, variance), gradient

    return moments(values)


def _pooled(gathered: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Total count, mean and variance [C] from [P, 3, C]: each rank's count, mean and sum of squares around its mean."""
    counts, means, squares = tf.unstack(gathered, axis=1)
    total = tf.reduce_sum(counts, 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
    around = squares + counts * tf.square(means - mean)
    return total, mean, tf.math.divide_no_nan(tf.reduce_sum(around, 0), total)


def _name(kind: str) -> str:
    """A name for a collective: its number in the function that is being traced.

    Ranks with different histories have different names for a layer and have traced other functions; but a function that
    all of them run has the same collectives in the same order on each. Eager calls follow one another.
    """
    if tf.executing_eagerly():
        return f"sync_batch_norm.{kind}"
    graph = _outermost(tf.compat.v1.get_default_graph())
    _counts[graph] = _counts.get(graph, 0) + 1
    return f"sync_batch_norm.{kind}.{_counts[graph]}"


def _outermost(graph: Any) -> Any:
    """The outermost function that is being traced; a graph may be a branch, a loop or a function inside it."""
    while graph.building_function and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph

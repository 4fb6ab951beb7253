"""Loss scaling in which all ranks skip the same steps."""

from __future__ import annotations

import keras

from hvd_sparse.keras import hooks


class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's loss scaling; whether gradients are finite is agreed over all ranks before any of them is exchanged.

    A step on which one rank's gradient overflows is skipped by all: variables, momentum, accumulated gradients and
    residuals stay as they were, and every rank halves its scale. Keras's own class is made to do the same around a
    distributed optimizer, so under `mixed_float16` `compile` needs no help; this one is for loops of one's own:

        optimizer = hvd.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))

    with a plain `tf.GradientTape`. It is saved as Keras's. As the decision comes first, the exchange does not overlap
    with the backward pass.

    Args: those of `keras.optimizers.LossScaleOptimizer`.

    Steps and bytes: one all-reduce of 4 bytes a step.
    """

    def __init__(self, inner_optimizer, *args, **kwargs):
        if hooks.exchange_of(inner_optimizer) is None:
            raise ValueError(
                f"Expected a distributed optimizer to be wrapped, got {type(inner_optimizer).__name__}: make it one by "
                "hvd.DistributedOptimizer(optimizer) first."
            )
        super().__init__(inner_optimizer, *args, **kwargs)

    # What saves it is to see Keras's class, so that it can be loaded without this package.
    __class__ = property(lambda self: keras.optimizers.LossScaleOptimizer)

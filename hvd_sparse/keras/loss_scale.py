"""Loss scaling in which all ranks skip the same steps."""

from __future__ import annotations

import keras

from hvd_sparse.keras.exchanging import exchange_of


class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's loss scaling, in which all ranks agree whether gradients are finite before any is exchanged.

    A step in which one rank's gradient overflows is skipped by all ranks: variables, momentum, accumulated gradients
    and residuals stay as they were, and every rank halves its scale. Around a distributed optimizer, Keras's own class
    does the same, so `compile` under `mixed_float16` needs no change; this class is for your own loops:

        optimizer = hvd.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))

    with a plain `tf.GradientTape`. It is saved as Keras's class. As the decision comes first, the exchange does not
    overlap with the backward pass.

    Args: those of `keras.optimizers.LossScaleOptimizer`.

    Steps and bytes: one all-reduce of 4 bytes per step.
    """

    def __init__(self, inner_optimizer, *args, **kwargs):
        if exchange_of(inner_optimizer) is None:
            raise ValueError(
                f"Expected a distributed optimizer, got {type(inner_optimizer).__name__}: wrap it with "
                "hvd.DistributedOptimizer(optimizer) first."
            )
        super().__init__(inner_optimizer, *args, **kwargs)

    # It is saved as Keras's class, so that it can be loaded without this package.
    __class__ = property(lambda self: keras.optimizers.LossScaleOptimizer)

"""Ranks that have run out of data, and what cannot continue without them."""

from __future__ import annotations

import horovod.tensorflow as _horovod
import tensorflow as tf

_forbidden = False  # the same on every rank: whether gradients have been exchanged since Horovod started


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Waits until all ranks have run out of data; until then this rank adds zeros to the others' `allreduce`.

    Returns:
        The rank that joined last, [] int32.

    Raises:
        RuntimeError: if gradients were exchanged by `DistributedOptimizer`, `DistributedGradientTape` or
            `GradientExchange`: these gather, and no rank can answer for one that has left.
    """
    if _forbidden:
        raise RuntimeError(
            "hvd.join() cannot stand in for this rank in the exchange of gradients, which uses allgather: give "
            "every rank the same number of batches: dataset.repeat() with "
            "steps_per_epoch=int(hvd.allreduce(steps, op=hvd.Min))."
        )
    return _horovod.join()


def forbid_join() -> None:
    """Makes `join` raise an error from now on."""
    global _forbidden
    _forbidden = True


def allow_join() -> None:
    """Allows `join` again, when Horovod is started again."""
    global _forbidden
    _forbidden = False

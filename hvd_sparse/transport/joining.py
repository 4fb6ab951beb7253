"""Ranks that have no more data, and what cannot go on without them."""

from __future__ import annotations

import horovod.tensorflow as _horovod
import tensorflow as tf

_forbidden = False  # the same on every rank: whether gradients were exchanged since Horovod was started


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Waits until all ranks have no more data; until then this one adds zeros to the others' `allreduce`.

    Returns:
        The rank that joined last, [] int32.

    Raises:
        RuntimeError: where gradients were exchanged by `DistributedOptimizer`, `DistributedGradientTape` or
            `GradientExchange`, which gather: nobody can answer for a rank that has left.
    """
    if _forbidden:
        raise RuntimeError(
            "hvd.join() cannot answer for this rank in the exchange of gradients, which gathers: give every rank the "
            "same number of batches, as by dataset.repeat() with steps_per_epoch=int(hvd.allreduce(steps, op=hvd.Min))."
        )
    return _horovod.join()


def forbid_join() -> None:
    """From now on `join` is refused."""
    global _forbidden
    _forbidden = True


def allow_join() -> None:
    """Ends that, as Horovod is started anew."""
    global _forbidden
    _forbidden = False

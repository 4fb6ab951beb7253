"""Ranks that have no more data, and what cannot go on without them."""

from __future__ import annotations

import weakref
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

_exchanges: weakref.WeakSet[Any] = weakref.WeakSet()  # which a rank that has joined would not answer


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Waits until all ranks have no more data; until then this one adds zeros to the others' `allreduce`.

    Returns:
        The rank that joined last, [] int32.

    Raises:
        RuntimeError: where this process exchanges gradients by `DistributedOptimizer`, `DistributedGradientTape` or
            `GradientExchange`, which gather: nobody can answer for a rank that has left.
    """
    if _exchanges:
        raise RuntimeError(
            "hvd.join() cannot answer for this rank in the exchange of gradients, which gathers: give every rank the "
            "same number of batches, as by dataset.repeat() with steps_per_epoch=int(hvd.allreduce(steps, op=hvd.Min))."
        )
    return _horovod.join()


def forbid_join(exchange: object) -> None:
    """As long as this object lives, `join` is refused."""
    _exchanges.add(exchange)

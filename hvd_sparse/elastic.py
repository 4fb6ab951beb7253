"""Horovod's names for elastic training, which is not supported: ranks that come and go while training runs.

Importing them works; whoever uses one is told what to do today. What comes close: `hvd.callbacks.CheckpointCallback`
goes on from its newest whole checkpoint, also on another number of ranks, with nothing lost that was kept back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

_TODAY = (
    "is not supported yet, as ranks cannot come and go while training runs: give model.fit "
    "hvd.callbacks.CheckpointCallback(directory), and start the job again, on any number of ranks, where it stopped."
)


class _Refused:
    def __init__(self, *arguments: Any, **options: Any):
        raise RuntimeError(f"hvd.elastic.{type(self).__name__} {_TODAY}")


class State(_Refused):
    """Is refused.

    Raises:
        RuntimeError: always, saying what to do instead.
    """


class ObjectState(State):
    """Is refused, as `State` is."""


class TensorFlowState(ObjectState):
    """Is refused, as `State` is."""


class TensorFlowKerasState(ObjectState):
    """Is refused, as `State` is."""


class KerasState(TensorFlowKerasState):
    """Is refused, as `State` is."""


class CommitStateCallback(_Refused):
    """Is refused, as `State` is."""


class UpdateBatchStateCallback(_Refused):
    """Is refused, as `State` is."""


class UpdateEpochStateCallback(_Refused):
    """Is refused, as `State` is."""


def run(func: Callable[..., Any]) -> NoReturn:
    """Is refused where it decorates a function.

    Raises:
        RuntimeError: always, saying what to do instead.
    """
    raise RuntimeError(f"hvd.elastic.run {_TODAY}")

"""Horovod's names for elastic training, which is not supported: ranks that come and go while training runs.

Importing them works; whoever uses one is told what to do today: `hvd.callbacks.CheckpointCallback` goes on from its
newest whole checkpoint, on another number of ranks too, and no residual is lost. `HorovodInternalError`
is Horovod's own, so that scripts that catch it stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from horovod.common.exceptions import HorovodInternalError

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
REFUSED = {
    name: (
        f"hvd.elastic.{name} is not supported yet, as ranks cannot come and go while training runs: give model.fit "
        "hvd.callbacks.CheckpointCallback(directory), and start the job again where it stopped, on any number of ranks."
    )
    for name in __all__
    if name != "HorovodInternalError"
}


class _Refused:
    def __init__(self, *arguments: Any, **options: Any):
        raise RuntimeError(REFUSED[type(self).__name__])


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
    raise RuntimeError(REFUSED["run"])

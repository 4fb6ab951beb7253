"""Horovod's names for elastic training (ranks that come and go while training runs), which is not supported.

Importing them works; using one raises an error that says what to do: `hvd.callbacks.CheckpointCallback` resumes from
its newest whole checkpoint, also on another number of ranks, and no residual is lost. What implements them belongs
above the exchange, whose state it hands over: this layer may not import that. `HorovodInternalError` is
Horovod's own, so that scripts that catch it need no change.
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
        f"hvd.elastic.{name} is not supported yet, as ranks cannot come and go while training runs: pass "
        "hvd.callbacks.CheckpointCallback(directory) to model.fit, and restart the job where it stopped, on any number "
        "of ranks."
    )
    for name in __all__
    if name != "HorovodInternalError"
}


class _Refused:
    def __init__(self, *arguments: Any, **options: Any):
        raise RuntimeError(REFUSED[type(self).__name__])


class State(_Refused):
    """Raises an error: elastic training is not supported.

    Raises:
        RuntimeError: always, saying what to do instead.
    """


class ObjectState(State):
    """Raises an error, as `State` does."""


class TensorFlowState(ObjectState):
    """Raises an error, as `State` does."""


class TensorFlowKerasState(ObjectState):
    """Raises an error, as `State` does."""


class KerasState(TensorFlowKerasState):
    """Raises an error, as `State` does."""


class CommitStateCallback(_Refused):
    """Raises an error, as `State` does."""


class UpdateBatchStateCallback(_Refused):
    """Raises an error, as `State` does."""


class UpdateEpochStateCallback(_Refused):
    """Raises an error, as `State` does."""


def run(func: Callable[..., Any]) -> NoReturn:
    """Raises an error when it decorates a function: elastic training is not supported.

    Raises:
        RuntimeError: always, saying what to do instead.
    """
    raise RuntimeError(REFUSED["run"])

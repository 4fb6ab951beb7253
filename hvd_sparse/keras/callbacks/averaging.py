"""Callbacks that make ranks agree: on variables at the start, on metrics at the end of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.keras import hooks
from hvd_sparse.keras.broadcast import broadcast_state
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.transport import topology


class BroadcastGlobalVariablesCallback(DistributedCallback):
    """Broadcasts one rank's variables of model and optimizers, so that all ranks start from the same values.

    It does so when training begins if every rank's model is built by then, otherwise after the first batch, as Horovod
    does; a model with a given input shape is built. Residuals, local variables with their slots, random seeds and
    states of stateful RNN layers stay each rank's own. Nothing is broadcast if `CheckpointCallback`, listed before, has
    resumed.

    Variables are paired by their order, so one rank may have loaded its model while others have built theirs.
    Optimizers and slots that only some ranks have made are made on all; `model.optimizer` is built if it is not.

    Args:
        root_rank: the rank whose variables all ranks get.
        device: TensorFlow's name of the device to use, such as "/cpu:0"; by default TensorFlow chooses.
        local_variables: one or several variables that stay each rank's own.

    Raises:
        ValueError: when training begins, on every rank, if the ranks' variables differ in number, shapes or dtypes;
            none has changed then.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local: list[Any] = []
        for variable in _listed(local_variables):
            self.register_local_var(variable)
        self._done = False

    def register_local_var(self, var: Any) -> None:
        """Excludes a variable, which then stays each rank's own.

        Raises:
            ValueError: if it is not a variable.
        """
        if not isinstance(var, tf.Variable | keras.Variable):
            raise ValueError(f"Expected local variables to be variables of Keras or TensorFlow, got {var!r}.")
        self._local.append(var)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if hooks.resumes(self.model):  # a broadcast would overwrite what is each rank's own
            self._done = True
            return
        # Whether to call a collective must not depend on what only one rank knows.
        built = topology.world().allreduce(tf.constant(int(self.model.built)), "min", "broadcast.built")
        if not self._done and built == 1:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        with tf.device(self.device):
            broadcast_state(self.model, self.root_rank, self._local)
        self._done = True


class MetricAverageCallback(DistributedCallback):
    """Averages the metrics of an epoch over all ranks; list it before callbacks that use them.

    The mean is over ranks with equal weights, as in Horovod.

    Args:
        device: TensorFlow's name of the device to use, such as "/cpu:0"; by default TensorFlow chooses.

    Raises:
        ValueError: on every rank, if the ranks have different metrics.
    """

    waits = "at the end of each epoch"

    def __init__(self, device: str = ""):
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if not logs:
            return
        world = topology.world()
        names = sorted(logs)
        world.agree({"metrics": names}, "the names of their metrics", "metrics.agree")
        with tf.device(self.device):
            own = tf.constant([float(logs[name]) for name in names], tf.float64)
            means = (world.allreduce(own, "sum", "metrics.sum") / world.size).numpy()
        logs.update(zip(names, means.tolist(), strict=True))


def _listed(variables: Any) -> list[Any]:
    """A list of variables, from several variables, one, or None."""
    if variables is None:
        return []
    if isinstance(variables, Iterable) and not isinstance(variables, tf.Variable | keras.Variable):
        return list(variables)
    return [variables]

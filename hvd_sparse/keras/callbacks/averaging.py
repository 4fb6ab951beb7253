"""Callbacks that make ranks agree: on variables at the start, on metrics at the end of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.keras import hooks
from hvd_sparse.keras.broadcasting import broadcast_state
from hvd_sparse.keras.callbacks import rates
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
        different_rates: "error" if different learning rates on the ranks, compared when epochs begin and end, are an
            error, or "warning".

    Raises:
        ValueError: when training begins, on every rank, if the ranks' variables differ in number, shapes or dtypes;
            none has changed then. When an epoch begins or ends, on every rank, if learning rates differ.
    """

    compares_rates = True

    def __init__(
        self, root_rank: int = 0, device: str = "", local_variables: Any = None, different_rates: str = rates.ERROR
    ):
        super().__init__()
        self.different_rates = rates.check_reaction(different_rates)
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

    The mean is over ranks with equal weights, as in Horovod. A metric may be a number, an array such as one value per
    class, or a nest of them; each element is averaged by itself. An array of floats keeps its dtype.

    Args:
        device: TensorFlow's name of the device to use, such as "/cpu:0"; by default TensorFlow chooses.
        different_rates: as for `BroadcastGlobalVariablesCallback`.

    Raises:
        ValueError: on every rank, if the ranks have different metrics, metrics of different shapes, or different
            learning rates.
    """

    waits = "at the end of each epoch"
    compares_rates = True

    def __init__(self, device: str = "", different_rates: str = rates.ERROR):
        super().__init__()
        self.device = device
        self.different_rates = rates.check_reaction(different_rates)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if not logs:
            return
        world = topology.world()
        logs_by_name = dict(sorted(logs.items()))
        own = [keras.ops.convert_to_numpy(value) for value in tf.nest.flatten(logs_by_name)]
        shapes = tf.nest.map_structure(lambda value: str(np.shape(value)), logs_by_name)
        world.agree({"metrics": shapes}, "the names of their metrics or their shapes", "metrics.agree")
        with tf.device(self.device):
            flat = tf.constant(np.concatenate([np.ravel(value).astype(np.float64) for value in own]))
            means = (world.allreduce(flat, "sum", "metrics.sum") / world.size).numpy()
        pieces = np.split(means, np.cumsum([value.size for value in own])[:-1])
        averaged = [_shaped_as(value, piece) for value, piece in zip(own, pieces, strict=True)]
        logs.update(tf.nest.pack_sequence_as(logs_by_name, averaged))


def _shaped_as(value: np.ndarray, mean: np.ndarray) -> Any:
    """The mean in the value's shape, and in its dtype if that is one of floats; a number for a number."""
    if value.ndim == 0:
        return float(mean[0])
    return mean.reshape(value.shape).astype(value.dtype if np.issubdtype(value.dtype, np.floating) else np.float64)


def _listed(variables: Any) -> list[Any]:
    """A list of variables, from several variables, one, or None."""
    if variables is None:
        return []
    if isinstance(variables, Iterable) and not isinstance(variables, tf.Variable | keras.Variable):
        return list(variables)
    return [variables]

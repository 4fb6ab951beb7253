"""Callbacks for sharded servers, where each rank trains at its own pace."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.optimizers import attached
from hvd_sparse.servers.optimizer import Served, served


class ServersCallback(DistributedCallback):
    """The base class of callbacks that are only for sharded servers."""

    def set_model(self, model: keras.Model) -> None:
        """Raises ValueError if the model's optimizer does not run on servers."""
        super().set_model(model)
        if not isinstance(attached.to(getattr(model, "optimizer", None)), Served):
            raise ValueError(
                f"{type(self).__name__} is for models compiled with hvd.servers.ShardedServers(optimizer)."
            )


class PublishedParametersCallback(ServersCallback):
    """Gives the model the servers' parameters when it is evaluated and when an epoch ends; no rank waits for another.

    In between, a rank's model holds its own copy, without what its pulls have left out. List it before callbacks that
    save, such as Keras's `ModelCheckpoint`. The next step computes gradients at these parameters.

    Bytes: all parameters of the other servers, each time.
    """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.optimizer.built:
            self.consolidate()


class AverageStatisticsCallback(ServersCallback):
    """Averages non-trainable variables over ranks, such as the moving means and variances of batch normalization.

    Every `every` steps a rank sends its own to the first server, and gets the mean of what all ranks sent last. No rank
    waits for another.

    Args:
        every: the number of this rank's steps from one time to the next, at least 1.
    """

    def __init__(self, every: int = 100):
        super().__init__()
        if every < 1:
            raise ValueError(f"Expected every to be at least 1 step, got {every}.")
        self.every = every
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps += 1
        if self._steps % self.every == 0:
            self._average()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._average()
        super().on_epoch_end(epoch, logs)

    def _average(self) -> None:
        held = [each for each in self.model.non_trainable_variables if each.dtype.startswith("float")]
        if not held:
            return
        own = np.concatenate([each.numpy().reshape(-1).astype(np.float32) for each in held])
        mean = served(self.model.optimizer).member.connections.averaged(own)
        ends = np.cumsum([int(np.prod(each.shape)) for each in held])
        for variable, part in zip(held, np.split(mean, ends[:-1]), strict=True):
            variable.assign(part.reshape(variable.shape))

"""Callbacks for sharded servers, where each rank trains at its own pace."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.servers.optimizer import is_served, served


class ServersCallback(DistributedCallback):
    """What callbacks share that are for sharded servers alone."""

    def set_model(self, model: keras.Model) -> None:
        """Raises ValueError where the model's optimizer does not run on servers."""
        super().set_model(model)
        if not is_served(getattr(model, "optimizer", None)):
            raise ValueError(
                f"{type(self).__name__} is for models that are compiled with hvd.servers.ShardedServers(optimizer)."
            )


class PublishedParametersCallback(ServersCallback):
    """Gives the model what the servers have when it is evaluated and when an epoch ends; no rank waits for another.

    Between them a rank's model holds its own copy, which lacks what its pulls have left out. List it before callbacks
    that save, such as Keras's `ModelCheckpoint`. In the step that follows gradients are taken at these parameters.

    Bytes: all of the parameters from the other servers, each time.
    """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.optimizer.built:
            self.consolidate()


class AverageStatisticsCallback(ServersCallback):
    """Averages over ranks what is not trained, such as the moving means and variances of batch normalisation.

    Every so many steps a rank tells the first server its own, and gets the mean of what all have told last. No rank
    waits for another.

    Args:
        every: so many steps of this rank, at least 1.
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

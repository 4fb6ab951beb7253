"""Callbacks that keep a state up to date while `fit` runs, under Horovod's names."""

from __future__ import annotations

from typing import Any

import keras


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state every few batches, and at the end of each epoch; pass it after those that change the state.

    Args:
        state: an elastic state, such as `hvd.elastic.KerasState`.
        batches_per_commit: the number of batches from one commit to the next.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"Expected batches_per_commit of at least 1, got {batches_per_commit}.")
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._left = self.batches_per_commit  # the same on all ranks, whenever they came

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._left -= 1
        last = batch + 1 == self.params.get("steps") or self.model.stop_training  # the end of the epoch commits
        if self._left <= 0 and not last:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of batches of this epoch in `state.batch`, and takes only the rest of an epoch that goes on.

    An epoch that was begun before the ranks changed ends after `steps - state.batch` batches, if `fit` knows how many
    `steps` an epoch has. Which batches these are is up to the data.

    Args:
        state: an elastic state with the attribute `batch`.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._done = 0  # in this epoch, before this call of `fit`
        self._cut = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._done, self._cut = self.state.batch, False

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._done + batch + 1
        steps = self.params.get("steps")
        if self._done and steps is not None and self.state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = self._cut = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._cut:
            self.model.stop_training = self._cut = False
        self.state.batch = self._done = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of epochs done in `state.epoch`.

    Args:
        state: an elastic state with the attribute `epoch`.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch += 1

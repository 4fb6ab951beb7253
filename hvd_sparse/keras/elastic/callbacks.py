"""Callbacks that keep a state up to date while `fit` runs, under Horovod's names."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.transport import topology

_SHARE = 0.05  # of the time, for commits
_MOST = 1000  # batches from one commit to the next, by default


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state every few batches, and at the end of each epoch; pass it after those that change the state.

    Args:
        state: an elastic state, such as `hvd.elastic.KerasState`.
        batches_per_commit: the number of batches from one commit to the next. By default as many as make commits take a
            twentieth of the time, on the rank on which they take most of it; Horovod's default is 1.
    """

    def __init__(self, state: Any, batches_per_commit: int | None = None):
        super().__init__()
        if batches_per_commit is not None and batches_per_commit < 1:
            raise ValueError(f"Expected batches_per_commit of at least 1, got {batches_per_commit}.")
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = self._batches = 1  # until the next commit, and from the last one to it
        self._since = time.perf_counter()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._left = self._batches = self.batches_per_commit or 1  # the same on all ranks, whenever they came
        self._since = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._left -= 1
        last = batch + 1 == self.params.get("steps") or self.model.stop_training  # the end of the epoch commits
        if self._left <= 0 and not last:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._commit()

    def _commit(self) -> None:
        begun = time.perf_counter()
        self.state.commit()
        ended = time.perf_counter()
        self._left = self.batches_per_commit or self._interval(ended - begun, begun - self._since)
        self._since = time.perf_counter()

    def _interval(self, commit: float, batches: float) -> int:
        """The number of batches until the next commit, the same on all ranks; a collective of 4 bytes.

        Args:
            commit: the seconds that the last one took.
            batches: those of the batches before it.
        """
        each = batches / self._batches
        own = min(_MOST, max(1, round(commit / (_SHARE * max(each, 1e-6)))))
        agreed = topology.world().allreduce(tf.constant(own), "max", "elastic.interval")
        self._batches = int(agreed)
        return self._batches


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

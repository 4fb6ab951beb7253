"""The position of training in the data: the base of what makes training go on in mid-epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from datacache import dataset
from datacache.batches import AnyBatches
from datacache.order import Schedule


class _EndOfShortEpoch:
    """The value of `stop_training` if an epoch ends before Keras expects it; it counts as true."""


class Input(NamedTuple):
    """What a `PositionCallback` needs of its cache.

    Attributes:
        schedule: maps epoch and position to the batches' schedule.
        prepare: maps a schedule to its batches.
        rank: of this process.
        order: what determines the order of samples, such as seed and number of samples.
        content: what the samples are.
    """

    schedule: Callable[[int, int], Schedule]
    prepare: Callable[[Schedule], AnyBatches]
    rank: int
    order: dict[str, int]
    content: str


class PositionCallback(keras.callbacks.Callback):
    """A callback for `fit` that counts the samples that were trained on, and provides the rest of the data.

    Subclasses choose where training begins, with `_go_to`, and keep the position for when it goes on.

    Attributes:
        epoch: the epoch being read, or read next; `initial_epoch` of `fit`.
        position: number of its samples that the model has been trained on, by all ranks together; negative if that
            many samples of the epoch before are still to come.
        steps_per_epoch: number of batches of a whole epoch, for `fit`; where some have one fewer, the larger number.
    """

    def __init__(self, input: Input):
        """Takes the data."""
        super().__init__()
        self._input = input
        self.epoch = self.position = self.steps_per_epoch = 0
        self._short = _EndOfShortEpoch()

    def dataset(self, map_func: Callable[..., Any] | None = None) -> tf.data.Dataset:
        """The rest of the epoch, and all later epochs without end, as (samples, labels).

        Pass it to one `fit`, with `steps_per_epoch`; functions mapped over it must leave batches as they are.

        Args:
            map_func: applied to each sample before batching; as for `DataCache.dataset`.

        Returns:
            Batches as in `DataCache.dataset`.
        """
        first, position = self.epoch, self.position
        begins = {first: position}  # the position at which each epoch begins

        @functools.lru_cache(maxsize=2)
        def prepare(epoch: int) -> AnyBatches:
            batches = self._input.prepare(self._input.schedule(epoch, begins[epoch]))
            begins[epoch + 1] = -batches.schedule.left_over
            return batches

        def begin(epoch: int) -> None:
            if epoch < self.epoch or (epoch == self.epoch == first and self.position != position):
                raise ValueError(
                    f"This dataset begins at position {position} of epoch {first}, and training is at {self.position} "
                    f"of epoch {self.epoch}: call dataset() again for another fit."
                )

        equal = self._all_equal and prepare(first).schedule.has_equal_batches
        return dataset.make_stream(prepare, first, equal, begin, map_func)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.params.get("steps") != self.steps_per_epoch:
            raise ValueError(
                f"Expected fit(steps_per_epoch={self.steps_per_epoch}), as {type(self).__name__}.steps_per_epoch says, "
                f"got {self.params.get('steps')}."
            )
        if self.model.steps_per_execution != 1:
            raise ValueError(f"Expected steps_per_execution of 1, got {self.model.steps_per_execution}.")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch != self.epoch:
            raise ValueError(
                f"Expected fit(initial_epoch={self.epoch}), as {type(self).__name__}.epoch says, got {epoch}."
            )
        self._begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps = batch + 1
        self.position = self._schedule.position(self._steps) - self._carried
        if len(self._schedule) == self._steps < self.steps_per_epoch and not self.model.stop_training:
            self.model.stop_training = self._short

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.model.stop_training is self._short:  # and not a stop that another callback asks for
            self.model.stop_training = False
        if self._steps == len(self._schedule):
            self._end_epoch()

    def _go_to(self, epoch: int, position: int) -> None:
        """Begins at this position, or with the next epoch if the rest of this one has no batch."""
        self.epoch, self.position = epoch, position
        self._begin()
        if len(self._schedule) == 0:
            self._end_epoch()
            self._begin()
        whole = self._input.schedule(self.epoch, 0)
        self._all_equal = whole.has_equal_batches and whole.left_over == 0
        # What an epoch leaves can make one more batch of the next.
        self.steps_per_epoch = max(len(self._schedule), len(whole) + (whole.left_over > 0))

    def _begin(self) -> None:
        self._schedule, self._steps = self._input.schedule(self.epoch, self.position), 0
        self._carried = max(0, -self.position)  # samples of the epoch before

    def _end_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, -self._schedule.left_over

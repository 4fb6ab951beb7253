"""Training that goes on where it was stopped: position in the data and state of the model, in one file.

A checkpoint is a weights file of Keras, which also holds the optimizer's state, with the position as an attribute. It
gets its name when it is whole and on the disk, so that model and position cannot disagree.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import h5py
import keras
import tensorflow as tf

from datacache import dataset, files
from datacache.batches import Batches, VaryingBatches
from datacache.order import Schedule

_FORMAT = "datacache training 1"
_ATTRIBUTE = "datacache"
_SUFFIX = ".weights.h5"
_BESIDE = ".beside.npz"
_PART = f".part{_SUFFIX}"  # one name for all: what a killed process leaves is overwritten
_log = logging.getLogger(__name__)


class _EndOfShortEpoch:
    """What `stop_training` is set to where an epoch ends before Keras expects it; it counts as true."""


class Input(NamedTuple):
    """What a `Training` needs of its cache.

    Attributes:
        schedule: from epoch and position to the batches' schedule.
        prepare: from a schedule to its batches.
        rank: of this process.
        order: what the order of samples follows from, such as seed and number of samples.
        content: what the samples are.
    """

    schedule: Callable[[int, int], Schedule]
    prepare: Callable[[Schedule], Batches | VaryingBatches]
    rank: int
    order: dict[str, int]
    content: str


class Beside(Protocol):
    """What saves more of an optimizer than Keras does; all ranks call both functions at the same step."""

    def save(self, path: Path, of: Any, /) -> None:
        """Writes a file whole, and others beside it whose names begin with its name and end with .rankRofP."""

    def restore(self, path: Path, of: Any, /) -> Any:
        """Takes up what `save` wrote."""


class Training(keras.callbacks.Callback):
    """A callback for `fit` that saves model and position, and gives the data to go on with: see `DataCache.training`.

    Attributes:
        epoch: that is being read, or is read next; `initial_epoch` of `fit`.
        position: how many of its samples the model has been trained on, by all ranks together.
        steps_per_epoch: batches of a whole epoch, for `fit`.
    """

    def __init__(
        self,
        input: Input,
        directory: str | os.PathLike,
        save_every: int,
        keep: int = 2,
        broadcast: Callable[[Any], Any] | None = None,
        beside: Beside | None = None,
    ):
        """Finds the newest checkpoint; arguments as for `DataCache.training`."""
        super().__init__()
        if save_every < 1 or keep < 1:
            raise ValueError(f"Expected save_every and keep of at least 1, got {save_every} and {keep}.")
        self._input, self._directory, self._save_every, self._keep = input, Path(directory), save_every, keep
        self._beside = beside
        self.epoch = self.position = 0
        self._checkpoint: Path | None = None
        self._temporary: Any = None  # holds the file for as long as it is needed
        self._find(broadcast)
        if len(self._input.schedule(self.epoch, self.position)) == 0:  # what is left would be dropped
            self.epoch, self.position = self.epoch + 1, 0
        self.steps_per_epoch = len(self._input.schedule(self.epoch, 0))
        self._schedule, self._steps = self._input.schedule(self.epoch, self.position), 0
        self._short = _EndOfShortEpoch()

    def dataset(self, map_func: Callable[..., Any] | None = None) -> tf.data.Dataset:
        """What is left of the epoch, and all epochs after it without end, as (samples, labels).

        To be given to one `fit`, with `steps_per_epoch`; what is mapped over it must leave batches as they are.

        Args:
            map_func: applied to each sample before batching; as for `DataCache.dataset`.

        Returns:
            Batches as of `DataCache.dataset`.
        """
        first, position = self.epoch, self.position
        prepare = functools.lru_cache(maxsize=2)(
            lambda epoch: self._input.prepare(self._input.schedule(epoch, position if epoch == first else 0))
        )

        def begin(epoch: int) -> None:
            if epoch < self.epoch or (epoch == self.epoch == first and self.position != position):
                raise ValueError(
                    f"This dataset begins at position {position} of epoch {first}, and training is at {self.position} "
                    f"of epoch {self.epoch}: call dataset() again for another fit."
                )

        return dataset.make_stream(prepare, first, begin, map_func)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.params.get("steps") != self.steps_per_epoch:
            raise ValueError(
                f"Expected fit(steps_per_epoch={self.steps_per_epoch}), as Training.steps_per_epoch says, got "
                f"{self.params.get('steps')}."
            )
        if self.model.steps_per_execution != 1:
            raise ValueError(f"Expected steps_per_execution of 1, got {self.model.steps_per_execution}.")
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
            self._checkpoint = self._temporary = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch != self.epoch:
            raise ValueError(f"Expected fit(initial_epoch={self.epoch}), as Training.epoch says, got {epoch}.")
        self._schedule, self._steps = self._input.schedule(epoch, self.position), 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps = batch + 1
        self.position = self._schedule.position(self._steps)
        if self._steps < len(self._schedule):
            if self._steps % self._save_every == 0:
                self._save()
        elif self._steps < self.steps_per_epoch and not self.model.stop_training:
            self.model.stop_training = self._short

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.model.stop_training is self._short:  # and not what another callback asks for
            self.model.stop_training = False
        if self._steps == len(self._schedule):
            self.epoch, self.position = epoch + 1, 0
        self._save()

    # ---- checkpoints ----

    def _save(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(_SUFFIX)
        if self._beside is not None:  # before the model has its name, so that what has one is whole
            self._beside.save(self._path(_BESIDE), self.model.optimizer)
        if self._input.rank == 0:
            self._write_model(path)
            self._remove("*", [each for each in _checkpoints(self._directory) if each.name <= path.name], self._keep)
        else:  # one more, as rank 0 may still be writing
            own = f"*.rank{self._input.rank}of*"
            self._remove(own, sorted(self._directory.glob(f"epoch-{own}")), self._keep + 1)

    def _write_model(self, path: Path) -> None:
        part = self._directory / _PART
        with files.needing_room_for(path):
            self.model.save_weights(part, overwrite=True)
            with h5py.File(part, "r+") as file:
                file.attrs[_ATTRIBUTE] = json.dumps(self._describe())
            files.rename_whole(part, path)

    def _remove(self, pattern: str, saved: list[Path], keep: int) -> None:
        """Removes files that are older than the last ones of these."""
        oldest = saved[-keep:][0].name.partition(".")[0] if saved else ""
        for each in self._directory.glob(f"epoch-{pattern}"):
            if each.name.partition(".")[0] < oldest:
                each.unlink(missing_ok=True)

    def _path(self, suffix: str) -> Path:
        """Of the present position; names are in the order of positions."""
        return self._directory / f"epoch-{self.epoch:06}-position-{self.position:012}{suffix}"

    def _describe(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "epoch": self.epoch,
            "position": self.position,
            "order": self._input.order,
            "content": self._input.content,
        }

    def _find(self, broadcast: Callable[[Any], Any] | None) -> None:
        """Looks for the newest whole checkpoint, on rank 0 alone where it can tell the others."""
        path, told = None, None
        if broadcast is None or self._input.rank == 0:
            path, told = _newest(self._directory)
        if broadcast is not None:
            told, content = broadcast((told, path.read_bytes() if path is not None else None))
            if path is None and content is not None:
                self._temporary = tempfile.NamedTemporaryFile(suffix=_SUFFIX)
                self._temporary.write(content)
                self._temporary.flush()
                path = Path(self._temporary.name)
        if path is not None and told is not None:
            self._check(told)
            self.epoch, self.position, self._checkpoint = told["epoch"], told["position"], path

    def _check(self, told: dict[str, Any]) -> None:
        if told.get("format") != _FORMAT or told["order"] != self._input.order:
            raise ValueError(
                f"{self._directory} has a checkpoint of {told.get('format')!r} with {told.get('order')}, expected "
                f"{_FORMAT!r} with {self._input.order}: its position means other samples. Choose another directory, or "
                "the seed and the source of that run."
            )
        if told["content"] != self._input.content:
            _log.warning(
                "datacache: the source was listed anew since the checkpoint in %s; training goes on at the same "
                "position, and the samples before it may not be those that the model has seen.",
                self._directory,
            )

    def _restore(self, path: Path) -> None:
        if not self.model.built:
            raise ValueError(
                "There is a checkpoint, and the model is not built: give it its input shape, or call it on a batch, "
                "before fit."
            )
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(path)
        if self._beside is not None:
            self._beside.restore(self._path(_BESIDE), optimizer)


def _checkpoints(directory: Path) -> list[Path]:
    """From the oldest to the newest."""
    return sorted(directory.glob(f"epoch-*{_SUFFIX}"))


def _newest(directory: Path) -> tuple[Path | None, dict[str, Any] | None]:
    """The newest checkpoint that can be opened, and what it says of itself."""
    for path in reversed(_checkpoints(directory)):
        try:
            with h5py.File(path, "r") as file:
                return path, json.loads(file.attrs[_ATTRIBUTE])
        except (OSError, KeyError, ValueError) as error:
            _log.warning("datacache: %s cannot be read (%s); the checkpoint before it is used.", path, error)
    return None, None

"""Training that resumes where it was stopped: position in the data and state of the model, in one file.

A checkpoint is a Keras weights file, which also holds the optimizer's state, with the position as an attribute. It gets
its name when it is complete and on the disk, so that model and position cannot disagree. It has a digest, so that
damage is detected: see `checkpoints`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from datacache import checkpoints
from datacache.checkpoints import Checkpoint, DamagedCheckpointError
from datacache.position import Input, PositionCallback

_BESIDE = ".beside.npz"
_log = logging.getLogger(__name__)


class Beside(Protocol):
    """Saves more of an optimizer than Keras does; all ranks call `save` and `restore` at the same step."""

    def save(self, path: Path, of: Any, /) -> None:
        """Writes a complete file, and companion files whose names begin with its name and end with .rankRofP."""

    def restore(self, path: Path, of: Any, /) -> Any:
        """Restores what `save` wrote."""

    def read(self, path: Path, /) -> Any:
        """Raises an exception if a file that `save` wrote is damaged; called by one rank alone."""


class Training(PositionCallback):
    """A callback for `fit` that saves model and position, and provides the rest of the data: see `DataCache.training`.

    Attributes:
        epoch: the epoch being read, or read next; `initial_epoch` of `fit`.
        position: number of its samples that the model has been trained on, by all ranks together.
        steps_per_epoch: number of batches of a whole epoch, for `fit`.
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
        super().__init__(input)
        if save_every < 1 or keep < 1:
            raise ValueError(f"Expected save_every and keep of at least 1, got {save_every} and {keep}.")
        self._directory, self._save_every, self._keep = Path(directory), save_every, keep
        self._beside = beside
        self._damaged: set[str] = set()  # names of damaged checkpoints, which do not count
        found = self._checkpoint = self._find(broadcast)
        self._go_to(*((0, 0) if found is None else (found.told["epoch"], found.told["position"])))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
            self._checkpoint = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        if self._steps < len(self._schedule) and self._steps % self._save_every == 0:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._save()

    # ---- checkpoints ----

    def _save(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(checkpoints.SUFFIX)
        if self._beside is not None:  # before the model gets its name, so that a named checkpoint is complete
            self._beside.save(self._path(_BESIDE), self.model.optimizer)
        if self._input.rank == 0:
            checkpoints.write(path, self.model.save_weights, self._describe())
            self._damaged.discard(path.name)
            self._remove("*", self._whole_until(path.name), self._keep)
        else:  # keep one more, as rank 0 may still be writing
            own = f"*.rank{self._input.rank}of*"
            self._remove(own, sorted(self._directory.glob(f"epoch-{own}")), self._keep + 1)

    def _whole_until(self, name: str) -> list[Path]:
        saved = checkpoints.in_order(self._directory)
        return [each for each in saved if each.name <= name and each.name not in self._damaged]

    def _remove(self, pattern: str, saved: list[Path], keep: int) -> None:
        """Removes files older than the last `keep` of these."""
        oldest = saved[-keep:][0].name.partition(".")[0] if saved else ""
        for each in self._directory.glob(f"epoch-{pattern}"):
            if each.name.partition(".")[0] < oldest:
                each.unlink(missing_ok=True)

    def _path(self, suffix: str) -> Path:
        """The path for the current position; names are in the order of positions."""
        return self._directory / f"epoch-{self.epoch:06}-position-{self.position:012}{suffix}"

    def _describe(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "order": self._input.order,
            "content": self._input.content,
        }

    def _find(self, broadcast: Callable[[Any], Any] | None) -> Checkpoint | None:
        """Finds the newest whole checkpoint, on rank 0 alone if it can tell the others."""
        found = None
        if broadcast is None or self._input.rank == 0:
            found, damaged = checkpoints.newest(self._directory, self._check_beside)
            self._damaged.update(damaged)
        if broadcast is not None:
            told = broadcast(None if found is None else tuple(found))
            found = None if told is None else Checkpoint(*told)
        if found is not None:
            self._check(found.told)
        return found

    def _check_beside(self, checkpoint: Path) -> None:
        """Checks that a checkpoint's companion files are whole; if there are none, `restore` handles that."""
        path = checkpoint.with_name(_beside(checkpoint.name))
        read = getattr(self._beside, "read", None)
        if read is None or not path.exists():
            return
        try:
            read(path)
        except Exception as error:  # reading a damaged file may raise anything
            raise DamagedCheckpointError(f"the data saved with it is damaged: {error}") from None

    def _check(self, told: dict[str, Any]) -> None:
        if told.get("format") != checkpoints.FORMAT or told["order"] != self._input.order:
            raise ValueError(
                f"{self._directory} has a checkpoint of {told.get('format')!r} with {told.get('order')}, expected "
                f"{checkpoints.FORMAT!r} with {self._input.order}: its position refers to other samples. Choose "
                "another directory, or use the seed and the source of that run."
            )
        if told["content"] != self._input.content:
            _log.warning(
                "datacache: the source was listed again after the checkpoint in %s; training continues at the same "
                "position, and the samples before it may not be those that the model has seen.",
                self._directory,
            )

    def _restore(self, checkpoint: Checkpoint) -> None:
        if not self.model.built:
            raise ValueError(
                "There is a checkpoint, but the model is not built: give it an input shape, or call it on a batch, "
                "before fit."
            )
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(checkpoints.WeightsFile(checkpoint.content))
        if self._beside is not None:
            self._beside.restore(self._directory / _beside(checkpoint.name), optimizer)


def _beside(name: str) -> str:
    """The name of a checkpoint's companion file."""
    return name.removesuffix(checkpoints.SUFFIX) + _BESIDE

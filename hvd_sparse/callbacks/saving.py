"""A callback that saves training as a whole, and goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

from hvd_sparse import checkpoint, keras_hooks, topology
from hvd_sparse.callbacks.averaging import broadcast_state
from hvd_sparse.callbacks.base import DistributedCallback
from hvd_sparse.gradient_exchange import resource

_MARKER, _WEIGHTS, _RESIDUALS = "whole.json", "model.weights.h5", "residuals.npz"


class CheckpointCallback(DistributedCallback):
    """Saves all that training needs to go on, and goes on from the newest whole checkpoint when `fit` begins.

    A checkpoint is a folder `epoch-0007` in `directory`: variables of model and optimizer (written by rank 0), what the
    ranks keep back (`hvd.checkpoint`), each rank's random seeds and local variables, and a marker that is written last.
    A folder without marker is one whose writing was interrupted; it is passed over. Ranks that do not share a file
    system each keep their own files in a folder of the same name; all else is read by rank 0.

    With the same number of ranks, recipe and data, a run that was stopped after an epoch ends with the same bits as one
    that was not. With another number of ranks, recipe or bucket size nothing that was kept back is lost.

    Args:
        directory: the same on every rank.
        every: save at the end of every so many epochs.
        keep: how many checkpoints stay; older ones are removed.
    """

    def __init__(self, directory: str | os.PathLike, every: int = 1, keep: int = 2):
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(f"Expected every and keep of at least 1, got {every} and {keep}.")
        self.directory = pathlib.Path(directory)
        self.every = every
        self.keep = keep

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        world = topology.world()
        newest = _newest(self.directory) if world.rank == 0 else None
        found = world.gather_descriptions(newest, "checkpoint.newest")[0]
        if found is not None:
            self._restore(found)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (epoch + 1) % self.every == 0:
            self._save(epoch)

    def _save(self, epoch: int) -> None:
        folder = self.directory / f"epoch-{epoch:04d}"
        checkpoint.save(folder / _RESIDUALS, self.model.optimizer, own_variables=self._own_variables())
        problem = None
        if topology.world().rank == 0:
            try:
                self._write_model(folder, epoch)
            except OSError as error:
                problem = str(error)
        # Only now is the new checkpoint whole, and an older one may go.
        checkpoint.raise_together(problem, "write the checkpoint")
        for outdated in sorted(self.directory.glob("epoch-*"))[: -self.keep]:
            shutil.rmtree(outdated, ignore_errors=True)

    def _write_model(self, folder: pathlib.Path, epoch: int) -> None:
        marker, weights = folder / _MARKER, folder / _WEIGHTS
        marker.unlink(missing_ok=True)
        self.model.save_weights(weights, overwrite=True)
        temporary = marker.with_suffix(".tmp")
        temporary.write_text(json.dumps({"epoch": epoch, "weights sha256": _sha256(weights)}))
        os.replace(temporary, marker)

    def _restore(self, epoch: int) -> None:
        exchange = self.required_exchange()
        self._require_built()
        folder = self.directory / f"epoch-{epoch:04d}"
        if topology.world().rank == 0:
            self.model.load_weights(folder / _WEIGHTS)
        broadcast_state(self.model, 0, exchange.local_variables())
        checkpoint.restore(folder / _RESIDUALS, exchange, own_variables=self._own_variables())
        keras_hooks.resume_at(self.model, epoch + 1)

    def _own_variables(self) -> list[Any]:
        """What differs between ranks beside what is kept back: states of random seeds, and local variables."""
        shared = {id(resource(variable)) for variable in self.model.weights}
        seeds = [variable for variable in self.model.variables if id(resource(variable)) not in shared]
        local = self.required_exchange().local_variables()
        return [*seeds, *local, *keras_hooks.slots(self.model.optimizer, local)]

    def _require_built(self) -> None:
        if not self.model.built:
            raise ValueError(
                "CheckpointCallback found a checkpoint, and the model is not built: give it its input shape, or call "
                "it on a batch, before fit."
            )
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)


def _newest(directory: pathlib.Path) -> int | None:
    """The epoch of the newest whole checkpoint; None where there is none."""
    markers = sorted(directory.glob(f"epoch-*/{_MARKER}"))
    for marker in reversed(markers):
        told = json.loads(marker.read_text())
        if _sha256(marker.with_name(_WEIGHTS)) == told["weights sha256"]:
            return told["epoch"]
    return None


def _sha256(path: pathlib.Path) -> str | None:
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

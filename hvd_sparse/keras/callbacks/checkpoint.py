"""A callback that saves the complete state of training and resumes from it."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import broadcasting, checkpoint, hooks, own_state
from hvd_sparse.keras.callbacks import folders
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.keras.callbacks.weights import write_weights
from hvd_sparse.keras.ownership import local_variables
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.storage import claims
from hvd_sparse.transport import first_rank, topology

_log = logging.getLogger(__name__)
_MOST = 8  # the most problems that a warning lists
_BY_HAND = "Intact weights can be loaded by hand: model.load_weights('.../model.weights.h5')."


class CheckpointCallback(DistributedCallback):
    """Saves all that training needs to continue, and resumes from the newest intact checkpoint when `fit` begins.

    A checkpoint is a folder `epoch-0007` in `directory`: variables of model and optimizers (written by rank 0), the
    residuals of each optimizer (`hvd.checkpoint`), what is each rank's own, and a marker, written last, with the
    SHA-256 of each of them. Ranks that do not share a file system each keep their own files in a folder of the same
    name; everything else is read by rank 0. Each rank's own are random seeds, states of stateful RNN layers, moving
    statistics and other non-trainable weights as far as they differ between ranks, sums of gradients between two
    updates, and local variables with their slots; see docs/saving.md. All distributed optimizers that the model or its
    layers have as attributes count.

    If marker, weights or residual sums are missing or damaged, all ranks resume from the previous checkpoint. If only a
    rank's own file is, they share the residuals equally; but if there are local variables, which are stored only in
    that file, they prefer an older checkpoint. Rank 0 warns of each case, and of what is lost.

    When `fit` resumes, rank 0 prints one line, and another one if no epoch is left.

    With the same number of ranks, recipe and data, a run that was stopped after an epoch ends with the same bits as one
    that was not stopped; with `recipes.dense` on more than two ranks only after
    `tf.config.experimental.enable_op_determinism()`, as Horovod's order of addition differs from run to run. With
    another number of ranks, recipe or bucket size, no residual is lost. On another number of ranks moving statistics
    and sums of gradients are the means over the ranks that saved; what begins afresh is named in one warning.

    Args:
        directory: the same on every rank.
        every: the number of epochs from one checkpoint to the next.
        keep: the number of intact checkpoints to keep; older ones of ours are removed, other files are not.
        required: whether a missing checkpoint is an error instead of starting from scratch.

    Raises:
        FileNotFoundError: when `fit` begins, on every rank, if there is no intact checkpoint and one is required.
        OSError: on every rank, if a checkpoint cannot be written, for example on a full disk; earlier ones stay. Or
            when `fit` begins, if another job is training with the same directory.
        ValueError: on every rank, if the model is not built, or is not the one that was saved; or if models are
            averaged (`hvd.averaging.ModelAveraging`), as they differ between ranks.
    """

    of_averaged = (
        "would save one rank's model, and models differ during training: leave it out, and pass "
        "hvd.callbacks.MeanOfModelsCallback() and after it, on rank 0, keras.callbacks.ModelCheckpoint"
    )
    waits = "to save (hvd.callbacks.ServersCheckpointCallback does not)"
    compares_rates = True

    def __init__(self, directory: str | os.PathLike, every: int = 1, keep: int = 2, required: bool = False):
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(f"Expected every and keep of at least 1, got {every} and {keep}.")
        self.directory = pathlib.Path(directory)
        self.every = every
        self.keep = keep
        self.required = required

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        passed_over: list[str] = []
        found = self._find(passed_over)
        if found is None and self.required:
            why = _listed(passed_over) or "there are none"
            raise FileNotFoundError(f"{self.directory} has no intact checkpoint to resume from: {why}. {_BY_HAND}")
        claim(self.directory)
        if found is None and passed_over:
            told = f"{self.directory} has checkpoints, none intact: {_listed(passed_over)}. Training starts over."
            _warn(told, _BY_HAND)
        if found is not None:
            self._restore(found, passed_over)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if (epoch + 1) % self.every == 0:
            self._save(epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        hooks.resume_at(self.model, None)
        claims.release(self.directory)

    # ---- saving ----

    def _save(self, epoch: int) -> None:
        world = topology.world()
        folder = folders.path(self.directory, epoch)
        new = world.gather_descriptions(not os.path.exists(folder / folders.MARKER), "checkpoint.new")[0]
        try:
            self._write(folder, epoch)
        except OSError:
            if new:  # an existing checkpoint keeps the files that were not replaced
                folders.discard(folder)
            raise
        # Only now is the new checkpoint complete, so an older one may be removed.
        oldest = folders.oldest_kept(self.directory, epoch, self.keep) if world.rank == 0 else None
        folders.remove_before(self.directory, world.gather_descriptions(oldest, "checkpoint.oldest")[0])

    def _write(self, folder: pathlib.Path, epoch: int) -> None:
        world = topology.world()
        written, optimizers = self._write_residuals(folder)
        problem = None
        if world.rank == 0:
            try:
                written[folders.WEIGHTS] = write_weights(self.model, folder / folders.WEIGHTS)
                folders.write_marker(folder, epoch, world.size, written, optimizers)
            except Exception as error:  # the other ranks wait for what has become of it
                problem = f"{type(error).__name__}: {error}"
        checkpoint.raise_together(problem, "write the checkpoint")

    def _write_residuals(self, folder: pathlib.Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """Writes an archive for each optimizer that has exchanged; each rank's own variables go with the first one.

        Returns:
            The SHA-256 of all files by name, and `folders.Checkpoint.optimizers`.
        """
        described, written = [], {}
        own = own_state.to_save(self.model)
        exchanges = self.required_exchanges()
        begun = [path for path, exchange in exchanges.items() if exchange.step] or list(exchanges)
        held = optimizers_of(self.model)
        for path in exchanges:
            places = broadcasting.places_in(self.model, held[path])
            described.append({"attribute": path, "variables": places, "residuals": None})
            if path in begun:
                name = described[-1]["residuals"] = folders.residuals_of(begun.index(path))
                state = own if path == begun[0] else checkpoint.OwnState()
                digests = checkpoint.save(folder / name, held[path], own_variables=state)
                for each in topology.world().gather_descriptions(digests, "checkpoint.digests"):
                    written.update(each)
        return written, described

    # ---- resuming ----

    def _find(self, passed_over: list[str]) -> folders.Checkpoint | None:
        """The newest checkpoint that all ranks can use; problems of newer ones are added to the list."""
        spare = None
        for epoch in reversed(self._epochs()):
            found = self._opened(epoch, passed_over)
            if found is None:
                continue
            lost = checkpoint.collect(self._lost_with(found), "checkpoint.lost")
            if not lost:
                return found
            passed_over.extend(lost)
            spare = spare or found
        return spare

    def _epochs(self) -> list[int]:
        """The epochs of the checkpoints that rank 0 sees."""
        found, problem = [], None
        if topology.world().rank == 0:
            try:
                found = folders.epochs(self.directory)
            except OSError as error:
                problem = str(error)
        checkpoint.raise_together(problem, "look for checkpoints")
        return topology.world().gather_descriptions(found, "checkpoint.epochs")[0]

    def _opened(self, epoch: int, passed_over: list[str]) -> folders.Checkpoint | None:
        """A checkpoint if it is intact on rank 0, else None."""
        found, problem = None, None
        if topology.world().rank == 0:
            try:
                found = folders.open_whole(self.directory, epoch)
            except OSError as error:
                problem = str(error)
        found, problem = topology.world().gather_descriptions([found, problem], "checkpoint.opened")[0]
        if problem is not None:
            passed_over.append(problem)
            return None
        opened = folders.Checkpoint(*found)
        if opened.of_servers:
            passed_over.append(f"{folders.path(self.directory, epoch)} was saved by sharded servers")
            return None
        return opened

    def _lost_with(self, found: folders.Checkpoint) -> str | None:
        """Why this rank's local variables, which only its own file holds, are not available; None if they are."""
        return self._own_problem(found) if self._has_local_variables() else None

    def _own_problem(self, found: folders.Checkpoint) -> str | None:
        """Why this rank's own files in a checkpoint cannot be used; None if they can, or are not needed."""
        folder = folders.path(self.directory, found.epoch)
        if found.ranks != topology.world().size:
            return f"{folder} was written by {found.ranks} ranks" if own_state.lost_elsewhere(self.model) else None
        try:
            for file in found.needed(folder):
                folders.check_file(found, checkpoint.own_path(file))
        except OSError as error:
            return str(error)
        return None

    def _has_local_variables(self) -> bool:
        return bool(local_variables(self.model))

    def _restore(self, found: folders.Checkpoint, passed_over: list[str]) -> None:
        folder = folders.path(self.directory, found.epoch)
        residuals = _paired(folder, found, self.required_exchanges())
        own_problem = self._own_problem(found)
        lacking = checkpoint.collect(own_problem, "checkpoint.lacking")
        _warn(*_sentences(folder, found, [each for each in passed_over if each not in lacking], lacking))
        self._build(found)
        self._load_weights(folder / folders.WEIGHTS)
        broadcasting.broadcast_state(self.model, 0, own_state.begins_afresh(self.model))
        self._take_up(residuals, use_own=own_problem is None)
        hooks.resume_at(self.model, found.epoch + 1)
        self._tell(folder, found.epoch + 1)

    def _take_up(self, residuals: Mapping[str, pathlib.Path], use_own: bool) -> None:
        lacking: list[str] = []
        exchanges = self.required_exchanges()
        for number, (path, file) in enumerate(residuals.items()):
            state = own_state.to_restore(self.model) if number == 0 else checkpoint.OwnState()
            taken = checkpoint.take_up(file, exchanges[path], state, use_own)
            lacking += [each for each in taken.lacking if each not in lacking]
            if number > 0:
                continue
            own_state.give(self.model, taken)
            earlier = own_state.of_earlier_files(self.model)
            if taken.own and not taken.named and earlier:
                _warn(f"{file} was written by an earlier version: {', and '.join(earlier)}.")
        if lacking:
            _warn(f"{_listed(lacking)}. {checkpoint.WITHOUT_OWN}")

    def _load_weights(self, path: pathlib.Path) -> None:
        problem = None
        if topology.world().rank == 0:
            try:
                self.model.load_weights(path)
            except Exception as error:  # the other ranks wait for what has become of it
                problem = f"{path} is intact but does not fit the model: {error}"
        checkpoint.raise_together(problem, "restore the checkpoint", ValueError)

    def _build(self, found: folders.Checkpoint) -> None:
        """Builds optimizers that are not built yet, on the variables that they had when they were saved."""
        problem = None
        if not self.model.built:
            problem = (
                "CheckpointCallback found a checkpoint, but the model is not built: give it an input shape, or call "
                "it on a batch, before fit."
            )
        checkpoint.raise_together(problem, "restore the checkpoint", ValueError)
        held = optimizers_of(self.model)
        for each in found.optimizers:
            if each["attribute"] in held:
                broadcasting.build_at(self.model, held[each["attribute"]], each["variables"])
        broadcasting.build_alike(self.model, list(held.values()))

    def _tell(self, folder: pathlib.Path, done: int) -> None:
        if not first_rank.is_here():
            return
        epochs = (self.params or {}).get("epochs")
        asked = "" if epochs is None else f" of {epochs}"
        _log.info("training resumes from %s, after %s%s epochs", folder, done, asked)
        if epochs is not None and done >= epochs:
            _log.info(
                "nothing is left to train: fit was asked for epochs=%s, and %s are done. Pass a larger number to go "
                "on, or another directory to start over",
                epochs,
                done,
            )


def claim(directory: pathlib.Path) -> None:
    """Claims a directory for this job, by rank 0; a collective.

    Raises:
        OSError: on every rank, if another job has claimed it, or it cannot be written.
    """
    problem = None
    if topology.world().rank == 0:
        try:
            claims.take(directory)
        except OSError as error:
            problem = error.strerror or str(error)
    checkpoint.raise_together(problem, "claim the directory of checkpoints")


def _paired(
    folder: pathlib.Path, found: folders.Checkpoint, exchanges: Mapping[str, GradientExchange]
) -> dict[str, pathlib.Path]:
    """The archive of residuals of each optimizer, by where the model has it.

    Raises:
        ValueError: if the checkpoint has other optimizers than the model.
    """
    if not found.optimizers:
        return {next(iter(exchanges)): folder / folders.RESIDUALS}
    saved = {each["attribute"]: each["residuals"] for each in found.optimizers}
    if set(saved) != set(exchanges):
        if len(saved) != 1 or len(exchanges) != 1:
            raise ValueError(
                f"{folder} holds the distributed optimizers {', '.join(saved)}, and the model has "
                f"{', '.join(exchanges)}: give it the same ones, as the same attributes."
            )
        saved = {path: residuals for path, residuals in zip(exchanges, saved.values(), strict=True)}
    begun = [path for path, residuals in saved.items() if residuals is not None]
    first = sorted(begun, key=lambda path: saved[path] != folders.RESIDUALS)  # which has each rank's own variables
    return {path: folder / saved[path] for path in first}


def _sentences(
    folder: pathlib.Path, found: folders.Checkpoint, passed_over: list[str], lacking: list[str]
) -> list[str]:
    """The warnings about the checkpoint from which training resumes."""
    told = []
    if passed_over:
        told.append(f"Skipped: {_listed(passed_over)}.")
    if lacking:
        told.append(f"{_listed(lacking)}. {checkpoint.WITHOUT_OWN}")
    return [f"Training resumes from {folder}.", *told] if told else []


def _listed(problems: list[str]) -> str:
    """The first of many problems."""
    return "; ".join(problems[:_MOST]) + (f"; and {len(problems) - _MOST} more" if len(problems) > _MOST else "")


def _warn(*sentences: str) -> None:
    """Warns, on rank 0 only, if there are any sentences."""
    if sentences:
        first_rank.warn(" ".join(sentences))

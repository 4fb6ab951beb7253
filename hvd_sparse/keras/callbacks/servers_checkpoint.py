"""A callback that saves the complete state of sharded servers and resumes from it."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from hvd_sparse.keras import checkpoint, hooks, servers_files
from hvd_sparse.keras.callbacks import folders
from hvd_sparse.keras.callbacks.checkpoint import claim
from hvd_sparse.keras.callbacks.servers import ServersCallback
from hvd_sparse.keras.callbacks.weights import write_weights
from hvd_sparse.servers.optimizer import served
from hvd_sparse.servers.participant import Participant
from hvd_sparse.servers.saving import Kept
from hvd_sparse.storage import claims, files
from hvd_sparse.transport import first_rank, topology


class ServersCheckpointCallback(ServersCallback):
    """Saves all that sharded servers need to continue, and resumes from the newest intact checkpoint in `fit`.

    At the end of rank 0's epochs all servers pause for a moment, in which each rank copies its shard of the parameters
    and of the optimizer's slots, and what its client has not sent and keeps; ranks need not be at the same step. Then
    each rank writes its file while training continues. A checkpoint is a folder `epoch-0007` in `directory`: these
    files, the model's weights written by rank 0, which Keras can load by itself, and a marker, written last, with the
    SHA-256 of each of them. All ranks have to share the directory.

    If any of its files is missing or damaged, all ranks resume from the previous checkpoint, and rank 0 warns. On
    another number of ranks, shards are cut again, the sum of what was not sent is kept, and momentum or slots of
    clients are reset; on the same number, everything is restored bit for bit. If servers already run, as in a second
    `fit`, nothing is read.

    Args:
        directory: the same on every rank, and shared by them.
        every: the number of rank 0's epochs from one checkpoint to the next.
        keep: the number of intact checkpoints to keep; older ones of ours are removed, other files are not.
        required: whether a missing checkpoint is an error instead of starting from scratch.

    Raises:
        FileNotFoundError: when `fit` begins, on every rank, if there is no intact checkpoint and one is required.
        OSError: on rank 0, if a checkpoint cannot be written, naming the rank that cannot; earlier ones stay. Or on
            every rank when `fit` begins, if another job is training with the same directory.
        ValueError: on every rank, if the model is not built, or is not the one that was saved.
    """

    def __init__(self, directory: str | os.PathLike, every: int = 1, keep: int = 2, required: bool = False):
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(f"Expected every and keep of at least 1, got {every} and {keep}.")
        self.directory = pathlib.Path(directory)
        self.every, self.keep, self.required = every, keep, required

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._participant.write_by(self._write_own)
        if self._participant.has_begun:
            if topology.rank() == 0:
                claims.take(self.directory)
            return
        passed_over: list[str] = []
        found = self._newest(passed_over)
        if found is None and self.required:
            why = "; ".join(passed_over) or "there are none"
            raise FileNotFoundError(f"{self.directory} has no intact checkpoint of servers to resume from: {why}.")
        claim(self.directory)
        if passed_over:
            goes_on = "Training starts over." if found is None else f"Training resumes from epoch {found.epoch}."
            first_rank.warn(f"Skipped: {'; '.join(passed_over)}. {goes_on}")
        if found is not None:
            self._restore(found)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if topology.rank() == 0 and (epoch + 1) % self.every == 0:
            self._save(epoch)

    @property
    def _participant(self) -> Participant:
        return served(self.model.optimizer)

    def _account(self) -> servers_files.Account:
        optimizer = self.model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        return servers_files.Account.of(inner, self.model.trainable_variables, self._participant.sends_updates)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        hooks.resume_at(self.model, None)
        claims.release(self.directory)

    # ---- saving ----

    def _save(self, epoch: int) -> None:
        """Saves a checkpoint; runs on rank 0, while the other ranks' servers write their files."""
        folder, ranks = folders.path(self.directory, epoch), topology.size()
        new = not os.path.exists(folder / folders.MARKER)
        try:
            digests = self._participant.member.connections.save(epoch)
            names = [files.of_rank(folder / folders.SERVERS, rank, ranks).name for rank in range(ranks)]
            written = dict(zip(names, digests, strict=True))
            written[folders.WEIGHTS] = write_weights(self.model, folder / folders.WEIGHTS)
            folders.write_marker(folder, epoch, ranks, written)
        except OSError:
            if new:  # an existing checkpoint keeps the files that were not replaced
                folders.discard(folder)
            raise
        folders.remove_before(self.directory, folders.oldest_kept(self.directory, epoch, self.keep))

    def _write_own(self, epoch: int, kept: Kept) -> str:
        """Writes a shard's file; called in a thread of the rank that serves the shard."""
        ranks = topology.size()
        path = files.of_rank(folders.path(self.directory, epoch) / folders.SERVERS, kept.shard, ranks)
        return servers_files.write(path, kept, self._account(), ranks)

    # ---- resuming ----

    def _newest(self, passed_over: list[str]) -> folders.Checkpoint | None:
        """The newest checkpoint that is intact on rank 0; problems of newer ones are added to the list."""
        found: folders.Checkpoint | None = None
        problem = None
        if topology.rank() == 0:
            try:
                found = self._look(passed_over)
            except OSError as error:
                problem = str(error)
        checkpoint.raise_together(problem, "look for checkpoints")
        told = topology.world().gather_descriptions([found, passed_over], "servers.checkpoint")[0]
        passed_over[:] = told[1]
        return None if told[0] is None else folders.Checkpoint(*told[0])

    def _look(self, passed_over: list[str]) -> folders.Checkpoint | None:
        for epoch in reversed(folders.epochs(self.directory)):
            try:
                found = folders.open_whole(self.directory, epoch)
            except OSError as problem:
                passed_over.append(str(problem))
                continue
            if found.of_servers:
                return found
            passed_over.append(f"{folders.path(self.directory, epoch)} was saved by a DistributedOptimizer")
        return None

    def _restore(self, found: folders.Checkpoint) -> None:
        folder = folders.path(self.directory, found.epoch)
        problem = None
        try:
            if not self.model.built:
                raise ValueError("the model is not built: give it an input shape, or call it on a batch, before fit")
            self.model.load_weights(folder / folders.WEIGHTS)
            who = servers_files.Rank(topology.rank(), topology.size(), self._participant.sends_all)
            self._participant.resume_with(servers_files.resumed(found.needed(folder), self._account(), who))
        except Exception as error:  # reported below, as the other ranks wait for the outcome
            problem = f"{type(error).__name__}: {error}"
        checkpoint.raise_together(problem, f"resume from {folder}", ValueError)
        self.model.optimizer.build(self.model.trainable_variables)
        hooks.resume_at(self.model, found.epoch + 1)

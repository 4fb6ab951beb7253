"""States whose commits are also written to disk, and read again when the next job starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hvd_sparse.keras.checkpoint import collect, raise_together
from hvd_sparse.keras.elastic import backups
from hvd_sparse.keras.elastic.backups import Backup
from hvd_sparse.keras.elastic.base import State
from hvd_sparse.keras.elastic.meetings import Meeting
from hvd_sparse.storage.archives import Archive
from hvd_sparse.transport import first_rank, topology

_log = logging.getLogger(__name__)


class BackedUpState(State):
    """What reads and writes backups; a subclass says what is in a commit."""

    _number: int  # of the newest commit
    _commits: dict[int, dict[str, Any]]
    _process: str  # identifies this process
    _meeting: Meeting | None

    def back_up(self) -> None:
        if self.backups is None:
            return
        problem = None
        try:
            self.backups.write(self._file(backups.whole), *self._packed(self._commits[self._number]))
        except OSError as error:
            problem = str(error)
        problems = collect(problem, "elastic.backed_up")  # also waits for all, as the launcher may end them with one
        if not first_rank.is_here():
            return
        directory = self.backups.directory
        if problems:
            _log.error("not all ranks have written commit %d to %s: %s", self._number, directory, "; ".join(problems))
        else:
            _log.info("the ranks have written commit %d to %s, and end.", self._number, directory)

    def back_up_alone(self) -> None:
        if self.backups is None or not self._commits[self._number]["ranks"]:
            return
        try:
            place = self._file(backups.rest)
            self.backups.write(place, *self._packed(self._commits[self._number], whole=True))
            _log.warning("this rank has written commit %d to %s.", self._number, self.backups.directory)
        except OSError as error:
            _log.error("commit %d could not be written: %s", self._number, error)

    def finish(self) -> None:
        if self.backups is None:
            return
        self.backups.wait()
        if topology.rank() == 0:
            self.backups.remove()
            self.backups.release()

    def _taken(self) -> dict[str, Any]:
        """A copy of everything, with the ranks, each as process and host, that made it together."""
        raise NotImplementedError

    def _give(self, taken: dict[str, Any]) -> None:
        """Restores what `_taken` has copied."""
        raise NotImplementedError

    def _packed(self, taken: dict[str, Any], whole: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The manifest and the arrays of this rank's file.

        Args:
            taken: a commit.
            whole: also pack what all ranks share, as rank 0 does.
        """
        raise NotImplementedError

    def _unpacked(self, parts: Mapping[int, Archive], own: Archive | None) -> dict[str, Any]:
        """What `_taken` had copied, as far as this rank is to have it; a collective.

        Args:
            parts: the files that this rank has read, by the numbers of the ranks that wrote them, ascending; all ranks
                together have read all files of a backup.
            own: the one that this rank goes on from, if there is one; rank 0's has what all share.
        """
        raise NotImplementedError

    def _file(self, kind: Callable[[int, int, int], Backup]) -> Backup:
        """Where this rank writes the last commit."""
        ranks = self._commits[self._number]["ranks"]
        return kind(self._number, [process for process, _ in ranks].index(self._process), len(ranks))

    def _claim(self, meeting: Meeting) -> None:
        """Claims the directory, on rank 0; a collective at the start of a job."""
        assert self.backups is not None
        problem = None
        try:
            if topology.rank() == 0:
                self.backups.claim()
        except OSError as error:
            problem = str(error)
        if meeting.is_start:
            raise_together(problem, "use the directory for backups")
        elif problem is not None:
            _log.warning("training goes on, but another job may write into %s: %s", self.backups.directory, problem)

    def _resume(self, meeting: Meeting) -> Meeting:
        """Takes up the newest intact backup when a job starts, and returns how ranks meet then; a collective."""
        assert self.backups is not None
        if not meeting.is_start:
            return meeting
        world, problem = topology.world(), None
        found: list[Backup] = []
        try:
            found = self.backups.found() if world.rank == 0 else []
        except OSError as error:
            problem = str(error)
        raise_together(problem, "look for backups")
        told = [Backup(*each) for each in world.gather_descriptions(found, "elastic.backups")[0]]
        if told:
            self._number = told[0].number  # so that no file of an earlier job gets into a new commit
            self._commits = {self._number: self._taken()}
        for backup in told:
            if backup.counts and (resumed := self._take_up(backup, meeting)) is not None:
                return resumed
        return meeting

    def _take_up(self, backup: Backup, meeting: Meeting) -> Meeting | None:
        """Makes training go on from a backup, as after a change of its ranks; None if it is damaged; a collective."""
        assert self.backups is not None
        world = topology.world()
        parts: dict[int, Archive] = {}
        problem = None
        try:
            for rank in backup.present[world.rank :: world.size]:
                parts[rank] = self.backups.read(backup, rank)
        except OSError as error:
            problem = str(error)
        told = [problem, [part.manifest["ranks"] for part in parts.values()]]
        everyone = world.gather_descriptions(told, "elastic.read")
        problems = [each for each, _ in everyone if each is not None]
        former = [ranks for _, listed in everyone for ranks in listed]
        if not problems and any(ranks != former[0] for ranks in former):
            problems = ["its files are of several commits"]
        if problems:
            first_rank.warn(f"Commit {backup.number} in {self.backups.directory} is passed over: {problems[0]}")
            return None
        own = parts.get(backup.present[world.rank]) if world.rank < len(backup.present) else None
        taken = self._unpacked(parts, own)
        self._commits = {self._number: taken}
        if own is not None:
            self._give(taken)
        gone = {rank: host for rank, (_, host) in enumerate(former[0]) if rank not in backup.present}
        joined = list(range(len(backup.present), world.size))
        resumed = Meeting(0, backup.ranks, joined, gone, meeting.ranks, from_disk=True)
        self._meeting = resumed  # `reset` looks at it
        if backup.ranks != world.size:
            self.on_reset()
        if first_rank.is_here():
            lost = ", ".join(f"rank {rank} of {host}" for rank, host in gone.items())
            without = f"; {lost} had not written" if lost else ""
            place = self.backups.directory
            _log.info(
                "training goes on from commit %d in %s, of %d ranks%s.", backup.number, place, backup.ranks, without
            )
        return resumed

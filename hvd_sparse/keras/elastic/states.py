"""What elastic training commits, restores and synchronises: Python objects and TensorFlow's variables."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hvd_sparse.horovod_api import encoding
from hvd_sparse.horovod_api.variables import broadcast_variables
from hvd_sparse.keras.elastic import backups
from hvd_sparse.keras.elastic.backed_up import BackedUpState
from hvd_sparse.keras.elastic.backups import Backups
from hvd_sparse.keras.elastic.base import State
from hvd_sparse.keras.elastic.copied import assign, copies, described, numbered, paired, require_same
from hvd_sparse.keras.elastic.meetings import Meeting, Member
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.storage.archives import Archive
from hvd_sparse.transport import host_names, topology
from hvd_sparse.transport.membership import HorovodObjectState, HostsUpdatedInterrupt


class ObjectState(HorovodObjectState, BackedUpState):
    """Python objects, as attributes: numbers, strings, arrays, and lists and dictionaries of them.

    With `backup_dir` commits are also written there, for the day on which no rank is left; the next job goes on from
    the last of them, with any number of ranks. They are removed when the function that trains has returned.

    Args:
        bcast_object: as for `State`.
        get_rank: as for `State`.
        backup_dir: a directory that all hosts share, and no other job uses.
        backup_seconds: how often a commit is written there while training goes on. Commits are also written when all
            ranks get SIGTERM, and by ranks that cannot go on because the others are lost.
        **kwargs: attributes and their values.

    Raises:
        ValueError: if `backup_seconds` is not positive; by `sync`, on every rank, if a backup is of another model.
        OSError: by `sync`, on every rank, if another job uses the directory, or if it cannot be read.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        backup_dir: str | os.PathLike | None = None,
        backup_seconds: float = 300.0,
        **kwargs: Any,
    ):
        State.__init__(self, bcast_object, get_rank)
        self.backups = None if backup_dir is None else Backups(backup_dir, backup_seconds)
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._number = 0  # of the newest commit
        self._commits: dict[int, dict[str, Any]] = {}
        self._process = secrets.token_hex(8)
        self._ranks: list[tuple[str, str]] = []  # process and host of each rank; empty before the first `sync`
        self._meeting: Meeting | None = None  # until `sync` uses it
        self.save()

    def save(self) -> None:
        """Copies everything to host memory, as a new commit."""
        kept = [self._commits[self._number]] if self._number in self._commits else []
        self._commits = dict(zip([self._number], kept, strict=False))
        self._number += 1
        self._commits[self._number] = self._taken()

    def commit(self) -> None:
        """Copies everything to host memory; raises HostsUpdatedInterrupt on all ranks if hosts come or go.

        A death makes training go on from the last commit that all ranks have. The one before is kept until all have
        this one.
        """
        self.save()
        try:
            all_write = self._check(self.backups is not None and self.backups.is_due())
        except HostsUpdatedInterrupt:
            self._commits = {self._number: self._commits[self._number]}
            raise
        self._commits = {self._number: self._commits[self._number]}
        if all_write and self.backups is not None:
            self.backups.write_beside(self._file(backups.whole), *self._packed(self._commits[self._number]))

    def restore(self) -> None:
        """Goes back to the last commit."""
        self._give(self._commits[self._number])

    def meet(self) -> None:
        together = [number for number, taken in self._commits.items() if taken["ranks"]]
        own = Member(self._process, host_names.own(), sorted(together))
        members = [Member(*each) for each in topology.world().gather_descriptions(own, "elastic.members")]
        agreed = min((each.commits[-1] for each in members if each.commits), default=None)
        # One that had just come when the ranks changed again may not have the commit that the others go back to.
        old = [rank for rank, each in enumerate(members) if agreed in each.commits]
        if topology.rank() in old and agreed != self._number:
            assert agreed is not None
            self._number = agreed
            self.restore()
        mine = self._commits[self._number]["ranks"]
        before = topology.world().gather_descriptions(mine, "elastic.before")[old[0]] if old else []
        stayed = {members[rank].process for rank in old}
        gone = {rank: host for rank, (process, host) in enumerate(before) if process not in stayed}
        joined = [rank for rank in range(len(members)) if rank not in old] if old else []
        ranks = [(each.process, each.host) for each in members]
        self._meeting = Meeting(old[0] if old else 0, len(before), joined, gone, ranks)

    def sync(self) -> None:
        """Gives all ranks everything of the first rank that was there before; a collective."""
        if self._meeting is None:
            self.meet()
        meeting = self._meeting
        assert meeting is not None
        if self.backups is not None:
            self._claim(meeting)
            meeting = self._resume(meeting)
        self._meeting = None
        self._share(meeting)
        self._number = topology.world().gather_descriptions(self._number, "elastic.number")[meeting.root]
        self._ranks = meeting.ranks
        self.save()

    def _share(self, meeting: Meeting) -> None:
        """Makes all ranks alike; a collective."""
        values = {name: getattr(self, name) for name in self._names}
        for name, value in self._broadcast(values, meeting.root).items():
            setattr(self, name, value)

    def _taken(self) -> dict[str, Any]:
        """A copy of everything."""
        objects = {name: copy.deepcopy(getattr(self, name)) for name in self._names}
        return {"objects": objects, "ranks": self._ranks}

    def _give(self, taken: dict[str, Any]) -> None:
        """Restores what `_taken` has copied."""
        for name, value in taken["objects"].items():
            setattr(self, name, copy.deepcopy(value))

    def _packed(self, taken: dict[str, Any], whole: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        is_first = taken["ranks"][0][0] == self._process
        objects = np.frombuffer(encoding.encode(taken["objects"]), np.uint8)
        manifest = {"ranks": taken["ranks"], "whole": whole or is_first}
        return manifest, {"objects": objects} if manifest["whole"] else {}

    def _unpacked(self, parts: Mapping[int, Archive], own: Archive | None) -> dict[str, Any]:
        objects = {}
        if own is not None and topology.rank() == 0:
            objects = encoding.decode(own.arrays["objects"].tobytes())
        return {"objects": objects, "ranks": []}


class TensorFlowState(ObjectState):
    """TensorFlow's or Keras's variables, and Python objects as attributes.

    Residuals are not among them: with a recipe that keeps some, use `TensorFlowKerasState`.

    Args:
        variables: the variables.
        session: has no effect.
        **kwargs: attributes and their values.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any):
        if variables is None:
            raise ValueError(
                "Expected the variables, as hvd.elastic.TensorFlowState([*model.variables, *optimizer.variables]), got "
                "none: TensorFlow 2 has no list of all variables."
            )
        self.variables: Sequence[Any] = list(variables)
        super().__init__(**kwargs)

    def _share(self, meeting: Meeting) -> None:
        super()._share(meeting)
        broadcast_variables([resource(each) for each in self.variables], meeting.root)

    def _taken(self) -> dict[str, Any]:
        return {**super()._taken(), "variables": copies(self.variables)}

    def _give(self, taken: dict[str, Any]) -> None:
        super()._give(taken)
        assign(taken["variables"])

    def _packed(self, taken: dict[str, Any], whole: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        manifest, arrays = super()._packed(taken, whole)
        if manifest["whole"]:
            manifest["variables"] = described(self.variables)
            arrays |= numbered(taken["variables"])
        return manifest, arrays

    def _unpacked(self, parts: Mapping[int, Archive], own: Archive | None) -> dict[str, Any]:
        whole = own if topology.rank() == 0 else None
        require_same(None if whole is None else whole.manifest["variables"], described(self.variables))
        variables = [] if whole is None else paired(self.variables, whole)
        return {**super()._unpacked(parts, own), "variables": variables}

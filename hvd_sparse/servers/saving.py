"""What a checkpoint holds of sharded servers, recorded while all of them stand still for a moment.

Servers stop applying pushes, each rank copies its shard and what its client has not sent, and servers go on; only then
are files written. Clients are not stopped: what they send meanwhile waits, and the answer shows whether a push was
applied before. So a checkpoint accounts for every gradient to the bit, as applied or as unsent, and no rank waits at a
barrier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from hvd_sparse.servers.messages import Entries
from hvd_sparse.servers.shard import Shard
from hvd_sparse.servers.state import State
from hvd_sparse.spec import Spec

_REST = 30.0  # seconds for a client to send what it has selected


class Kept(NamedTuple):
    """One rank's part of a checkpoint.

    Attributes:
        shard: its number.
        state: of this shard.
        unsent: [d] float32, what its client has not sent, or has sent but no server has applied.
        memory: the client's other state, by name.
    """

    shard: int
    state: State
    unsent: np.ndarray
    memory: Mapping[str, np.ndarray] = {}


class Resumed(NamedTuple):
    """What a rank resumes with.

    Attributes:
        state: of its shard.
        unsent: [d] float32, for its client to send; None if there is nothing.
        memory: the client's other state, by name; {} starts anew.
    """

    state: State
    unsent: np.ndarray | None
    memory: Mapping[str, np.ndarray] = {}


Write = Callable[[int, Kept], str]
"""Writes what a rank has, as part of a numbered checkpoint; gives the SHA-256 of the file."""


class Flight:
    """What a client has sent without an answer yet, and whether its residual is about to change; for several threads.

    From `begin` until `sends` a part of the residual is being moved into messages, and must not be read.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._choosing = self._watched = False
        self._number, self._parts = 0, list[Entries]()

    def begin(self) -> None:
        """The client is about to select what it sends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._watched)
            self._choosing = True

    def sends(self, number: int, parts: Sequence[Entries]) -> None:
        """The client has selected, and sends push `number`, a part to each server."""
        with self._changed:
            self._number, self._parts, self._choosing = number, list(parts), False
            self._changed.notify_all()

    def arrived(self) -> None:
        """All servers have answered it."""
        with self._changed:
            self._parts = []

    @contextmanager
    def watched(self) -> Iterator[tuple[int, list[Entries]]]:
        """The last push that the client has begun, and its unanswered parts; the client begins no other meanwhile.

        Raises:
            TimeoutError: if the client does not get to send what it selects.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._choosing, _REST):
                raise TimeoutError("a step has failed, and no other has followed")
            self._watched = True
        try:
            yield self._number, self._parts
        finally:
            with self._changed:
                self._watched = False
                self._changed.notify_all()


class Keeper:
    """Records a rank's part of a checkpoint, and has it written.

    Attributes:
        flight: the client's unanswered pushes.
        unsent: returns what the client has not sent, [d] float32; None if the shard has no client.
        memory: returns the client's other state.
        write: set by the code that saves.

    A rank may be asked to save as soon as it has joined, before its client is ready; saving waits for the client.
    """

    def __init__(self, shard: Shard, number: int, shards: Sequence[Spec]):
        """Takes a shard, its number, and those of all servers."""
        self._shard, self._number, self._shards = shard, number, tuple(shards)
        self._kept: Kept | None = None
        self.flight = Flight()
        self.unsent: Callable[[], np.ndarray] | None = None
        self.memory: Callable[[], Mapping[str, np.ndarray]] = dict
        self.write: Write | None = None
        self._begun = threading.Event()

    def begin(self) -> None:
        """The client has begun: the attributes have their final values."""
        self._begun.set()

    def keep(self, applied: Sequence[int]) -> None:
        """Records the current state, while all servers stand still.

        Args:
            applied: the last push of this rank's client that each server has applied.

        Raises:
            TimeoutError: if the client does not begin, or does not finish sending.
        """
        if not self._begun.wait(_REST):
            raise TimeoutError("this rank has joined, but its model has not started to train")
        state = self._shard.state()
        with self.flight.watched() as (number, parts):
            whole = np.zeros(sum(spec.size for spec in self._shards), np.float32)
            if self.unsent is not None:
                whole += self.unsent()
            memory = self.memory()
            for spec, part, last in zip(self._shards, parts, applied, strict=bool(parts)):
                if last < number:
                    own = whole[spec.offset : spec.offset + spec.size]
                    own[slice(None) if part.indices is None else part.indices] += part.values
        self._kept = Kept(self._number, state, whole, memory)

    def write_kept(self, number: int) -> str:
        """Writes what was recorded last; returns the file's SHA-256.

        Raises:
            RuntimeError: if this rank has nothing recorded, or nothing to write it with.
            OSError: if it cannot be written.
        """
        if self.write is None or self._kept is None:
            raise RuntimeError("this rank's model has no callback that writes checkpoints")
        kept, self._kept = self._kept, None
        return self.write(number, kept)

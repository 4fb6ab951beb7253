"""Files of sharded servers: one per rank, with its shard and what its client has not sent.

Any number of ranks can continue from them: shards are cut again, and the sum of what was not sent is kept. Other state
of clients, such as an optimizer's slots, is restored on the same number of ranks, and reset on another number.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse import spec
from hvd_sparse.exchange.state import GRADIENTS, WEIGHTS
from hvd_sparse.servers.saving import Kept, Resumed
from hvd_sparse.servers.state import State
from hvd_sparse.storage import archives

_STATE, _GATHERED, _UNSENT, _MEMORY = "state ", "gathered", "unsent", "client "
_PUSHED = {GRADIENTS: "gradients", WEIGHTS: "updates"}  # by unit


class Account(NamedTuple):
    """What must be the same for the ranks that save and the ranks that continue.

    Attributes:
        optimizer: the class of the optimizer.
        shapes: the shapes of the variables, in order. Names are ignored, as Keras numbers layers anew each time.
        unit: the unit of what is pushed: `GRADIENTS`, or `WEIGHTS` if clients run the optimizer.
    """

    optimizer: str
    shapes: list[list[int]]
    unit: str = GRADIENTS

    @classmethod
    def of(cls, optimizer: Any, variables: Sequence[Any], sends_updates: bool = False) -> Account:
        """The account of an optimizer and its variables, and of whether clients run it."""
        shapes = [list(variable.shape) for variable in variables]
        return cls(type(optimizer).__name__, shapes, WEIGHTS if sends_updates else GRADIENTS)

    @property
    def size(self) -> int:
        """The number of parameters d."""
        return sum(math.prod(shape) for shape in self.shapes)


class Rank(NamedTuple):
    """A rank that continues.

    Attributes:
        rank: its number.
        ranks: the number of ranks.
        sends_all: whether its client keeps nothing of a gradient, so that the server has to take what was not sent.
    """

    rank: int
    ranks: int
    sends_all: bool


def write(path: str | os.PathLike, kept: Kept, account: Account, ranks: int) -> str:
    """Writes the state of one of `ranks` ranks and returns the file's SHA-256; OSError if it cannot be written."""
    state = kept.state
    manifest = {
        "format": archives.FORMAT,
        "servers": {"shard": kept.shard, "ranks": ranks, **account._asdict()},
        "version": state.version,
        "pushes": state.pushes,
        "gathered": state.gathered_pushes,
    }
    arrays = {f"{_STATE}{name}": value for name, value in state.arrays.items()}
    arrays |= {f"{_MEMORY}{name}": value for name, value in kept.memory.items()}
    return archives.write(path, manifest, {**arrays, _GATHERED: state.gathered, _UNSENT: kept.unsent})


def resumed(paths: Sequence[pathlib.Path], account: Account, who: Rank) -> Resumed:
    """The state with which a rank continues.

    Args:
        paths: the files of all ranks that saved, in order.
        account: the account of the model and its optimizer.
        who: the rank that continues.

    Raises:
        OSError: if a file cannot be read or is damaged.
        ValueError: if it belongs to another model or optimizer.
    """
    ranges = spec.shards(account.size, len(paths))
    own = _Shard(spec.shards(account.size, who.ranks)[who.rank])
    left, memory = np.zeros(account.size, np.float32), dict[str, np.ndarray]()  # for this rank's client
    alike = len(paths) == who.ranks
    for saver, (path, theirs) in enumerate(zip(paths, ranges, strict=True)):
        manifest, arrays = _read(path, account)
        own.take(manifest, arrays, theirs)
        if alike and saver == who.rank:
            memory = _named(arrays, _MEMORY)
        if who.sends_all:
            own.gathered += arrays[_UNSENT][own.place]
        elif saver % who.ranks == who.rank:
            left += arrays[_UNSENT]
            if not alike:
                left[theirs.offset : theirs.offset + theirs.size] += arrays[_GATHERED]
    if not alike and not who.sends_all:
        own.gathered[:] = 0.0
    pushes = own.pushes if alike else own.pushes // len(paths) * who.ranks  # as many steps in a synchronous job
    state = State(own.arrays, own.gathered, own.gathered_pushes if alike else 0, own.version, pushes)
    return Resumed(state, None if who.sends_all else left, memory)


class _Shard:
    """A shard assembled from saved ones; its counts are those of the one that contributes most."""

    def __init__(self, own: spec.Shard):
        self._own = own
        self.place = slice(own.offset, own.offset + own.size)
        self.arrays: dict[str, np.ndarray] = {}
        self.gathered = np.zeros(own.size, np.float32)
        self.gathered_pushes = self.version = self.pushes = 0
        self._most = -1

    def take(self, manifest: dict[str, Any], arrays: dict[str, np.ndarray], theirs: spec.Shard) -> None:
        """Takes its part of a saved shard."""
        begin = max(self.place.start, theirs.offset)
        end = max(begin, min(self.place.stop, theirs.offset + theirs.size))
        here = slice(begin - self.place.start, end - self.place.start)
        there = slice(begin - theirs.offset, end - theirs.offset)
        self.gathered[here] += arrays[_GATHERED][there]
        named = _named(arrays, _STATE)
        for name, value in named.items():
            if value.ndim:
                self.arrays.setdefault(name, np.zeros(self._own.size, np.float32))[here] = value[there]
        if end - begin > self._most:
            self._most = end - begin
            self.arrays.update({name: value for name, value in named.items() if not value.ndim})
            self.version, self.pushes = manifest["version"], manifest["pushes"]
            self.gathered_pushes = manifest["gathered"]


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _read(path: pathlib.Path, account: Account) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest, arrays = archives.read(path)
    saved = manifest.get("servers")
    if saved is None:
        raise ValueError(f"{path} was not saved by sharded servers.")
    unit = saved.get("unit", GRADIENTS)
    if unit != account.unit:
        raise ValueError(
            f"{path} was saved with clients that pushed {_PUSHED[unit]}, and here they push {_PUSHED[account.unit]}: "
            "pass ShardedServers the push that it was saved with."
        )
    if Account(saved["optimizer"], saved["shapes"], unit) != account:
        raise ValueError(
            f"{path} was saved for another model or optimizer: it has {saved['optimizer']} and variables of "
            f"{saved['shapes'][:4]} ..., here are {account.optimizer} and {account.shapes[:4]} ..."
        )
    return manifest, arrays

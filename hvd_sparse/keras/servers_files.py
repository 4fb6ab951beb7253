"""Files of sharded servers: one for each rank, with its shard and what its client had not sent.

Any number of ranks can go on from them: shards are cut anew, and what was not sent keeps its sum. What clients remember
besides, as an optimizer's slots, goes on where there are as many of them, and begins anew on another number.
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
from hvd_sparse.keras import archives
from hvd_sparse.servers.saving import Kept, Resumed
from hvd_sparse.servers.state import State

_STATE, _GATHERED, _UNSENT, _MEMORY = "state ", "gathered", "unsent", "client "
_PUSHED = {GRADIENTS: "gradients", WEIGHTS: "updates"}  # by unit


class Account(NamedTuple):
    """What ranks that save and ranks that go on must have in common.

    Attributes:
        optimizer: its class.
        shapes: of the variables, in order. Their names are not looked at, as Keras numbers layers anew each time.
        unit: of what is pushed: `GRADIENTS`, or `WEIGHTS` where clients run the optimizer.
    """

    optimizer: str
    shapes: list[list[int]]
    unit: str = GRADIENTS

    @classmethod
    def of(cls, optimizer: Any, variables: Sequence[Any], sends_updates: bool = False) -> Account:
        """Of an optimizer and what it trains, and whether clients run it."""
        shapes = [list(variable.shape) for variable in variables]
        return cls(type(optimizer).__name__, shapes, WEIGHTS if sends_updates else GRADIENTS)

    @property
    def size(self) -> int:
        """The number of parameters d."""
        return sum(math.prod(shape) for shape in self.shapes)


class Rank(NamedTuple):
    """Who goes on.

    Attributes:
        rank: its number.
        ranks: how many there are.
        sends_all: whether its client keeps nothing of a gradient, so that the server has to take what was not sent.
    """

    rank: int
    ranks: int
    sends_all: bool


def write(path: str | os.PathLike, kept: Kept, account: Account, ranks: int) -> str:
    """Writes what one of so many ranks has; gives the SHA-256 of the file, OSError where it cannot be written."""
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
    """What a rank goes on with.

    Args:
        paths: the files of all ranks that saved, in their order.
        account: of the model and its optimizer.
        who: goes on.

    Raises:
        OSError: where a file cannot be read, or is damaged.
        ValueError: where it is of another model or optimizer.
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
    pushes = own.pushes if alike else own.pushes // len(paths) * who.ranks  # as many steps of a synchronous job
    state = State(own.arrays, own.gathered, own.gathered_pushes if alike else 0, own.version, pushes)
    return Resumed(state, None if who.sends_all else left, memory)


class _Shard:
    """A shard that is put together of those that were saved; its numbers are of the one that it has most of."""

    def __init__(self, own: spec.Shard):
        self._own = own
        self.place = slice(own.offset, own.offset + own.size)
        self.arrays: dict[str, np.ndarray] = {}
        self.gathered = np.zeros(own.size, np.float32)
        self.gathered_pushes = self.version = self.pushes = 0
        self._most = -1

    def take(self, manifest: dict[str, Any], arrays: dict[str, np.ndarray], theirs: spec.Shard) -> None:
        """Takes its part of a shard that was saved."""
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
    manifest, arrays, _ = archives.load(path)
    saved = manifest.get("servers")
    if saved is None:
        raise ValueError(f"{path} is no file of sharded servers.")
    unit = saved.get("unit", GRADIENTS)
    if unit != account.unit:
        raise ValueError(
            f"{path} is of clients that pushed {_PUSHED[unit]}, and here they push {_PUSHED[account.unit]}: give "
            "ShardedServers the push that it was saved with."
        )
    if Account(saved["optimizer"], saved["shapes"], unit) != account:
        raise ValueError(
            f"{path} is of another model or optimizer: it has {saved['optimizer']} and variables of "
            f"{saved['shapes'][:4]} ..., here are {account.optimizer} and {account.shapes[:4]} ..."
        )
    return manifest, arrays

"""Whether the ranks share the work of the norms: both ways are measured, and all ranks take the faster one."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from hvd_sparse.transport.communicator import Communicator

ALONE, NODE, WORLD = "each rank alone", "shared by the node", "shared by all ranks"
# The share of the time that sharing must save in the median, and the share of rounds in which it must be faster at all:
# anything less may be noise, and then sharing costs time.
MARGIN, OFTEN = 0.05, 0.8
LEAST, ROUNDS = 3, 15  # rounds that count
BUDGET = 1.0  # seconds after which no new round begins


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which ranks compute the norms, and why.

    Attributes:
        way: "each rank alone", "shared by the node", "shared by all ranks", or "shared as told".
        communicator: the ranks that share the work; None if it is not shared.
        milliseconds: the median over rounds for each way that was measured, where a round takes as long as its slowest
            rank.
        reason: the above in one line.
    """

    way: str
    communicator: Communicator | None
    milliseconds: Mapping[str, float]
    reason: str

    def __str__(self) -> str:
        return f"{self.way}: {self.reason}"


def world() -> Communicator | None:
    """All ranks; None if `hvd_sparse` was not started, or there is one rank."""
    # If hvd_sparse was not imported it was not started; do not import Horovod for this.
    topology: Any = sys.modules.get("hvd_sparse.topology")
    if topology is None or not topology.is_initialized():
        return None
    return topology.world() if topology.world().size > 1 else None


def ways() -> dict[str, Communicator | None]:
    """The available ways, by name; in the first, each rank computes everything."""
    found: dict[str, Communicator | None] = {ALONE: None}
    everyone = world()
    if everyone is None:
        return found
    topology: Any = sys.modules["hvd_sparse.topology"]
    node = topology.node()
    if node.size == everyone.size:
        return found | {WORLD: node}  # the ranks of one host exchange through memory
    if node.size > 1:
        found[NODE] = node
    return found | {WORLD: everyone}


def measure(
    candidates: Mapping[str, Communicator | None],
    run: Callable[[Communicator | None, str], Any],
    everyone: Communicator,
    name: str,
) -> dict[str, list[float]]:
    """Times all ways in turn, on all ranks at once; a collective.

    Ranks of one host compete for its cores and memory, so what counts is the time until the slowest has finished.

    Args:
        candidates: the ways, by name; the same on every rank.
        run: called as run(communicator, name of its collective); does the work and returns tensors; traced once for
            each way.
        everyone: all ranks.
        name: collectives are named after it.

    Returns:
        Milliseconds of each round, by name; the same on every rank.
    """
    functions = [
        tf.function(functools.partial(run, communicator, f"{name}.{number}"), autograph=False)
        for number, communicator in enumerate(candidates.values())
    ]
    timing: Any = sys.modules["hvd_sparse.transport.timing"]  # it is there where communicators are

    def one_round() -> list[float]:
        return [timing.slowest(everyone, function, name) for function in functions]

    one_round()  # traces the functions and allocates memory
    rounds: list[list[float]] = []
    while len(rounds) < LEAST or (len(rounds) < ROUNDS and np.sum(rounds) < BUDGET):
        rounds.append(one_round())
    return {name: [1e3 * taken[place] for taken in rounds] for place, name in enumerate(candidates)}


def choose(candidates: Mapping[str, Communicator | None], rounds: Mapping[str, Sequence[float]]) -> Choice:
    """The fastest way; sharing only if it wins clearly, and in nearly all rounds.

    Args:
        candidates: the ways, by name, the one without sharing first.
        rounds: milliseconds by name, from `measure`.
    """
    alone = next(iter(candidates))
    milliseconds = {name: float(np.median(taken)) for name, taken in rounds.items()}
    best = min(candidates, key=milliseconds.__getitem__)
    wins = np.mean(np.less(rounds[best], rounds[alone]))
    clear = milliseconds[best] <= (1 - MARGIN) * milliseconds[alone] and wins >= OFTEN
    way = best if clear else alone
    others = ", ".join(f"{other} {taken:.3g} ms" for other, taken in milliseconds.items() if other != way)
    reason = f"{milliseconds[way]:.3g} ms for the norms of a step; {others}"
    if way == alone != best:
        reason += f" (faster in {wins:.0%} of the rounds: too little to tell from noise)"
    return Choice(way, candidates[way], milliseconds, reason)

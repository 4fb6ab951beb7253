"""Ranks as threads that use the library by its public names, as a script under horovodrun does.

`tests/threads.py` runs the ranks. Here `hvd.rank`, `hvd.size` and whatever asks for the grid of the ranks get the
answer of the thread that asks, and broadcasts go through the threads' communicators.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hvd_sparse.horovod_api import objects, variables
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Grid
from tests import threads

_here = threading.local()


def run(ranks: int, local_size: int, function: Callable[[int], Any]) -> list[Any]:
    """Calls a function with each rank's number, all at the same time, and returns the results by rank.

    Raises:
        tests.threads.RanksFailed: if any rank raises.
    """

    def one_rank(grid: Grid) -> Any:
        _here.grid = grid
        return function(grid.world.rank)

    with _answering():
        return threads.run(ranks, local_size, one_rank)


def gather(value: Any, name: str) -> list[Any]:
    """The values of all ranks, in rank order; a collective."""
    return topology.world().gather_descriptions(value, name)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Context in which the topology is that of the thread that asks."""
    answers = {
        "grid": lambda: _here.grid,
        "rank": lambda: _here.grid.world.rank,
        "size": lambda: _here.grid.world.size,
        "local_rank": lambda: _here.grid.node.rank,
        "local_size": lambda: _here.grid.node.size,
        "cross_rank": lambda: _here.grid.cross.rank,
        "cross_size": lambda: _here.grid.cross.size,
        "is_initialized": lambda: True,
    }
    replaced = {getattr(topology, name): answer for name, answer in answers.items()}
    replaced[variables.broadcast_variables] = _broadcast_variables
    replaced[objects.broadcast_object] = _broadcast_object
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("hvd_sparse", "lars")]
    places = [
        (module, name, value)
        for module in modules
        for name, value in list(vars(module).items())
        if callable(value) and _hashable(value) and value in replaced
    ]
    for module, name, value in places:
        setattr(module, name, replaced[value])
    try:
        yield
    finally:
        for module, name, value in places:
            setattr(module, name, value)


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def _broadcast_object(value: Any, root_rank: int = 0) -> Any:
    """As `hvd.broadcast_object`, between threads, of what JSON can express."""
    return topology.world().gather_descriptions(value, "broadcast.object")[root_rank]


def _broadcast_variables(entries: Any, root_rank: int, process_set: Any = None, inplace: bool = False) -> None:
    """As `hvd.broadcast_variables`, between threads."""
    world = topology.world()
    held = [resource(each) for each in entries]
    kinds = [[each.dtype.name, *each.shape.as_list()] for each in held]
    world.agree({"variables": kinds}, "the variables to broadcast", "broadcast.agree")
    for number, variable in enumerate(held):
        variable.assign(world.broadcast(variable.read_value(), root_rank, f"broadcast.{number}"))

"""Horovod's start-up, and the grid of nodes and ranks.

`init` starts Horovod and arranges the P ranks as m nodes of n ranks (CommLib 3.2): `node()` is the process set of this
rank's node, `cross()` the process set of the ranks at the same position in their nodes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse.transport import (
    background_loop,
    devices,
    host_names,
    joining,
    lost,
    membership,
    nodes,
    process_sets,
    shared_memory,
    stalls,
)
from hvd_sparse.transport.communicator import Communicator, Grid, LoneCommunicator
from hvd_sparse.transport.eager import eagerly
from hvd_sparse.transport.horovod_communicator import FUSION_BYTES, HorovodCommunicator
from hvd_sparse.transport.launcher_store import RanksMissingError, Store, forget_addresses
from hvd_sparse.transport.process_sets import ProcessSet, global_process_set
from hvd_sparse.transport.processes import Process

__all__ = [
    "HorovodCommunicator",
    "ProcessSet",
    "cross",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grid",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "node",
    "nodes_are_given",
    "rank",
    "restart",
    "shutdown",
    "size",
    "world",
]


_grid: Grid | None = None
_given = False  # whether the nodes are those of `local_size`
_nodes: dict[tuple[int, ...], Communicator] = {}
_asked: tuple[Any, int | None] = (None, None)  # the process sets and the `local_size` of the last `init`
_starts = 0  # of Horovod, by `init`: the same on every rank, unless ranks come and go
_start_name = "0"  # of the last one, among scopes of the launcher's store: the same on every rank
_Sets = Iterable[ProcessSet | Sequence[int]] | str | None
_log = logging.getLogger(__name__)
_Gather = Callable[[Communicator, Any, str], list[Any]]


@tf.autograph.experimental.do_not_convert
def init(comm: Sequence[int] | None = None, process_sets: _Sets = None, local_size: int | None = None) -> None:
    """Starts Horovod, if it is not started yet, and arranges its ranks as nodes.

    On a host with several GPUs, TensorFlow sees only this rank's from then on, the one whose number is `local_rank`,
    and allocates its memory as it is needed. HVD_SPARSE_PIN_GPU=0, or selecting GPUs before, leaves this to the script.

    Args:
        comm: None, or the list of all ranks. Other communicators raise an error.
        process_sets: a list of `ProcessSet`, or of lists of ranks, the same on every rank; or "dynamic" to allow adding
            them later.
        local_size: n, the number of ranks per node; the default is the environment variable HVD_SPARSE_LOCAL_SIZE, and
            without it the number of ranks that Horovod started on each host. A smaller number lets one host stand for
            several nodes; it must divide the number of ranks on every host. To call `init` again with another one, call
            `shutdown` first, or set HOROVOD_DYNAMIC_PROCESS_SETS=1 from the start. Without `local_size`, sparse recipes
            send everything if all ranks are on one host.

    Raises:
        ValueError: on every rank, if hosts have unequal numbers of ranks, `local_size` does not divide them or differs
            between ranks, a host's name resolves to its loopback address, `comm` does not consist of all ranks, the
            process sets differ between ranks or are invalid, or a host has several GPUs but not one for each rank.
        RuntimeError: on every rank, if Horovod was started for other nodes than these; or if a rank does not call
            `init` within HVD_SPARSE_START_TIMEOUT seconds (600 by default), or cannot be reached.
    """
    global _asked
    _asked = (process_sets, local_size)
    eagerly(lambda: _init(comm, process_sets, local_size))


def _init(comm: Sequence[int] | None, wanted: _Sets, local_size: int | None) -> None:
    global _given, _grid
    if comm is not None and not isinstance(comm, Sequence):
        raise ValueError(
            f"Expected comm to be None or the list of all ranks, got {type(comm).__name__}: start only the ranks that "
            "are to train, and group them with process_sets=."
        )
    own, dynamic = process_sets.asked_for(wanted)
    place = _place(comm, local_size, own)
    if background_loop.has_ended():  # a rank was lost
        shutdown()
    starts = not _horovod.is_initialized()
    places = _start(place, own, dynamic) if starts else None
    devices.pin(_horovod.local_rank())
    everyone = list(range(_horovod.size()))
    world_communicator = (
        HorovodCommunicator("world", everyone, _horovod.rank(), global_process_set)
        if len(everyone) > 1
        else LoneCommunicator("world")
    )
    gather = _gather_by_store if starts else _gather_by_horovod
    places = places or gather(world_communicator, place, "places")
    if starts:
        forget_addresses()  # all ranks are connected
        gather(world_communicator, None, "forgotten")
    _require_everyone(places, starts)
    process_sets.require_same([place["process_sets"] for place in places])
    rows = _rows(places)
    devices.require_enough(places)
    _given = places[0]["local_size"] is not None
    _grid = Grid(
        world_communicator,
        _node(rows, world_communicator, gather),
        _communicator("cross", nodes.columns(rows), world_communicator),
    )
    for process_set in own:
        process_sets.make_ready(process_set)
    stalls.start(_horovod.rank(), len(everyone), f"hvd_sparse_stalls.{_start_name}")
    located = [lost.Place(each["host"], Process(*each["process"])) for each in places]
    lost.start(_horovod.rank(), located, f"hvd_sparse_lost.{_start_name}")
    if starts and len(everyone) > 1 and _horovod.rank() == 0:
        _report(_grid, nodes.told_uneven(rows, places))


def _report(started: Grid, uneven: str | None) -> None:
    """Logs what runs where in one line: as a warning if gradients leave the GPU that computes them.

    Others say that hosts are uneven, and what follows from a Horovod that cannot end process sets without all ranks.
    """
    selects, sends = devices.selects_on_gpu(), devices.reads_gpus()
    carrier = "NCCL" if sends else "MPI" if _horovod.mpi_enabled() else "Gloo"
    inside = "shared memory" if isinstance(started.node, shared_memory.SharedMemoryCommunicator) else carrier
    ways = ((started.cross, f"by {carrier} between nodes"), (started.node, f"by {inside} inside nodes"))
    _log.log(
        logging.WARNING if devices.has_gpu() and not (selects and sends) else logging.INFO,
        "%d ranks, %d on each node; the model computes on the %s, gradients are selected on the %s and exchanged %s. "
        "`python -m hvd_sparse.doctor` says what could be faster.",
        started.world.size,
        started.node.size,
        "GPU" if devices.has_gpu() else "CPU",
        "GPU" if selects else "CPU",
        " and ".join(way for group, way in ways if group.size > 1),
    )
    if uneven:
        _log.warning(uneven)
    if 1 < started.node.size < started.world.size and background_loop.ended_function() is None:
        _log.warning(
            "this Horovod was not built by tools/horovod/build_wheel.sh: should a rank die, all others are ended by a "
            "signal (SIGABRT), without an error that says which one."
        )


def _start(place: dict[str, Any], own: Sequence[ProcessSet], dynamic: bool) -> list[dict[str, Any]] | None:
    """Starts Horovod with the process sets that all ranks know in advance; otherwise so that they can be added later.

    The latter makes Horovod ask all ranks for new sets in each of its cycles, so that a small message takes two to
    three times as long.

    Returns:
        The places of all ranks, if all of them know them by then.
    """
    global _start_name, _starts
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(FUSION_BYTES))
    _forget()
    membership.beat()
    while True:
        _starts += 1
        again = membership.is_elastic() and _starts > 1
        if again:
            membership.renew()
        try:
            places = _places_ahead(place, membership.JOINING if again else math.inf)
            _start_name = places[0]["start"] if places else str(_starts)
            with membership.started_again() if again else contextlib.nullcontext():
                _start_horovod(place, places, own, dynamic)
            return places
        except RanksMissingError as error:
            if not membership.is_elastic():
                raise
            _log.warning("the ranks start once more: %s", error)


def _start_horovod(
    place: dict[str, Any], places: list[dict[str, Any]] | None, own: Sequence[ProcessSet], dynamic: bool
) -> None:
    host_names.check([each["names"] for each in places or [place]])
    rows = None if dynamic or process_sets.is_dynamic() or places is None else _arranged(places)
    if rows is None:
        process_sets.start([], dynamic=True)
        return
    count, every_group = sum(map(len, rows)), [*rows, *nodes.columns(rows)]
    groups = {tuple(group) for group in every_group if 1 < len(group) < count}
    process_sets.start([each for each in own if process_sets.can_be(each, count)], groups)


def _place(comm: Sequence[int] | None, local_size: int | None, own: Sequence[ProcessSet]) -> dict[str, Any]:
    """Where this process runs and what it asks for, to compare with the others."""
    return {
        **nodes.place(local_size),
        "names": host_names.describe(),
        "process": Process.own(),
        "comm": [int(each) for each in comm or ()],
        "process_sets": [each.ranks for each in own],
        "gpus": devices.selectable(),
        "start": secrets.token_hex(4),
    }


def _places_ahead(place: dict[str, Any], patience: float) -> list[dict[str, Any]] | None:
    """The places of all ranks, as all know them before Horovod starts; None if they cannot know."""
    start = "elastic" if membership.is_elastic() else str(_starts)  # the driver empties its store at each change
    store, size = Store.of_job(f"hvd_sparse_places.{start}"), int(os.environ.get("HOROVOD_SIZE", "1"))
    if store is None:
        return None
    return store.everyone(int(os.environ["HOROVOD_RANK"]), size, place, patience)


def _arranged(places: Sequence[dict[str, Any]]) -> list[list[int]] | None:
    """As `nodes.arrange`, but None if that fails: the error is raised once ranks are connected."""
    try:
        process_sets.require_same([place["process_sets"] for place in places])
        return _rows(places)
    except ValueError:
        return None


def _rows(places: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The ranks of each node; each rank is a node of its own if hosts come and go and are uneven."""
    try:
        return nodes.arrange(places)
    except nodes.UnevenError:
        if not membership.is_elastic():
            raise
        return [[rank] for rank in range(len(places))]


def _gather_by_horovod(group: Communicator, value: Any, name: str) -> list[Any]:
    """Collects a value from every rank of a group, however late they come; initialises TensorFlow."""
    return group.gather_descriptions(value, f"topology.{name}")


def _gather_by_store(group: Communicator, value: Any, name: str) -> list[Any]:
    """Collects a value from every rank of a group while they start; without TensorFlow, if they have a store."""
    store = Store.of_job(f"hvd_sparse_{name}.{_start_name}.{group.ranks[0]}")
    if store is None or group.size == 1:
        return _gather_by_horovod(group, value, name)
    return store.gather(group.world_rank, group.ranks, value)


def _require_everyone(places: Sequence[dict[str, Any]], started: bool) -> None:
    wrong = [place["comm"] for place in places if place["comm"] and sorted(place["comm"]) != list(range(len(places)))]
    if not wrong:
        return
    if started:
        shutdown()
    raise ValueError(
        f"Expected comm to be None or the list of all ranks, got {wrong[0]} of {len(places)} ranks: start only the "
        "ranks that are to train, and group them with process_sets=."
    )


def shutdown() -> None:
    """Stops Horovod; `init` may start it again."""
    global _grid
    _grid = None
    stalls.stop()
    lost.stop()
    _forget()
    _horovod.shutdown()


def restart() -> None:
    """Stops Horovod, and starts it as the last `init` did, with the ranks that there are now."""
    shutdown()
    init(None, *_asked)


def is_initialized() -> bool:
    """Whether `init` has been called and `shutdown` has not."""
    return _grid is not None and _horovod.is_initialized()


def grid() -> Grid:
    """The grid of all ranks; a grid of one if neither `init` nor Horovod was started."""
    if _grid is not None:
        return _grid
    if _horovod.is_initialized():
        raise RuntimeError(
            "Horovod was started, but hvd_sparse was not: call hvd_sparse.init() instead of Horovod's init()."
        )
    return Grid.lone()


def world() -> Communicator:
    """All ranks."""
    return grid().world


def node() -> Communicator:
    """The ranks of this rank's node."""
    return grid().node


def cross() -> Communicator:
    """The ranks at this rank's position in their nodes, one of each node, in rank order."""
    return grid().cross


def nodes_are_given() -> bool:
    """Whether the number of ranks per node was given, by `local_size` or its environment variable, and not found."""
    return _grid is not None and _given


def rank() -> int:
    """This process's number among all, 0 to P - 1."""
    _require_init()
    return _horovod.rank()


def size() -> int:
    """The number of ranks P."""
    _require_init()
    return _horovod.size()


def local_rank() -> int:
    """This process's number on its host (not on its node, if `local_size` splits a host), for pinning a GPU."""
    _require_init()
    return _horovod.local_rank()


def local_size() -> int:
    """The number of ranks on this host."""
    _require_init()
    return _horovod.local_size()


def cross_rank() -> int:
    """The number of this host among the hosts, as Horovod counts them."""
    _require_init()
    return _horovod.cross_rank()


def cross_size() -> int:
    """The number of hosts, as Horovod counts them."""
    _require_init()
    return _horovod.cross_size()


def _require_init() -> None:
    if not is_initialized():
        raise ValueError("hvd_sparse has not been initialized; call hvd_sparse.init() first.")


def _communicator(name: str, groups: Sequence[Sequence[int]], world_communicator: Communicator) -> Communicator:
    """This rank's group in a partition of all ranks; every rank registers every group, in the same order."""
    me = world_communicator.world_rank
    mine = next(group for group in groups if me in group)
    if len(mine) == 1:
        return LoneCommunicator(name, me)
    sets = [process_sets.of_grid(group) for group in groups]
    own_set = sets[[list(group) for group in groups].index(list(mine))]
    return HorovodCommunicator(name, mine, list(mine).index(me), own_set)


def _node(rows: Sequence[Sequence[int]], world_communicator: Communicator, gather: _Gather) -> Communicator:
    """This rank's node; its ranks are on one host."""
    carrier = _communicator("node", rows, world_communicator)
    if carrier.ranks not in _nodes:
        _nodes[carrier.ranks] = shared_memory.connect(carrier, "neighbours", gather)
    return _nodes[carrier.ranks]


def _forget() -> None:
    """Drops what is useless once Horovod has stopped."""
    joining.allow_join()
    process_sets.forget()
    for node_communicator in _nodes.values():
        shared_memory.disconnect(node_communicator)
    _nodes.clear()

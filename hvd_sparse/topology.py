"""Horovod's start-up and the grid of nodes and ranks; the only file that imports Horovod.

`init` starts Horovod and arranges the P ranks as m nodes of n ranks (CommLib 3.2): `node()` is the process set
of this rank's node, `cross()` the process set of the ranks that have the same place in their nodes.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse import host_names, ops, shared_memory
from hvd_sparse.communicator import Communicator, Grid, LoneCommunicator

Compression = _horovod.Compression
Average, Sum, Min, Max, Product, Adasum = (
    _horovod.Average,
    _horovod.Sum,
    _horovod.Min,
    _horovod.Max,
    _horovod.Product,
    _horovod.Adasum,
)
allreduce = _horovod.allreduce
allgather = _horovod.allgather
alltoall = _horovod.alltoall
broadcast = _horovod.broadcast
broadcast_variables = _horovod.broadcast_variables
gloo_built = _horovod.gloo_built
mpi_built = _horovod.mpi_built
nccl_built = _horovod.nccl_built
start_timeline = _horovod.start_timeline
stop_timeline = _horovod.stop_timeline

_OPS = {"sum": _horovod.Sum, "min": _horovod.Min, "max": _horovod.Max}
_REDUCTIONS = {"sum": tf.reduce_sum, "min": tf.reduce_min, "max": tf.reduce_max}
LOCAL_SIZE_VARIABLE = "HVD_SPARSE_LOCAL_SIZE"
FUSION_BYTES = str(2**20)  # our buckets need no fusion, which copies them in and out and makes them wait for each other


class HorovodCommunicator(Communicator):
    """A Horovod process set."""

    def __init__(self, name: str, ranks: Sequence[int], rank: int, process_set: _horovod.ProcessSet):
        super().__init__(name, ranks, rank)
        self._process_set = process_set
        with tf.init_scope():
            self._never_written = tf.Variable(0, trainable=False, name=f"{name}_never_written")

    @property
    def process_set(self) -> _horovod.ProcessSet:
        """For those of Horovod's own functions that take one."""
        return self._process_set

    def _common(self, name: str) -> dict[str, Any]:
        return {"name": f"{self.name}.{name}", "ignore_name_scope": True, "process_set": self._process_set}

    def _allreduce(self, tensor, op, name):
        if tensor.dtype == tf.bfloat16:
            return self._allreduce_bfloat16(tensor, op, name)
        return _horovod.allreduce(self._unknown(tensor), op=_OPS[op], **self._common(name))

    def _allgather(self, tensor, name, lengths):
        return _values(_horovod.allgather(self._unknown(_carried(tensor)), **self._common(name)), tensor.dtype)

    def _alltoall(self, tensor, splits, name):
        sent = self._unknown(_carried(tensor))
        received, _ = _horovod.alltoall(sent, tf.constant(splits, tf.int32), **self._common(name))
        return _values(received, tensor.dtype)

    def _broadcast(self, tensor, root, name):
        sent = self._unknown(_carried(tensor))
        return _values(_horovod.broadcast(sent, self.ranks[root], **self._common(name)), tensor.dtype)

    def _unknown(self, tensor):
        """The same tensor, but never a constant, which TensorFlow would exchange when it optimises the graph."""
        return tensor if tf.executing_eagerly() else ops.unknown(tensor, self._never_written)

    def _allreduce_bfloat16(self, tensor, op, name):
        """Each rank reduces a shard, in float32: Horovod cannot add bfloat16. As many bytes as a ring sends."""
        flat = tf.reshape(tensor, [-1])
        each = -(-flat.shape[0] // self.size)
        padded = tf.pad(flat, [[0, each * self.size - flat.shape[0]]])
        rows = tf.reshape(self._alltoall(padded, [each] * self.size, f"{name}.scatter"), [self.size, each])
        reduced = tf.cast(_REDUCTIONS[op](tf.cast(rows, tf.float32), axis=0), tf.bfloat16)
        return tf.reshape(self._allgather(reduced, f"{name}.gather", None)[: flat.shape[0]], tensor.shape)


def _carried(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a dtype that Horovod moves: bfloat16 travels as its bits."""
    return tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor


def _values(carried: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What was carried, in its own dtype again."""
    return tf.bitcast(carried, dtype) if dtype == tf.bfloat16 else carried


_grid: Grid | None = None
_process_sets: dict[tuple[int, ...], _horovod.ProcessSet] = {}
_nodes: dict[tuple[int, ...], Communicator] = {}


def init(local_size: int | None = None) -> None:
    """Starts Horovod, where it is not started yet, and arranges its ranks as nodes.

    Args:
        local_size: ranks per node n; the default is the environment variable HVD_SPARSE_LOCAL_SIZE, and
            without it the number of ranks that Horovod started on each host. A smaller number lets one host
            stand for several nodes; it must divide the number of ranks on every host.

    Raises:
        ValueError: on every rank alike: where hosts have unequal numbers of ranks, `local_size` does not divide
            them or differs between ranks, or a host's name resolves to its loopback address.
    """
    global _grid
    if not _horovod.is_initialized():
        host_names.check()
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", FUSION_BYTES)
        _horovod.init()
        _forget()
    everyone = list(range(_horovod.size()))
    world_set = _horovod.global_process_set
    world_communicator = (
        HorovodCommunicator("world", everyone, _horovod.rank(), world_set)
        if len(everyone) > 1
        else LoneCommunicator("world")
    )
    places = world_communicator.gather_descriptions(_place(local_size), "topology.places")
    nodes = arrange(places)
    columns = [list(column) for column in zip(*nodes, strict=True)]
    _grid = Grid(
        world_communicator,
        _node(nodes, world_communicator),
        _communicator("cross", columns, world_communicator),
    )


def shutdown() -> None:
    """Stops Horovod; `init` may start it again."""
    global _grid
    _grid = None
    _forget()
    _horovod.shutdown()


def is_initialized() -> bool:
    """Whether `init` has been called and `shutdown` has not."""
    return _grid is not None and _horovod.is_initialized()


def grid() -> Grid:
    """The grid of all ranks; a grid of one where neither `init` nor Horovod was started."""
    if _grid is not None:
        return _grid
    if _horovod.is_initialized():
        raise RuntimeError(
            "Horovod was started, but hvd_sparse was not: call hvd_sparse.init() in place of horovod's init()."
        )
    return Grid.lone()


def world() -> Communicator:
    """All ranks."""
    return grid().world


def node() -> Communicator:
    """The ranks of this rank's node."""
    return grid().node


def cross() -> Communicator:
    """The ranks that have this rank's place in their nodes, one of each node, in node order."""
    return grid().cross


def rank() -> int:
    """This process's number among all, 0 to P - 1."""
    _require_init()
    return _horovod.rank()


def size() -> int:
    """The number of ranks P."""
    _require_init()
    return _horovod.size()


def local_rank() -> int:
    """This process's number on its host (not on its node, where `local_size` splits a host), for pinning a GPU."""
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


def arrange(places: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Groups the world ranks into nodes of equal size.

    Args:
        places: for each world rank its `host` and the `local_size` that was asked for, or None.

    Returns:
        The world ranks of each node, the nodes in the order of their first ranks.

    Raises:
        ValueError: where the ranks ask for different sizes or the nodes would be unequal.
    """
    asked = {place["local_size"] for place in places}
    if len(asked) > 1:
        by_rank = ", ".join(f"rank {rank}: {place['local_size']}" for rank, place in enumerate(places))
        raise ValueError(
            f"The ranks disagree on local_size ({by_rank}): pass the same hvd.init(local_size=...) and the same "
            f"{LOCAL_SIZE_VARIABLE} on every rank."
        )
    hosts: dict[str, list[int]] = collections.defaultdict(list)
    for world_rank, place in enumerate(places):
        hosts[place["host"]].append(world_rank)
    counts = ", ".join(f"{host}: {len(ranks)}" for host, ranks in hosts.items())
    wanted = asked.pop()
    if wanted is None and len({len(ranks) for ranks in hosts.values()}) > 1:
        raise ValueError(
            f"The nodes are of unequal size ({counts} ranks): start the same number of ranks on every host, or pass "
            "hvd.init(local_size=n) with an n that divides them all."
        )
    per_node = wanted if wanted is not None else len(hosts[places[0]["host"]])
    if per_node < 1 or any(len(ranks) % per_node for ranks in hosts.values()):
        raise ValueError(
            f"local_size = {per_node} does not divide the number of ranks on every host ({counts}): choose a divisor "
            f"in hvd.init(local_size=...) or {LOCAL_SIZE_VARIABLE}, or leave it out."
        )
    return [ranks[start : start + per_node] for ranks in hosts.values() for start in range(0, len(ranks), per_node)]


def _place(local_size: int | None) -> dict[str, Any]:
    """Where this process runs and what it asks for, to be compared with the others."""
    if local_size is None and os.environ.get(LOCAL_SIZE_VARIABLE):
        text = os.environ[LOCAL_SIZE_VARIABLE]
        # An unreadable number must reach every rank, so it travels as 0 and is refused by all.
        local_size = int(text) if text.isdigit() else 0
    return {"host": host_names.own(), "local_size": local_size}


def _communicator(name: str, groups: Sequence[Sequence[int]], world_communicator: Communicator) -> Communicator:
    """This rank's group out of a partition of all ranks; every rank registers every group, in the same order."""
    me = world_communicator.world_rank
    mine = next(group for group in groups if me in group)
    if len(mine) == 1:
        return LoneCommunicator(name, me)
    sets = [_process_set(group) for group in groups]
    own_set = sets[[list(group) for group in groups].index(list(mine))]
    return HorovodCommunicator(name, mine, list(mine).index(me), own_set)


def _node(nodes: Sequence[Sequence[int]], world_communicator: Communicator) -> Communicator:
    """This rank's node; its ranks are on one host."""
    carrier = _communicator("node", nodes, world_communicator)
    if carrier.ranks not in _nodes:
        _nodes[carrier.ranks] = shared_memory.connect(carrier, "topology.neighbours")
    return _nodes[carrier.ranks]


def _forget() -> None:
    """Drops what is of no use once Horovod has stopped."""
    _process_sets.clear()
    for node_communicator in _nodes.values():
        shared_memory.disconnect(node_communicator)
    _nodes.clear()


def _process_set(ranks: Sequence[int]) -> _horovod.ProcessSet:
    key = tuple(ranks)
    if len(key) == _horovod.size():
        return _horovod.global_process_set
    if key not in _process_sets:
        _process_sets[key] = _horovod.add_process_set(list(key))
    return _process_sets[key]

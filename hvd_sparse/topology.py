"""Horovod's start-up and the grid of nodes and ranks; the only file that imports Horovod.

`init` starts Horovod and arranges the P ranks as m nodes of n ranks (CommLib 3.2): `node()` is the process set
of this rank's node, `cross()` the process set of the ranks that have the same place in their nodes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse import host_names, nodes, shared_memory
from hvd_sparse.communicator import Communicator, Grid, LoneCommunicator, unknown
from hvd_sparse.rendezvous import Store, forget_addresses

Compression = _horovod.Compression
Average, Sum, Min, Max, Product, Adasum = (
    _horovod.Average,
    _horovod.Sum,
    _horovod.Min,
    _horovod.Max,
    _horovod.Product,
    _horovod.Adasum,
)
ProcessSet = _horovod.ProcessSet
global_process_set = _horovod.global_process_set
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
_FEW = 1024  # elements of all ranks together, up to which gathering is faster than reducing
DYNAMIC_VARIABLE = "HOROVOD_DYNAMIC_PROCESS_SETS"
FUSION_BYTES = str(2**20)  # our buckets need no fusion, which copies them in and out and makes them wait for each other


class HorovodCommunicator(Communicator):
    """A Horovod process set."""

    def __init__(self, name: str, ranks: Sequence[int], rank: int, process_set: _horovod.ProcessSet):
        super().__init__(name, ranks, rank)
        self._process_set = process_set
        self._background: _BackgroundCommunicator | None = None
        with tf.init_scope():
            self._never_written = tf.Variable(0, trainable=False, name=f"{name}_never_written")

    @property
    def process_set(self) -> _horovod.ProcessSet:
        """For those of Horovod's own functions that take one."""
        return self._process_set

    def in_background(self):
        if self._background is None:
            self._background = _BackgroundCommunicator(self)
        return self._background

    def _common(self, name: str) -> dict[str, Any]:
        return {"name": f"{self.name}.{name}", "ignore_name_scope": True, "process_set": self._process_set}

    def _allreduce(self, tensor, op, name):
        if tensor.dtype == tf.bfloat16:
            return self._allreduce_bfloat16(tensor, op, name)
        if self._is_faster_gathered(tensor):
            return _REDUCTIONS[op](self._allgather(tensor[tf.newaxis], name, None), axis=0)
        return _horovod.allreduce(self._unknown(tensor), op=_OPS[op], **self._common(name))

    def _allgather(self, tensor, name, lengths):
        return _values(_horovod.allgather(self._unknown(_carried(tensor)), **self._common(name)), tensor.dtype)

    def _alltoall(self, tensor, splits, name):
        sent = self._unknown(_carried(tensor))
        received, _ = _horovod.alltoall(sent, tf.constant(splits, tf.int32), **self._common(name))
        return _values(received, tensor.dtype)

    def _alltoall_ragged(self, tensor, splits, name):
        received, lengths = _horovod.alltoall(self._unknown(_carried(tensor)), splits, **self._common(name))
        return _values(received, tensor.dtype), lengths

    def _broadcast(self, tensor, root, name):
        sent = self._unknown(_carried(tensor))
        return _values(_horovod.broadcast(sent, self.ranks[root], **self._common(name)), tensor.dtype)

    def _is_faster_gathered(self, tensor):
        """Of few elements: half the messages that wait for each other.

        Not in eager code, where Horovod knows operations by their kind alone: an all-reduce that meets another rank's
        all-gather is told as a stall there, and two all-gathers would take each other's values.
        """
        elements = tensor.shape.num_elements() or _FEW + 1
        return elements * self.size <= _FEW and not tf.executing_eagerly()

    def _unknown(self, tensor):
        """The same tensor, but never a constant, which TensorFlow would exchange when it optimises the graph."""
        return tensor if tf.executing_eagerly() else unknown(tensor, self._never_written)

    def _allreduce_bfloat16(self, tensor, op, name):
        """Each rank reduces a shard, in float32: Horovod cannot add bfloat16. As many bytes as a ring sends."""
        flat = tf.reshape(tensor, [-1])
        each = -(-flat.shape[0] // self.size)
        padded = tf.pad(flat, [[0, each * self.size - flat.shape[0]]])
        rows = tf.reshape(self._alltoall(padded, [each] * self.size, f"{name}.scatter"), [self.size, each])
        reduced = tf.cast(_REDUCTIONS[op](tf.cast(rows, tf.float32), axis=0), tf.bfloat16)
        return tf.reshape(self._allgather(reduced, f"{name}.gather", None)[: flat.shape[0]], tensor.shape)


class _BackgroundCommunicator(HorovodCommunicator):
    """The same process set for eager calls that are in flight together.

    An operation that runs eagerly has no name of its own: TensorFlow calls it after its kind, and Horovod refuses
    two of one name. So each call runs as a function, made once for each name, whose operation has that name.
    """

    def __init__(self, foreground: HorovodCommunicator):
        super().__init__(foreground.name, foreground.ranks, foreground.rank, foreground.process_set)
        self._functions: dict[Any, Any] = {}

    def in_background(self):
        return self

    def _allreduce(self, tensor, op, name):
        return self._named(("allreduce", name, op), super()._allreduce, [tensor], op, name)

    def _allgather(self, tensor, name, lengths):
        return self._named(("allgather", name), super()._allgather, [tensor], name, lengths)

    def _alltoall(self, tensor, splits, name):
        return self._named(("alltoall", name, *splits), super()._alltoall, [tensor], splits, name)

    def _alltoall_ragged(self, tensor, splits, name):
        return self._named(("alltoall_ragged", name), super()._alltoall_ragged, [tensor, splits], name)

    def _broadcast(self, tensor, root, name):
        return self._named(("broadcast", name, root), super()._broadcast, [tensor], root, name)

    def _named(self, key: tuple[Any, ...], call: Any, tensors: list[tf.Tensor], *arguments: Any) -> Any:
        if not tf.executing_eagerly():
            return call(*tensors, *arguments)
        specs = [tf.TensorSpec([None, *each.shape[1:]] if each.shape.rank else [], each.dtype) for each in tensors]
        key = (*key, *specs)
        if key not in self._functions:
            traced = tf.function(lambda *tensors: call(*tensors, *arguments), specs, autograph=False, jit_compile=False)
            self._functions[key] = traced
        return self._functions[key](*tensors)


def _carried(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a dtype that Horovod moves: bfloat16 travels as its bits."""
    return tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor


def _values(carried: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What was carried, in its own dtype again."""
    return tf.bitcast(carried, dtype) if dtype == tf.bfloat16 else carried


_grid: Grid | None = None
_process_sets: dict[tuple[int, ...], _horovod.ProcessSet] = {}
_nodes: dict[tuple[int, ...], Communicator] = {}
_starts = 0  # of Horovod, by `init`: the same on every rank


def init(local_size: int | None = None) -> None:
    """Starts Horovod, where it is not started yet, and arranges its ranks as nodes.

    Args:
        local_size: ranks per node n; the default is the environment variable HVD_SPARSE_LOCAL_SIZE, and
            without it the number of ranks that Horovod started on each host. A smaller number lets one host
            stand for several nodes; it must divide the number of ranks on every host. To call `init` again with
            another one, call `shutdown` before, or have HOROVOD_DYNAMIC_PROCESS_SETS=1 set from the start.

    Raises:
        ValueError: on every rank alike: where hosts have unequal numbers of ranks, `local_size` does not divide
            them or differs between ranks, or a host's name resolves to its loopback address.
        RuntimeError: on every rank alike: where Horovod was started for other nodes than these.
    """
    global _grid
    starts = not _horovod.is_initialized()
    if starts:
        host_names.check()
        _start(local_size)
    everyone = list(range(_horovod.size()))
    world_set = _horovod.global_process_set
    world_communicator = (
        HorovodCommunicator("world", everyone, _horovod.rank(), world_set)
        if len(everyone) > 1
        else LoneCommunicator("world")
    )
    places = world_communicator.gather_descriptions(nodes.place(local_size), "topology.places")
    if starts:
        forget_addresses()  # all are connected: they have met
        world_communicator.gather_descriptions(None, "topology.forgotten")
    rows = nodes.arrange(places)
    _grid = Grid(
        world_communicator,
        _node(rows, world_communicator),
        _communicator("cross", nodes.columns(rows), world_communicator),
    )


def _start(local_size: int | None) -> None:
    """Starts Horovod with the process sets of the grid where it is known before, else so that it takes them later.

    The latter lets Horovod ask all ranks for new sets in each of its cycles, by which a small message takes two to
    three times as long.
    """
    global _starts
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", FUSION_BYTES)
    _forget()
    _starts += 1
    rows = None if _is_dynamic() else _rows_ahead(local_size)
    if rows is None:
        os.environ.setdefault(DYNAMIC_VARIABLE, "1")
        _horovod.init()
        return
    groups = {tuple(group) for group in [*rows, *nodes.columns(rows)] if 1 < len(group) < sum(map(len, rows))}
    sets = {group: _horovod.ProcessSet(list(group)) for group in sorted(groups)}
    _horovod.init(process_sets=list(sets.values()))
    _process_sets.update(sets)


def _rows_ahead(local_size: int | None) -> list[list[int]] | None:
    """The world ranks of each node, as all ranks know them before Horovod starts; None where they cannot."""
    store, size = Store.of_job(f"hvd_sparse_places.{_starts}"), int(os.environ.get("HOROVOD_SIZE", "1"))
    if store is None:
        return None
    store.put(os.environ["HOROVOD_RANK"], nodes.place(local_size))
    return store.verdict(size, _arranged)


def _arranged(places: Sequence[dict[str, Any] | None]) -> list[list[int]] | None:
    """As `nodes.arrange`, None where that cannot be: what is wrong is told once ranks are connected."""
    try:
        return None if None in places else nodes.arrange([place for place in places if place])
    except ValueError:
        return None


def _is_dynamic() -> bool:
    return os.environ.get(DYNAMIC_VARIABLE, "0") not in ("", "0")


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


def _communicator(name: str, groups: Sequence[Sequence[int]], world_communicator: Communicator) -> Communicator:
    """This rank's group out of a partition of all ranks; every rank registers every group, in the same order."""
    me = world_communicator.world_rank
    mine = next(group for group in groups if me in group)
    if len(mine) == 1:
        return LoneCommunicator(name, me)
    sets = [_process_set(group) for group in groups]
    own_set = sets[[list(group) for group in groups].index(list(mine))]
    return HorovodCommunicator(name, mine, list(mine).index(me), own_set)


def _node(rows: Sequence[Sequence[int]], world_communicator: Communicator) -> Communicator:
    """This rank's node; its ranks are on one host."""
    carrier = _communicator("node", rows, world_communicator)
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
        if not _is_dynamic():
            raise RuntimeError(
                f"Horovod was started for other nodes than one with the ranks {list(key)}: start it by "
                "hvd_sparse.init(local_size=...), after hvd_sparse.shutdown() where it is running; or set "
                f"{DYNAMIC_VARIABLE}=1 from the start, with which small messages take two to three times as long."
            )
        _process_sets[key] = _horovod.add_process_set(list(key))
    return _process_sets[key]

"""Collectives among the ranks of one host, through memory that all of them have mapped.

Horovod's Gloo uses TCP over the loopback device, which costs several copies and system calls. Here a rank writes each
piece directly into the receiver's memory, where the receiver uses it in place.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.transport import background_loop
from hvd_sparse.transport.communicator import Communicator, unknown
from hvd_sparse.transport.devices import reads_gpus

SWITCH_VARIABLE = "HVD_SPARSE_SHARED_MEMORY"
_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8, tf.int8)


class SharedMemoryCommunicator(Communicator):
    """Sends point-to-point data through shared memory, and leaves the rest to another communicator.

    Args:
        carrier: the same ranks; it carries all-reduce, broadcast, and all-gather of unknown lengths.
        group: its number in the native library (ops/shared_memory/shared_memory.h).
    """

    def __init__(self, carrier: Communicator, group: int):
        super().__init__(carrier.name, carrier.ranks, carrier.rank)
        self.group = group
        self._carrier: Any = carrier
        self._background: SharedMemoryCommunicator | None = None

    @property
    def process_set(self) -> Any:
        """The carrier's process set, for Horovod's own functions."""
        return self._carrier.process_set

    def in_background(self):
        carrier = self._carrier.in_background()
        if carrier is self._carrier:
            return self
        if self._background is None:
            self._background = SharedMemoryCommunicator(carrier, self.group)
        return self._background

    def _allreduce(self, tensor, op, name):
        return self._carrier._allreduce(tensor, op, name)

    def _allreduce_each(self, tensors, op, name):
        return self._carrier._allreduce_each(tensors, op, name)

    def _broadcast(self, tensor, root, name):
        return self._carrier._broadcast(tensor, root, name)

    def _allgather(self, tensor, name, lengths):
        if lengths is None or tensor.dtype not in _DTYPES:
            return self._carrier._allgather(tensor, name, lengths)
        before = sum(lengths[: self.rank])
        return self._exchange(
            tensor,
            name,
            starts=[0] * self.size,
            lengths=[lengths[self.rank]] * self.size,
            offsets=[before] * self.size,
            rows=sum(lengths),
        )

    def _alltoall(self, tensor, splits, name):
        if tensor.dtype not in _DTYPES:
            return self._carrier._alltoall(tensor, splits, name)
        return self._exchange(
            tensor,
            name,
            starts=[sum(splits[:rank]) for rank in range(self.size)],
            lengths=splits,
            offsets=[self.rank * split for split in splits],
            rows=self.size * splits[self.rank],
        )

    def _alltoall_ragged(self, tensor, splits, name):
        if tensor.dtype not in _DTYPES:
            return self._carrier._alltoall_ragged(tensor, splits, name)
        shape = tensor.shape[1:]
        received, lengths = ops.library().hvd_sparse_shared_exchange_ragged(
            vector=self._unknown(tf.reshape(tensor, [-1])),
            splits=splits,
            group=self.group,
            channel=f"{self.name}.{name}",
            me=self.rank,
            width=shape.num_elements(),
        )
        return tf.reshape(received, [tf.reduce_sum(lengths), *shape]), lengths

    def _unknown(self, tensor):
        """The same tensor, but never a constant, whose collective TensorFlow would run when it optimises the graph."""
        return tensor if tf.executing_eagerly() else unknown(tensor)

    def _exchange(
        self,
        tensor: tf.Tensor,
        name: str,
        starts: Sequence[int],
        lengths: Sequence[int],
        offsets: Sequence[int],
        rows: int,
    ) -> tf.Tensor:
        """Sends each rank a run of rows, to the place in its memory where it wants them (shared_memory.h)."""
        shape = tensor.shape[1:]
        width = shape.num_elements()
        received = ops.library().hvd_sparse_shared_exchange(
            vector=self._unknown(tf.reshape(tensor, [-1])),
            group=self.group,
            channel=f"{self.name}.{name}",
            starts=[width * start for start in starts],
            lengths=[width * length for length in lengths],
            offsets=[width * offset for offset in offsets],
            received_size=width * rows,
        )
        return tf.reshape(received, [rows, *shape])


def connect(
    carrier: Communicator,
    name: str,
    gather: Callable[[Communicator, Any, str], list[Any]] = Communicator.gather_descriptions,
) -> Communicator:
    """Lets ranks of one host exchange data through memory, if all of them can; a collective.

    Args:
        carrier: ranks of one host.
        name: the same on every rank, unique among the collectives in flight.
        gather: collects a JSON-serialisable object from every rank of a group, as `gather_descriptions` does.

    Returns:
        A `SharedMemoryCommunicator`; or the carrier if a rank has HVD_SPARSE_SHARED_MEMORY=0, if processes may not open
        each other's memory (other users, other process namespaces), or if TensorFlow has a GPU and Horovod was built
        with NCCL, which exchanges its gradients without the host.
    """
    if carrier.size == 1:
        return carrier
    wanted = os.environ.get(SWITCH_VARIABLE, "1") != "0" and not reads_gpus()
    address = np.zeros(3, np.int64)  # zeros mean that this rank has none
    group = _native().hvds_neighbours_open(carrier.size, carrier.rank, address.ctypes) if wanted else 0
    addresses = np.array(gather(carrier, address.tolist(), f"{name}.addresses"), np.int64)
    joined = addresses[:, 0].all() and _native().hvds_neighbours_join(group, addresses.ctypes) == 0
    if all(gather(carrier, bool(joined), f"{name}.joined")):
        _native().hvds_neighbours_watch(group, _patience(), background_loop.address())
        return SharedMemoryCommunicator(carrier, group)
    _native().hvds_neighbours_close(group)
    return carrier


def disconnect(communicator: Communicator) -> None:
    """Leaves the other ranks, if connected; exchanges that still run fail, here and there."""
    if isinstance(communicator, SharedMemoryCommunicator):
        _native().hvds_neighbours_close(communicator.group)


def _patience() -> float:
    """Seconds after which a rank that stands still is lost: those after which Gloo gives up, too."""
    text = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "")
    return float(text) if text.isdigit() else 30.0


@functools.cache
def _native() -> ctypes.CDLL:
    kernels = ops.kernels()
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    kernels.hvds_neighbours_open.argtypes = [ctypes.c_int32, ctypes.c_int32, pointer]
    kernels.hvds_neighbours_open.restype = number
    kernels.hvds_neighbours_join.argtypes = [number, pointer]
    kernels.hvds_neighbours_watch.argtypes = [number, ctypes.c_double, pointer]
    kernels.hvds_neighbours_close.argtypes = [number]
    return kernels

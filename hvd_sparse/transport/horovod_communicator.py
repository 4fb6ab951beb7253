"""The groups of ranks whose messages Horovod carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse.transport.communicator import Communicator, unknown

_OPS = {"sum": _horovod.Sum, "min": _horovod.Min, "max": _horovod.Max}
_REDUCTIONS = {"sum": tf.reduce_sum, "min": tf.reduce_min, "max": tf.reduce_max}
FUSION_BYTES = 2**20  # Horovod must not fuse larger tensors: they would be copied, and wait for the last one
_FEW = 1024  # elements of all ranks together up to which gathering is faster than reducing


class HorovodCommunicator(Communicator):
    """A Horovod process set."""

    def __init__(self, name: str, ranks: Sequence[int], rank: int, process_set: _horovod.ProcessSet):
        super().__init__(name, ranks, rank)
        self._process_set = process_set
        self._background: _BackgroundCommunicator | None = None

    @property
    def process_set(self) -> _horovod.ProcessSet:
        """The process set, for those of Horovod's own functions that take one."""
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

    def _allreduce_each(self, tensors, op, name):
        # Never gathered, however few elements they have: no caller waits for them.
        sent = [self._unknown(tensor) for tensor in _joined(tensors)]
        reduced = [
            _horovod.allreduce(tensor, op=_OPS[op], **self._common(f"{name}.{number}"))
            for number, tensor in enumerate(sent)
        ]
        return _parted(reduced, tensors)

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
        """For few elements: it halves the number of messages that wait for each other.

        Not in eager code, where Horovod identifies operations only by their kind: an all-reduce that meets another
        rank's all-gather is reported as a stall there, and two all-gathers would swap their values.
        """
        elements = tensor.shape.num_elements() or _FEW + 1
        return elements * self.size <= _FEW and not tf.executing_eagerly()

    def _unknown(self, tensor):
        """The same tensor, but never a constant, whose collective TensorFlow would run when it optimises the graph.

        A TensorFlow 1 graph runs in a session, in which this variable has no value.
        """
        return unknown(tensor) if tf.inside_function() else tensor

    def _allreduce_bfloat16(self, tensor, op, name):
        """Each rank reduces a shard, in float32: Horovod cannot add bfloat16. It sends as many bytes as a ring."""
        flat = tf.reshape(tensor, [-1])
        each = -(-flat.shape[0] // self.size)
        padded = tf.pad(flat, [[0, each * self.size - flat.shape[0]]])
        rows = tf.reshape(self._alltoall(padded, [each] * self.size, f"{name}.scatter"), [self.size, each])
        reduced = tf.cast(_REDUCTIONS[op](tf.cast(rows, tf.float32), axis=0), tf.bfloat16)
        return tf.reshape(self._allgather(reduced, f"{name}.gather", None)[: flat.shape[0]], tensor.shape)


class _BackgroundCommunicator(HorovodCommunicator):
    """The same process set for eager calls that are in flight together.

    An operation that runs eagerly has no name of its own: TensorFlow names it after its kind, and Horovod refuses two
    of the same name. So each call runs as a function, made once for each name, whose operation has that name.
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


def _is_small(tensor: tf.Tensor) -> bool:
    elements = tensor.shape.num_elements()  # None if the graph does not know
    return elements is not None and elements * tensor.dtype.size < FUSION_BYTES


def _joined(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The large tensors, and all small ones joined end to end."""
    small = [tf.reshape(tensor, [-1]) for tensor in tensors if _is_small(tensor)]
    return [*(tensor for tensor in tensors if not _is_small(tensor)), *([tf.concat(small, 0)] if small else [])]


def _parted(joined: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits what `_joined` has joined."""
    small = [tensor for tensor in tensors if _is_small(tensor)]
    pieces = iter(tf.split(joined[-1], [tensor.shape.num_elements() for tensor in small]) if small else [])
    large = iter(joined)
    return [tf.reshape(next(pieces), each.shape) if _is_small(each) else next(large) for each in tensors]


def _carried(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a dtype that Horovod can send: bfloat16 as its bits."""
    return tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor


def _values(carried: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Restores the dtype of what `_carried` has converted."""
    return tf.bitcast(carried, dtype) if dtype == tf.bfloat16 else carried

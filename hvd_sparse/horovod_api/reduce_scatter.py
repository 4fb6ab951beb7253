"""Reduce-scatter as an all-to-all and a sum in rank order, because Horovod's own through Gloo is unreliable."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse.horovod_api.inputs import not_a_constant

_SUMMED_AS = {tf.float16: tf.float32}  # rounded once, not at each addition


class ReduceScatter(NamedTuple):
    """How values are combined and scattered.

    Attributes:
        op: Horovod's Average or Sum.
        before: factor applied before the sum.
        after: factor applied to the result.
        process_set: the ranks that take part.
        name: of the operations, or None.
        ignore_name_scope: name them without TensorFlow's name scopes.
    """

    op: int
    before: float
    after: float
    process_set: Any
    name: str | None
    ignore_name_scope: bool

    def scatter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """This rank's rows of the sums or means of tensors of one dtype, [length, ...] each; one message to each rank.

        Steps and bytes sent per rank: P - 1 and (P - 1) / P of the tensors; before that a message without values, with
        which Horovod compares shapes and dtypes.
        """
        if any(tensor.shape.rank == 0 for tensor in tensors):
            raise ValueError("Expected values of at least one dimension, split by rows among the ranks, got a scalar.")

        @tf.custom_gradient
        def scattered(*values: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            return self._scatter(values), lambda *gradients: [self._gradient(each) for each in gradients]

        return list(scattered(*tensors))

    @property
    def _common(self) -> dict[str, Any]:
        return {"process_set": self.process_set, "ignore_name_scope": self.ignore_name_scope}

    def _scatter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        size, rank = self.process_set.size(), self.process_set.rank()
        # Sent along, though it has no elements: an optimised graph drops a reduction that only has control edges.
        compared = [tf.reshape(each, [-1]) for each in self._compare(tensors)]
        scaled = [_scale(tensor, self.before) for tensor in tensors]
        shares = [_share(tensor, size) for tensor in tensors]  # rows of each tensor for each rank
        pieces = [tf.split(tensor, rows, num=size) for tensor, rows in zip(scaled, shares, strict=True)]
        by_rank = [[tf.reshape(of_tensor[to], [-1]) for of_tensor in pieces] for to in range(size)]
        lengths = tf.stack([tf.add_n([tf.size(piece) for piece in sent]) for sent in by_rank])
        flat = tf.concat([*compared, *(piece for sent in by_rank for piece in sent)], axis=0)
        received, _ = _horovod.alltoall(flat, lengths, name=self.name and f"{self.name}_pieces", **self._common)
        own = [of_tensor[rank] for of_tensor in pieces]
        whole = self._combine(tf.reshape(received, [size, lengths[rank]]), size)
        parts = tf.split(whole, [tf.size(each) for each in own], num=len(own))
        return [
            tf.ensure_shape(tf.reshape(part, tf.shape(each)), each.shape) for part, each in zip(parts, own, strict=True)
        ]

    def _compare(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Has Horovod compare the shapes and dtypes of all ranks, with tensors of these shapes but without elements."""
        shapes = [tf.concat([[0], tf.shape(tensor)], axis=0) for tensor in tensors]
        empty = [not_a_constant(tf.zeros(shape, each.dtype)) for shape, each in zip(shapes, tensors, strict=True)]
        name = self.name and f"{self.name}_shapes"
        return _horovod.grouped_allreduce(empty, op=_horovod.Sum, name=name, **self._common)

    def _combine(self, rows: tf.Tensor, size: int) -> tf.Tensor:
        wide = tf.cast(rows, _SUMMED_AS.get(rows.dtype, rows.dtype))
        total = functools.reduce(operator.add, tf.unstack(wide, size))
        return tf.cast(_scale(total, self.after / size if self.op == _horovod.Average else self.after), rows.dtype)

    def _gradient(self, gradient: tf.Tensor) -> tf.Tensor:
        """As Horovod defines it: the gradient of a sum is multiplied by P."""
        factor = self.before * self.after * (self.process_set.size() if self.op == _horovod.Sum else 1)
        return _horovod.allgather(_scale(gradient, factor), **self._common)


def _share(tensor: tf.Tensor, size: int) -> tf.Tensor:
    """The number of rows that each rank gets; the first ranks get one more if they do not divide evenly."""
    length = tf.shape(tensor)[0]
    return length // size + tf.cast(tf.range(size) < length % size, tf.int32)


def _scale(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """A product, rounded to the tensor's dtype; integers are truncated, as in Horovod."""
    if factor == 1.0:
        return tensor
    wide = tf.float32 if tensor.dtype in (tf.float16, tf.float32) else tf.float64
    return tf.cast(tf.cast(tensor, wide) * factor, tensor.dtype)

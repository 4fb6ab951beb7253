"""The layout of variables in flat buckets, in the order in which their gradients become ready.

Many small vectors cost many round trips, and selection among few elements is poor; one large vector is ready only
when the last gradient is. So gradients of one dtype are concatenated in buckets: the first one is small, so that its
exchange starts early in the backward pass, the later ones are large.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid

MIB = 2**20
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB
LEAST_BUCKET_BYTES = 1 * MIB
DENSE_BUCKETS = 8

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"


class Bucket(NamedTuple):
    """Gradients of one dtype, concatenated."""

    dtype: tf.DType
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return sum(segment.size for segment in self.segments)

    def spec(self, name: str, number: int, grid: Grid, in_flight: int = 1) -> Spec:
        """The description of this bucket for an aggregator."""
        return Spec(self.size, grid, self.dtype, self.segments, name, number, in_flight)

    def pack(self, gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Concatenates this bucket's gradients to a vector [size]."""
        flat = [tf.reshape(gradients[segment.name], [segment.size]) for segment in self.segments]
        return flat[0] if len(flat) == 1 else tf.concat(flat, 0)

    def unpack(self, vector: tf.Tensor) -> dict[str, tf.Tensor]:
        """Splits a vector [size] into tensors of the variables' shapes.

        TensorFlow does not copy slices that begin and end at multiples of 64 bytes, as most do: sizes of layers are
        multiples of 16. `tf.split` would copy each piece.
        """
        if len(self.segments) == 1:
            return {self.segments[0].name: tf.reshape(vector, self.segments[0].shape)}
        pieces, begin = {}, 0
        for segment in self.segments:
            pieces[segment.name] = tf.reshape(tf.slice(vector, [begin], [segment.size]), segment.shape)
            begin += segment.size
        return pieces


class Plan(NamedTuple):
    """How a set of gradients is exchanged.

    Attributes:
        buckets: the dense gradients, in the order in which they are exchanged.
        slices: the variables whose gradients are `tf.IndexedSlices`, exchanged row by row, with their dtypes.
        order: the names of all variables in the order of the model.
    """

    buckets: tuple[Bucket, ...]
    slices: tuple[tuple[Segment, tf.DType], ...]
    order: tuple[str, ...]

    def placement(self) -> dict[str, list[Any]]:
        """The shape, dtype and position of each variable, JSON-serializable, in the order of the variables."""
        in_buckets = {
            segment.name: [list(segment.shape), bucket.dtype.name, f"place {place} of bucket {number}"]
            for number, bucket in enumerate(self.buckets)
            for place, segment in enumerate(bucket.segments)
        }
        in_rows = {segment.name: [list(segment.shape), dtype.name, "rows"] for segment, dtype in self.slices}
        places = in_buckets | in_rows
        return {name: places[name] for name in self.order}

    def check(self, gradients: Mapping[str, Gradient]) -> None:
        """Checks that this plan was made for these gradients.

        Raises:
            ValueError: naming the variables whose gradients were added or removed, or changed their kind.
        """
        rows = {segment.name for segment, _ in self.slices}
        planned = rows | {segment.name for bucket in self.buckets for segment in bucket.segments}
        problems = [
            *(f"{name} had a gradient and now has none" for name in sorted(planned - set(gradients))),
            *(f"{name} had no gradient and now has one" for name in sorted(set(gradients) - planned)),
            *(
                f"the gradient of {name} was {'IndexedSlices' if name in rows else 'dense'} and no longer is"
                for name, gradient in sorted(gradients.items())
                if name in planned and isinstance(gradient, tf.IndexedSlices) != (name in rows)
            ),
        ]
        if problems:
            raise ValueError(
                f"The gradients are not those of the first exchange: {'; '.join(problems)}. All exchanges of one "
                "optimizer or tape must have gradients for the same variables; use a separate optimizer for a part "
                "of the model that is trained separately."
            )


def usual_bucket_bytes(gradients: Mapping[str, Gradient], shapes: Mapping[str, Sequence[int]], sends_all: bool) -> int:
    """The default size of buckets: an eighth of all gradients if they are sent whole, within bounds.

    A bucket is sent when its last gradient is ready, and nothing hides the transfer of the last bucket; so gradients
    that are sent whole go in several buckets, however small the model. A selection takes little time on the wire, and
    each bucket costs the latency of a call; so its buckets are large.

    Args:
        gradients: the gradients by unique name.
        shapes: the shapes of the variables by name.
        sends_all: whether the recipe sends all of each gradient.
    """
    if not sends_all:
        return BUCKET_BYTES
    dense = {name: gradient for name, gradient in gradients.items() if not isinstance(gradient, tf.IndexedSlices)}
    total = sum(math.prod(shapes[name]) * gradient.dtype.size for name, gradient in dense.items())
    return min(BUCKET_BYTES, max(LEAST_BUCKET_BYTES, total // DENSE_BUCKETS))


def make_plan(
    gradients: Mapping[str, Gradient],
    shapes: Mapping[str, Sequence[int]],
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    apart: Collection[str] = (),
) -> Plan:
    """Lays out gradients in buckets, in the order in which they become ready.

    Args:
        gradients: the gradients by unique name, in the order of the model's variables.
        shapes: the shapes of the variables by name.
        bucket_bytes: a bucket is closed before it would exceed this; a larger variable has its own bucket.
        first_bucket_bytes: the very first bucket is closed once it holds this much. (If it were closed before it would
            exceed this, the bias of the last layer alone would cost a call in each step.)
        apart: names of variables that share buckets only with each other.
    """
    done: list[list[str]] = []
    open_buckets: dict[tuple[tf.DType, bool], list[str]] = {}
    filled: dict[tuple[tf.DType, bool], int] = {}
    dense = {name: gradient for name, gradient in gradients.items() if not isinstance(gradient, tf.IndexedSlices)}
    for name in ready_order(dense):
        kind = (dense[name].dtype, name in apart)
        cost = math.prod(shapes[name]) * dense[name].dtype.size
        if kind in open_buckets and filled[kind] + cost > bucket_bytes:
            done.append(open_buckets.pop(kind))
        if kind not in open_buckets:
            open_buckets[kind], filled[kind] = [], 0
        open_buckets[kind].append(name)
        filled[kind] += cost
        if not done and filled[kind] >= first_bucket_bytes:
            done.append(open_buckets.pop(kind))
    done.extend(open_buckets.values())
    buckets = tuple(
        Bucket(dense[names[0]].dtype, tuple(Segment(name, tuple(shapes[name])) for name in names)) for names in done
    )
    slices = tuple(
        (Segment(name, tuple(shapes[name])), gradient.dtype)
        for name, gradient in gradients.items()
        if isinstance(gradient, tf.IndexedSlices)
    )
    return Plan(buckets, slices, tuple(gradients))


def _computing(operation: tf.Operation) -> tf.Operation:
    """The operation that computes what an operation passes on, as the gradients of a tape that looks ahead are."""
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return operation


def ready_order(gradients: Mapping[str, tf.Tensor]) -> list[str]:
    """The names of gradients in the order in which a backward pass computes them.

    In a graph this is the order in which the operations were created, those that only pass a gradient on left out. If
    that does not distinguish them (in eager code, or for gradients that leave one compiled call together), it is the
    reverse of the variables' order.
    """
    positions: dict[int, dict[str, int]] = {}

    def position(tensor: tf.Tensor) -> int:
        if tf.executing_eagerly() or not hasattr(tensor, "graph"):
            return 0
        graph = tensor.graph
        if id(graph) not in positions:
            positions[id(graph)] = {op.name: number for number, op in enumerate(graph.get_operations())}
        return positions[id(graph)][_computing(tensor.op).name]

    return sorted(reversed(list(gradients)), key=lambda name: position(gradients[name]))

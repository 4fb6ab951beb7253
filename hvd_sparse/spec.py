"""What a part knows of the vector it works on, and how parts describe themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.transport.communicator import Communicator, Grid

DTYPES = (tf.float32, tf.float16, tf.bfloat16)
UNLESS_DEFAULT = {"described": "unless default"}  # for fields that were added to a part: files without them fit
Rate = Callable[[], Any]


class MomentumRule(NamedTuple):
    """How a velocity absorbs a gradient in one step: velocity' = decay * velocity + gain * gradient.

    Attributes:
        decay: [] float32, or a number.
        gain: [] float32, or a number.
        nesterov: whether the step is decay * velocity' + gain * gradient instead of velocity'.
    """

    decay: Any
    gain: Any = 1.0
    nesterov: bool = False


Gathered = Mapping[str, Mapping[str, np.ndarray]]  # contents of slots, by the slot's and the variable's name


class Momentum(NamedTuple):
    """The momentum of an optimizer that an exchange takes over; all its functions return the same on every rank.

    Attributes:
        rule: called at each exchange.
        gathered: what the optimizer had accumulated before, in units of the mean gradient; of rank 0.
    """

    rule: Callable[[], MomentumRule]
    gathered: Callable[[], Gathered] = dict


class LocalOptimizer(NamedTuple):
    """An optimizer that an exchange runs itself, on the mean gradient of each node.

    Attributes:
        create: creates the state for a vector, or a shard of one: a `compression.updates.Slots`.
        gathered: what the optimizer's slots held before; of rank 0.
    """

    create: Callable[[Any], tf.Module]
    gathered: Callable[[], Gathered] = dict


class Segment(NamedTuple):
    """One of the variables in a vector: its unique name and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def columns(self) -> int:
        """The length of the last dimension; a vector and a scalar are one column."""
        return self.shape[-1] if len(self.shape) > 1 else 1


class Matrix(NamedTuple):
    """Consecutive elements of one variable in a vector, and the columns that they are in.

    Element number i of the flat variable is in its column i % columns.

    Attributes:
        end: where they end in the vector; they begin where those of the previous matrix end.
        start: where they begin in the flat variable.
        columns: number of columns of the variable.
    """

    end: int
    start: int
    columns: int


class Place(NamedTuple):
    """Consecutive elements of one variable in a vector.

    Attributes:
        segment: which of the vector's `segments` the variable is.
        begin: where they begin in the vector.
        start: where they begin in the flat variable.
        size: number of elements, at least 1.
    """

    segment: int
    begin: int
    start: int
    size: int


class Spec(NamedTuple):
    """A flat vector that is exchanged repeatedly.

    Attributes:
        size: number of elements d, at most 2^31 - 1.
        grid: the ranks that exchange it.
        dtype: float32, float16 or bfloat16.
        segments: the variables in it, in order; for a shard, those in the whole vector.
        name: the same on every rank, unique among the vectors in flight; collectives are named after it.
        number: makes the random seeds of different vectors differ.
        in_flight: number of vectors exchanged at the same time, including this one; they share the links.
        learning_rate: returns the learning rate ([]) of the optimizer that applies the means, if there is one: the same
            on every rank, called at each exchange.
        returns_sum: whether ranks get the sum of their vectors instead of the mean.
        momentum: that of this optimizer, for an exchange that takes it over.
        optimizer: all of this optimizer, for an exchange that runs it.
        offset: where a shard begins in the whole vector.
        parts: number of ranks whose vectors are added up before this one is exchanged; each rank of the node then has a
            shard of the sum, and this vector is one of these.
    """

    size: int
    grid: Grid
    dtype: tf.DType = tf.float32
    segments: tuple[Segment, ...] = ()
    name: str = "vector"
    number: int = 0
    in_flight: int = 1
    learning_rate: Rate | None = None
    returns_sum: bool = False
    momentum: Momentum | None = None
    optimizer: LocalOptimizer | None = None
    offset: int = 0
    parts: int = 1

    @property
    def divisor(self) -> int:
        """The number that the sum over all ranks is finally divided by."""
        return 1 if self.returns_sum else self.grid.world.size

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the variables lie in this vector, in order, without those that are not in a shard."""
        found, at = [], -self.offset
        for number, segment in enumerate(self.segments):
            begin, end = max(at, 0), min(at + segment.size, self.size)
            if begin < end:
                found.append(Place(number, begin, begin - at, end - begin))
            at += segment.size
        return tuple(found)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The columns of this vector's contents, place by place; empty if its variables are not known."""
        return tuple(
            Matrix(place.begin + place.size, place.start, self.segments[place.segment].columns) for place in self.places
        )

    @property
    def holders(self) -> Communicator | None:
        """The ranks whose shards form a whole vector together with this one; None if this one is whole."""
        return self.grid.node if self.parts > 1 else None

    @property
    def senders(self) -> int:
        """The number of nodes, or of ranks if each one sends for itself, that exchange such a vector."""
        return self.grid.world.size // self.parts

    def validate(self) -> Spec:
        """Returns itself.

        Raises:
            ValueError: if size, dtype or segments are invalid.
        """
        if not 0 < self.size < 2**31:
            raise ValueError(f"Expected a vector of 1 to 2^31 - 1 elements, got size = {self.size}; use more buckets.")
        if self.dtype not in DTYPES:
            raise ValueError(f"Expected a vector of float32, float16 or bfloat16, got {self.dtype.name}.")
        covered = sum(segment.size for segment in self.segments)
        if self.segments and covered != self.size:
            raise ValueError(f"Expected segments that cover all {self.size} elements, got {covered}.")
        return self


class Shard(NamedTuple):
    """A run of consecutive elements."""

    offset: int
    size: int


def flattened(segments: Sequence[Segment], values: Mapping[str, np.ndarray], missing: float = 0.0) -> tf.Tensor:
    """The values of variables one after another, [size] float32; those without a value are filled with `missing`."""
    pieces = [np.ravel(values.get(each.name, np.full(each.shape, missing))) for each in segments]
    return tf.constant(np.concatenate(pieces), tf.float32)


def shards(size: int, count: int) -> list[Shard]:
    """Cuts a vector into `count` runs of ceil(size / count) elements; the last ones may be shorter or empty."""
    each = -(-size // count)
    starts = [min(index * each, size) for index in range(count)]
    return [Shard(start, min(start + each, size) - start) for start in starts]


def own_shard(size: int, communicator: Communicator) -> Shard:
    """The shard of a vector that belongs to this rank of the group."""
    return shards(size, communicator.size)[communicator.rank]


def parts(expression: Any) -> Iterator[Any]:
    """An expression, such as a recipe, and all parts in it, outermost first."""
    if isinstance(expression, tuple):
        for member in expression:
            yield from parts(member)
        return
    yield expression
    for value in components(expression).values():
        yield from parts(value)


def rebuilt(part: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a part in which `change` is applied to each component, also to each in a tuple; itself without any.

    To change what lies deeper, `change` calls this in turn.
    """

    def changed(value: Any) -> Any:
        return tuple(map(changed, value)) if isinstance(value, tuple) else change(value)

    inner = {name: changed(value) for name, value in components(part).items()}
    return dataclasses.replace(part, **inner) if inner else part


def components(part: Any) -> dict[str, Any]:
    """The values of a part's fields by name; {} for what is no part."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return {}
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def describe(part: Any) -> Any:
    """A JSON-serialisable account of a part and its components; equal parts give equal accounts on all ranks.

    Checkpoints hold it, so a part's name in it is a fixed string: the `disk_name` of the part's own class, whatever
    that class is called by now; a part without one is named after its class. A part that only watches another points to
    it by `described_as`, and is described as if it were not there.
    """
    if hasattr(part, "described_as"):
        return describe(part.described_as)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {field.name: describe(getattr(part, field.name)) for field in _described(part)}
        return {"part": vars(type(part)).get("disk_name", type(part).__name__), **fields}
    if isinstance(part, (list, tuple)):
        return [describe(item) for item in part]
    if callable(part):
        return getattr(part, "__qualname__", type(part).__qualname__)
    return part


def _described(part: Any) -> list[dataclasses.Field]:
    """The fields that distinguish parts."""
    return [
        field
        for field in dataclasses.fields(part)
        if field.metadata != UNLESS_DEFAULT or getattr(part, field.name) != field.default
    ]

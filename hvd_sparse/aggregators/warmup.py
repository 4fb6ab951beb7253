"""Warm-up: a density that begins high."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.aggregators import branches
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import Update
from hvd_sparse.compression.selection import check_density
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Communicator


class _Warming(AggregatorState):
    """The inner's state, which all stages share, and the number of exchanges so far."""

    def __init__(self, spec: Spec, communicator: Communicator, inner: AggregatorState):
        super().__init__(spec, communicator, inner)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_warmup_step")


@dataclasses.dataclass(frozen=True)
class Warmup(branches.Switch):
    """Sends more of the gradient in the first steps (DGC 3.3, warm-up training).

    Every stage is the inner at a constant density, so the amount sent is known when the graph is built. All stages
    share one state, so residual and momentum continue from stage to stage: nothing is flushed, nothing is sent twice.
    At density 1 everything is sent by an all-reduce.

    Stages are counted in exchanges of this vector; the count is the same on all ranks and is kept in checkpoints.

    Attributes:
        inner: the aggregator that is used after the last stage.
        stages: (steps, density) in order: how many exchanges are made at each density.

    Steps and bytes sent per rank: the inner's at that density.
    """

    disk_name = "Warmup"
    inner: Aggregator
    stages: tuple[tuple[int, float], ...]

    def __post_init__(self):
        for steps, density in self.stages:
            check_density(density)
            if callable(density) or steps < 1:
                raise ValueError(f"Expected stages of (steps, density), at least one step each, got {self.stages}.")
        if not self.stages:
            raise ValueError("Expected at least one stage of (steps, density), such as [(100, 0.25), (100, 0.0625)].")
        if self.inner.sends_all:
            raise ValueError(f"{type(self.inner).__name__} sends all of the gradient, and so needs no warm-up.")
        self.inner.at_density(1.0)  # raises if it has no density

    @property
    def starts(self) -> list[int]:
        """The number of the exchange with which each stage begins, and the one with which the inner takes over."""
        return [sum(steps for steps, _ in self.stages[:number]) for number in range(len(self.stages) + 1)]

    def running(self, state):
        return self._parts()[int(self._stage(state).numpy())].running(state.inner)

    def reduce(self, parts, divisor, state):
        choices = [lambda form=form: self._run(form, parts, divisor, state) for form in self._parts()]
        outputs = tf.switch_case(self._stage(state), choices)
        return branches.unpack(
            outputs, state.spec, (*self._written(outputs, state), Update(state.step, state.step + 1))
        )

    def _create(self, spec, communicator):
        return _Warming(spec, communicator, self.inner._create(spec, communicator))

    def _parts(self) -> list[Aggregator]:
        """The aggregator of each stage, and the one after the last stage."""
        return [*(self.inner.at_density(density) for _, density in self.stages), self.inner]

    def _stage(self, state: _Warming) -> tf.Tensor:
        starts = tf.constant(self.starts[1:], tf.int64)
        return tf.reduce_sum(tf.cast(state.step >= starts, tf.int32))

"""Exchanges as the branches of a switch: the form in which every branch returns its result, and what they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.aggregators.base import Aggregator
from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.delegating import Delegating
from hvd_sparse.aggregators.transaction import Parts, Reduced, Traffic, Update, dense
from hvd_sparse.spec import Spec


class Outputs(NamedTuple):
    """A `Reduced` as tensors.

    Attributes:
        total: [size] in the spec's dtype, divided.
        culprit: as in `Reduced`.
        nonfinite: as in `Reduced`, but never None.
        counts: bytes inside the node and across nodes, elements selected and considered, [4] int64.
        values: the new values of variables.
    """

    total: tf.Tensor
    culprit: tf.Tensor
    nonfinite: tf.Tensor
    counts: tf.Tensor
    values: Any


def pack(reduced: Reduced, spec: Spec, divisor: int, variables: Sequence[tf.Variable]) -> Outputs:
    """The result of one branch; a variable that the exchange does not write keeps its value."""
    new = {update.variable.ref(): update.value for update in reduced.updates}
    nonfinite, asking = _told(reduced, spec)
    counts = [*reduced.traffic.plus(asking), reduced.selected, reduced.considered]
    return Outputs(
        total=dense(reduced.total, spec.size, divisor, spec.dtype),
        culprit=reduced.culprit,
        nonfinite=nonfinite,
        counts=tf.stack([tf.cast(count, tf.int64) for count in counts]),
        values=[new.get(variable.ref(), variable.read_value()) for variable in variables],
    )


def unpack(outputs: Outputs, spec: Spec, updates: tuple[Update, ...]) -> Reduced:
    """The result of the whole switch, in the dtype of a spec."""
    inside, across, selected, considered = tf.unstack(outputs.counts)
    return Reduced(
        total=tf.cast(tf.ensure_shape(outputs.total, [spec.size]), spec.dtype),
        culprit=outputs.culprit,
        nonfinite=outputs.nonfinite,
        updates=updates,
        traffic=Traffic(inside, across),
        selected=selected,
        considered=considered,
    )


def _told(reduced: Reduced, spec: Spec) -> tuple[tf.Tensor, Traffic]:
    """Whether what a branch exchanged is not finite; if unknown, the ranks ask each other, which costs bytes."""
    if reduced.nonfinite is not None:
        return reduced.nonfinite, Traffic()
    counted = CountingCommunicator(spec.grid.world, spec.grid)
    culprits = counted.allreduce(reduced.culprit, "max", f"{spec.name}.fault")
    return culprits != 0, counted.traffic


class Switch(Delegating):
    """Runs one of several forms of its inner aggregator, so it must be outermost; all forms share the inner's state."""

    inner: Aggregator

    def serving(self, state):
        """The inner."""
        return self.inner

    def running(self, state):
        return self, state

    @property
    def returns_sum(self):
        """As for the inner."""
        return self.inner.returns_sum

    def at_density(self, density):
        """The last form of the inner, at that density."""
        whole: Any = self
        return dataclasses.replace(whole, inner=self.inner.at_density(density))

    @staticmethod
    def _run(form: Aggregator, parts: Parts, divisor: int, state: Any) -> Outputs:
        """The result of one branch."""
        return pack(form.reduce(parts, divisor, state.inner), state.spec, divisor, state.inner.variables)

    @staticmethod
    def _written(outputs: Outputs, state: Any) -> list[Update]:
        """The updates of the inner's state, whichever branch ran."""
        return [
            Update(variable, tf.ensure_shape(value, variable.shape))
            for variable, value in zip(state.inner.variables, outputs.values, strict=True)
        ]

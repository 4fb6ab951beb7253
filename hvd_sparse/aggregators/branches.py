"""An exchange in one branch of a switch: what all branches have to return alike, and what they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.aggregators.base import Aggregator
from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.transaction import Parts, Reduced, Traffic, Update, dense
from hvd_sparse.spec import Spec


class Outputs(NamedTuple):
    """A `Reduced` as tensors.

    Attributes:
        total: [size] in the spec's dtype, divided.
        culprit: as of `Reduced`.
        nonfinite: as of `Reduced`, and never None.
        counts: bytes inside and across, elements selected and considered, [4] int64.
        values: the new values of variables.
    """

    total: tf.Tensor
    culprit: tf.Tensor
    nonfinite: tf.Tensor
    counts: tf.Tensor
    values: Any


def pack(reduced: Reduced, spec: Spec, divisor: int, variables: Sequence[tf.Variable]) -> Outputs:
    """What a branch returns; a variable that the exchange does not write gets the value that it has."""
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
    """What the switch as a whole hands on, in the dtype of a spec."""
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
    """Whether what a branch has exchanged is not finite; where it does not tell, all ranks ask, which costs bytes."""
    if reduced.nonfinite is not None:
        return reduced.nonfinite, Traffic()
    counted = CountingCommunicator(spec.grid.world, spec.grid)
    culprits = counted.allreduce(reduced.culprit, "max", f"{spec.name}.fault")
    return culprits != 0, counted.traffic


class Switch(Aggregator):
    """An aggregator that runs one of several forms of its inner one, which share its state, `state.inner`."""

    inner: Aggregator

    @property
    def nests(self):
        """It is outermost: its branches hold whole exchanges."""
        return False

    @property
    def returns_sum(self):
        """As the inner."""
        return self.inner.returns_sum

    def at_density(self, density):
        """The inner's last form at that density."""
        whole: Any = self
        return dataclasses.replace(whole, inner=self.inner.at_density(density))

    def set_epoch(self, state, epoch):
        self.inner.set_epoch(state.inner, epoch)

    def decided(self, state):
        return self.inner.decided(state.inner)

    def residual(self, state):
        return self.inner.residual(state.inner)

    def node_residual(self, state):
        return self.inner.node_residual(state.inner)

    def restored(self, state, residual):
        return self.inner.restored(state.inner, residual)

    def contributions(self, size, members):
        return None

    @staticmethod
    def _run(form: Aggregator, parts: Parts, divisor: int, state: Any) -> Outputs:
        """What one branch returns."""
        return pack(form.reduce(parts, divisor, state.inner), state.spec, divisor, state.inner.variables)

    @staticmethod
    def _written(outputs: Outputs, state: Any) -> list[Update]:
        """The new values of the inner's state, whichever branch it was."""
        return [
            Update(variable, tf.ensure_shape(value, variable.shape))
            for variable, value in zip(state.inner.variables, outputs.values, strict=True)
        ]

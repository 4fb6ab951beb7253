"""An exchange in one branch of a switch: what all branches have to return alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.transaction import Reduced, Traffic, Update, dense
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

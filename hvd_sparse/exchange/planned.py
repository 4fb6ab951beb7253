"""The exchange of gradients by a plan that all ranks have agreed on, and all that is kept back by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator, commit
from hvd_sparse.exchange import rows
from hvd_sparse.exchange.bucket import BucketExchange
from hvd_sparse.exchange.pairing import Label, compare
from hvd_sparse.exchange.plan import Gradient, Plan
from hvd_sparse.exchange.telemetry import Telemetry, timed
from hvd_sparse.spec import Rate, describe
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.transport.joining import forbid_join

_REMEDY = (
    "Every rank must build the same model and pass the same recipe; look for a branch or a random choice that depends "
    "on the rank."
)


@dataclasses.dataclass(frozen=True)
class Kept:
    """What all ranks together keep back, and how far they are: what a checkpoint holds.

    Attributes:
        shapes: of all variables in buckets, by name, in the order of the model's variables.
        residuals: float32, by variable name, in the variable's shape: the sum over all ranks. A variable of which
            nothing is kept back may be left out.
        step: how many exchanges there have been.
        counters: how often the selectors have selected, by their names in a bucket.
    """

    shapes: dict[str, tuple[int, ...]]
    residuals: dict[str, np.ndarray]
    step: int
    counters: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Own:
    """The state of one rank to the bit; of use only to the same rank under the same recipe, plan and grid.

    Attributes:
        account: what `PlannedExchange.account` said when it was taken.
        values: by name of the state's variable.
    """

    account: dict[str, Any]
    values: dict[str, np.ndarray]


class PlannedExchange:
    """Averages gradients bucket by bucket, all at once, and ends all of them in one transaction.

    Making one is a collective: the ranks compare what they are about to do. Variables are paired by their order.

    Args:
        aggregator: what exchanges the buckets.
        plan: which gradients there are, and where they lie.
        grid: who exchanges.
        name: collectives are named after it; the same on every rank.
        telemetry: measures the exchanges; None measures nothing, at no cost.
        learning_rate: of the optimizer that applies the means, where there is one.
        sums: hand on the sums over all ranks in place of the means.

    Raises:
        ValueError: on every rank alike where plans or recipes differ, or the recipe cannot work with the plan.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        plan: Plan,
        grid: Grid,
        name: str,
        telemetry: Telemetry | None,
        learning_rate: Rate | None = None,
        sums: bool = False,
    ):
        self.plan = plan
        self.grid = grid
        self._aggregator = aggregator
        self._name = name
        self._telemetry = telemetry
        self._sums = sums
        specs = [
            bucket.spec(f"{name}.bucket{number}", number, grid, len(plan.buckets))
            ._replace(learning_rate=learning_rate, sums=sums)
            .validate()
            for number, bucket in enumerate(plan.buckets)
        ]
        options = {"recipe": describe(aggregator), "telemetry": telemetry is not None, "sums": sums}
        grid.world.agree(options, "the gradients or the recipe", "gradients.agree")
        labels = [Label(variable, place) for variable, place in plan.placement().items()]
        compare(labels, grid.world, "the gradients", _REMEDY, "gradients.compare")
        if aggregator.sums and plan.slices:
            raise ValueError(
                f"{type(aggregator).__name__} hands on sums over the ranks, and rows of tf.IndexedSlices travel as "
                f"means (here those of {plan.slices[0][0].name}): pass sparse_as_dense=True, or leave as_published out."
            )
        running = aggregator if telemetry is None else timed(aggregator)
        self.buckets = [BucketExchange(bucket, spec, running) for bucket, spec in zip(plan.buckets, specs, strict=True)]
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{name}_step")
        if telemetry is not None:
            telemetry.create()
        forbid_join()

    def exchange(self, gradients: Mapping[str, Gradient]) -> dict[str, Gradient]:
        """The means of gradients that the plan was made for; all state is written by then, or an error raised."""
        if not gradients:
            return {}
        ready = self._time(gradients.values())
        in_buckets = [bucket.exchange(gradients) for bucket in self.buckets]
        in_rows = [
            rows.exchange(gradients[segment.name], segment, self.grid, f"{self._name}.slices{number}", self._sums)
            for number, (segment, _) in enumerate(self.plan.slices)
        ]
        exchanges = [*in_buckets, *in_rows]
        done = commit(exchanges, self._labels(), self.grid.world, f"{self._name}.commit")
        with tf.control_dependencies(done):
            step = self.step.assign_add(1)
            if self._telemetry is not None:
                means_there = tf.nest.flatten([exchange.mean for exchange in exchanges], expand_composites=True)
                exposed = self._time([ready, *means_there]) - ready  # read after it
                self._telemetry.record(step, exchanges, gradients, exposed)
            means: dict[str, Gradient] = {}
            for bucket, exchange in zip(self.buckets, in_buckets, strict=True):
                means.update(bucket.means(exchange))
            for (segment, _), exchange in zip(self.plan.slices, in_rows, strict=True):
                mean: Any = exchange.mean  # rows
                values = tf.identity(mean.values)
                means[segment.name] = tf.IndexedSlices(values, mean.indices, mean.dense_shape)
            return means

    def set_epoch(self, epoch: int) -> None:
        """Tells the aggregator which epoch begins."""
        for bucket in self.buckets:
            bucket.aggregator.set_epoch(bucket.state, epoch)

    def account(self) -> dict[str, Any]:
        """The recipe, what it decided, the grid and where the variables lie; JSON-serialisable, alike on every rank.

        Variables go by their number: Keras numbers the names of layers, so that they differ between equal models.
        """
        grid = {"ranks": self.grid.world.size, "ranks per node": self.grid.node.size}
        return {
            "recipe": describe(self._aggregator),
            "decided": [bucket.aggregator.decided(bucket.state) for bucket in self.buckets],
            "grid": grid,
            "places": list(self.plan.placement().values()),
        }

    def kept(self) -> Kept:
        """What all ranks together keep back; a collective."""
        residuals = {name: kept for bucket in self.buckets for name, kept in bucket.kept().items()}
        counters = {name: int(counter) for bucket in self.buckets for name, counter in bucket.counters().items()}
        return Kept(self._shapes(), residuals, int(self.step), counters)

    def own(self) -> Own:
        """This rank's state to the bit."""
        return Own(self.account(), {name: variable.numpy() for name, variable in self._own_variables().items()})

    def restore(self, kept: Kept, own: Own | None) -> bool:
        """See `GradientExchange.restore`."""
        if self._put_back_own(own):
            return True
        residuals = _matched(kept, self._shapes())
        for bucket in self.buckets:
            bucket.restore(residuals)
            for name, counter in bucket.counters().items():
                counter.assign(kept.counters.get(name, kept.step))
        self.step.assign(kept.step)
        return False

    def _time(self, gradients: Iterable[Gradient]) -> Any:
        """The time at which all of these are there, where it is measured."""
        return None if self._telemetry is None else self._telemetry.time(tensors(gradients))

    def _labels(self) -> list[str]:
        """What the message of a fault calls each exchange."""
        in_rows = [f"the rows of {segment.name}" for segment, _ in self.plan.slices]
        return [*(bucket.label for bucket in self.buckets), *in_rows]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        in_rows = {segment.name for segment, _ in self.plan.slices}
        return {name: tuple(place[0]) for name, place in self.plan.placement().items() if name not in in_rows}

    def _own_variables(self) -> dict[str, tf.Variable]:
        in_buckets = {
            f"bucket{number}{name}": variable
            for number, bucket in enumerate(self.buckets)
            for name, variable in bucket.variables().items()
        }
        return {**in_buckets, "step": self.step}

    def _put_back_own(self, own: Own | None) -> bool:
        """Puts back each rank's own state where every rank has one that fits; says whether."""
        variables = self._own_variables()
        values = own.values if own is not None and own.account == self.account() else {}
        fits = set(values) == set(variables)
        everybody = self.grid.world.allreduce(tf.constant(int(fits)), "min", f"{self._name}.restore")
        if everybody == 1:
            for name, variable in variables.items():
                variable.assign(values[name])
        return bool(everybody == 1)


def tensors(gradients: Iterable[Gradient]) -> list[tf.Tensor]:
    """The gradients as tensors: of slices the values."""
    return [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]


def _matched(kept: Kept, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Residuals under the names that the variables have here; other names are matched by order where shapes agree."""
    if kept.shapes == dict(shapes):
        return kept.residuals
    if list(kept.shapes.values()) != list(shapes.values()):
        raise ValueError(
            "The checkpoint's variables are not those that are exchanged here: it holds "
            f"{_listed(kept.shapes, shapes)}; here are {_listed(shapes, kept.shapes)}. Build the same model, with the "
            "same local layers and the same sparse_as_dense."
        )
    here = dict(zip(kept.shapes, shapes, strict=True))
    return {here[name]: residual for name, residual in kept.residuals.items()}


def _listed(shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> str:
    """The first variables that the others do not have."""
    different = [f"{name} {list(shape)}" for name, shape in shapes.items() if others.get(name) != shape]
    return ", ".join(different[:4]) + (", ..." if len(different) > 4 else "") if different else "fewer"

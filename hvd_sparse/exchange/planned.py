"""The exchange of gradients by a plan that all ranks agreed on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator, commit
from hvd_sparse.aggregators.transaction import Exchange
from hvd_sparse.exchange import arguments, several, wide
from hvd_sparse.exchange.bucket import BucketExchange
from hvd_sparse.exchange.pairing import Label, compare
from hvd_sparse.exchange.plan import Gradient, Plan
from hvd_sparse.exchange.telemetry import Telemetry, timed
from hvd_sparse.optimizers.variables import given_names
from hvd_sparse.spec import LocalOptimizer, Momentum, Rate, describe
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.transport.joining import forbid_join
from hvd_sparse.transport.launcher_store import is_elastic

_REMEDY = (
    "Every rank must build the same model and pass the same recipe; look for a branch or a random choice that depends "
    "on the rank."
)

_RETIRED = (
    "This step was traced for ranks that have changed since: make its tf.function anew after each change, for example "
    "inside of the function that hvd.elastic.run runs."
)


class PlannedExchange:
    """Averages gradients bucket by bucket, all at once, and commits all of them in one transaction.

    Creating one is a collective: the ranks compare their plans. Variables are paired by their order.

    Args:
        aggregator: exchanges the buckets.
        plan: the gradients and their layout.
        grid: the ranks that exchange.
        name: prefix of the names of collectives; the same on every rank.
        telemetry: measures the exchanges; None measures nothing, at no cost.
        returns_sum: return the sums over all ranks instead of the means.
        learning_rate: returns the learning rate of the optimizer that applies the means, if there is one.
        momentum: the momentum of the optimizer that applies the means, if there is one.
        optimizer: the optimizer's description, for an exchange that runs it.
        variables: the variables of the gradients, by name; they are not kept alive.
        asked: the recipe that the user asked for, if `aggregator` takes its place on this grid.

    Raises:
        ValueError: on every rank, if plans or recipes differ, or the recipe does not work with the plan.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        plan: Plan,
        grid: Grid,
        name: str,
        telemetry: Telemetry | None,
        returns_sum: bool = False,
        learning_rate: Rate | None = None,
        momentum: Momentum | None = None,
        optimizer: LocalOptimizer | None = None,
        variables: Mapping[str, Any] = {},
        asked: Aggregator | None = None,
    ):
        self.plan = plan
        self.grid = grid
        self.aggregator = aggregator
        self.name = name
        self._telemetry = telemetry
        self._returns_sum = returns_sum
        self._learning_rate = learning_rate
        self._weights: Mapping[str, Any] = weakref.WeakValueDictionary(variables)
        self.taken_over = _taken_over(aggregator, momentum, optimizer)
        specs = [
            bucket.spec(f"{name}.bucket{number}", number, grid, len(plan.buckets))
            ._replace(learning_rate=learning_rate, returns_sum=returns_sum, momentum=momentum, optimizer=optimizer)
            .validate()
            for number, bucket in enumerate(plan.buckets)
        ]
        options = {
            "recipe": describe(asked or aggregator),
            "telemetry": telemetry is not None,
            "returns_sum": returns_sum,
            "op determinism": arguments.is_deterministic(),
        }
        grid.world.agree(options, "the gradients or the recipe", "gradients.agree")
        places = plan.placement()
        labels = [
            Label(name, place, given_names(variables[name]) if name in variables else ())
            for name, place in places.items()
        ]
        compare(labels, grid.world, "the gradients", _REMEDY, "gradients.compare")
        if aggregator.returns_sum and plan.slices:
            raise ValueError(
                f"{type(aggregator).__name__} returns sums over the ranks, and rows of tf.IndexedSlices are averaged "
                f"(here those of {plan.slices[0][0].name}): pass sparse_as_dense=True, or leave out as_published."
            )
        running = aggregator if telemetry is None else timed(aggregator)
        self.buckets = [BucketExchange(bucket, spec, running) for bucket, spec in zip(plan.buckets, specs, strict=True)]
        self.taking_over = self._taking_over()
        self.ending: Any = None  # an `Ending`, once this rank has needed one
        self._apart: list[tuple[tf.TensorShape, tf.DType]] = []  # what the last exchange had besides the plan
        with tf.device("CPU:0"):
            self._retired = tf.Variable(False, trainable=False, name=f"{name}_retired")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{name}_step")
        if telemetry is not None:
            telemetry.create()
        forbid_join()

    def exchange(self, gradients: Mapping[str, Gradient], apart: Mapping[str, Gradient] = {}) -> dict[str, Gradient]:
        """The means of all gradients; by then all state is written, or an error is raised.

        Args:
            gradients: those of the plan.
            apart: gradients that buckets do not hold; in the same order on every rank.
        """
        everything = {**gradients, **apart}
        if not everything:
            return {}
        ready = self._time(everything.values())
        with tf.control_dependencies(self._refuse_if_retired()):
            in_buckets, in_rows = self._of_plan(gradients)
        by_themselves = [self._exchange_wide(each, number) for number, each in enumerate(apart.values())]
        self._apart = [(each.shape, each.dtype) for each in apart.values()]
        exchanges = [*in_buckets, *in_rows, *by_themselves]
        done = commit(exchanges, [*self._labels(), *apart], self.grid.world, f"{self.name}.commit")
        with tf.control_dependencies(done):
            step = self.step.assign_add(1)
            if self._telemetry is not None:
                means_there = tf.nest.flatten([exchange.mean for exchange in exchanges], expand_composites=True)
                exposed = self._time([ready, *means_there]) - ready  # read after it
                self._telemetry.record(step, exchanges, everything, exposed)
            means: dict[str, Gradient] = {}
            for bucket, exchange in zip(self.buckets, in_buckets, strict=True):
                means.update(bucket.means(exchange))
            for (segment, _), exchange in zip(self.plan.slices, in_rows, strict=True):
                mean: Any = exchange.mean  # rows
                values = tf.identity(mean.values)
                means[segment.name] = tf.IndexedSlices(values, mean.indices, mean.dense_shape)
            for variable, exchange in zip(apart, by_themselves, strict=True):
                means[variable] = tf.identity(exchange.mean)
            return means

    def exchange_not_finite(self) -> list[Exchange]:
        """Exchanges a NaN in place of each gradient of the last exchange, and commits nothing."""
        nan = float("nan")
        in_buckets = {
            segment.name: tf.cast(tf.fill(segment.shape, nan), bucket.dtype)
            for bucket in self.plan.buckets
            for segment in bucket.segments
        }
        in_rows = {
            segment.name: tf.IndexedSlices(
                tf.cast(tf.fill([1, *segment.shape[1:]], nan), dtype), tf.constant([0]), tf.constant(segment.shape)
            )
            for segment, dtype in self.plan.slices
        }
        exchanged = self._of_plan({**in_buckets, **in_rows})
        apart = [
            self._exchange_wide(tf.cast(tf.fill(shape, nan), dtype), number)
            for number, (shape, dtype) in enumerate(self._apart)
        ]
        return [*exchanged[0], *exchanged[1], *apart]

    def retire(self) -> None:
        """Makes further exchanges an error, as the ranks for which the plan was made have changed."""
        self._retired.assign(True)

    def _refuse_if_retired(self) -> list[tf.Operation]:
        if not is_elastic():  # elsewhere ranks never change
            return []
        refused = tf.debugging.Assert(tf.logical_not(self._retired), [_RETIRED])
        return [] if refused is None else [refused]

    @property
    def keeps(self) -> bool:
        """Whether it keeps residuals, or a part of the optimizer's state."""
        return self.taken_over is not None or not self.aggregator.sends_all

    def unsent(self) -> dict[str, tf.Tensor]:
        """What this rank's node has not sent yet, by variable; a collective within the node."""
        return {name: value for bucket in self.buckets for name, value in bucket.unsent().items()}

    def set_progress(self, ahead: Mapping[str, tf.Tensor]) -> None:
        """Sets how far this rank's node is ahead of the shared weights, by variable; rows are never ahead."""
        for bucket in self.buckets:
            bucket.set_progress(ahead)

    def apply_residuals(self, residuals: Mapping[str, np.ndarray], of_gradients: bool) -> None:
        """Subtracts residuals from the weights that this recipe cannot take over, as they are in another unit.

        Args:
            residuals: the sum over all ranks, the same on every rank.
            of_gradients: whether to multiply them by the learning rate.

        Raises:
            ValueError: if the learning rate is not known.
        """
        factor = 1.0 / self.grid.world.size
        if of_gradients:
            if self._learning_rate is None:
                raise ValueError(
                    "The checkpoint holds gradients not yet sent, and this recipe exchanges updates: pass "
                    "the learning_rate to multiply them by."
                )
            factor *= float(self._learning_rate())
        for name, residual in residuals.items():
            self._weights[name].assign_sub(tf.cast(residual * factor, self._weights[name].dtype))

    def set_epoch(self, epoch: int) -> None:
        """Tells the aggregator which epoch begins."""
        for bucket in self.buckets:
            bucket.aggregator.set_epoch(bucket.state, epoch)

    def _taking_over(self) -> set[str]:
        """The variables of buckets whose exchange has taken over the optimizer's momentum or its whole step.

        With `auto` this may differ between buckets.
        """
        if not arguments.takes_over(self.aggregator):
            return set()
        running = [(each, each.aggregator.running(each.state)[0]) for each in self.buckets]
        taking = [each.bucket for each, part in running if arguments.takes_over(part)]
        return {segment.name for bucket in taking for segment in bucket.segments}

    def _of_plan(self, gradients: Mapping[str, Gradient]) -> tuple[list[Exchange], list[Exchange]]:
        """The exchanges of the buckets and of the rows."""
        in_buckets = [bucket.exchange(gradients) for bucket in self.buckets]
        segments = [segment for segment, _ in self.plan.slices]
        of_rows: Any = [gradients[segment.name] for segment in segments]
        return in_buckets, several.exchange(of_rows, segments, self.grid, f"{self.name}.slices", self._returns_sum)

    def _exchange_wide(self, gradient: Gradient, number: int) -> Exchange:
        wire = getattr(self.aggregator, "wire_dtype", None)
        return wide.exchange(gradient, self.grid, f"{self.name}.wide{number}", wire, self._returns_sum)

    def _time(self, gradients: Iterable[Gradient]) -> Any:
        """The time at which all of these are computed, if it is measured."""
        return None if self._telemetry is None else self._telemetry.time(tensors(gradients))

    def _labels(self) -> list[str]:
        """The name of each exchange in error messages."""
        in_rows = [f"the rows of {segment.name}" for segment, _ in self.plan.slices]
        return [*(bucket.label for bucket in self.buckets), *in_rows]


def _taken_over(
    recipe: Aggregator, momentum: Momentum | None, optimizer: LocalOptimizer | None
) -> Momentum | LocalOptimizer | None:
    """The part of the optimizer that the recipe keeps itself: its momentum, all of it, or None."""
    if arguments.sends_updates(recipe):
        return optimizer
    return momentum if arguments.takes_momentum(recipe) else None


def tensors(gradients: Iterable[Gradient]) -> list[tf.Tensor]:
    """The gradients as tensors; for slices, their values."""
    return [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]

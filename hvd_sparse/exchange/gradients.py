"""Averages all gradients of a step over all ranks; the optimizer and the tape share it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.exchange import arguments, ending, naming, one_node, overwritten, several, state, wide
from hvd_sparse.exchange import plan as buckets
from hvd_sparse.exchange.clipping import Clip, clipped, exchanged
from hvd_sparse.exchange.local import LocalVariables, divided
from hvd_sparse.exchange.obeying import Obeying
from hvd_sparse.exchange.plan import Gradient
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.exchange.state import RankState, ResidualSum
from hvd_sparse.exchange.telemetry import Telemetry
from hvd_sparse.horovod_api.values import Average
from hvd_sparse.optimizers.variables import names_by_id, refuse_shards, unique_names
from hvd_sparse.spec import DTYPES, LocalOptimizer, Momentum, Rate
from hvd_sparse.transport import subgrid, topology
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.transport.eager import making_variables


class GradientExchange:
    """Averages the gradients of a set of variables over all ranks, step after step.

    The first call makes a plan: gradients of one dtype are concatenated in buckets, in the order in which they become
    ready; all ranks compare their plans; each bucket gets an aggregator state (its residual). From then on each call
    exchanges all buckets at once and commits them in one transaction (`aggregators.commit`).

    Gradients of float64 are not put into buckets: dense recipes average each by an all-reduce of its own, in the same
    transaction; other recipes refuse them.

    It works eagerly and inside a `tf.function`. The state is never part of a model or of an optimizer's variables, so
    broadcasts do not affect it.

    Args:
        aggregator: a recipe; the default is `recipes.mean()`. On one node everything is sent, see `one_node`.
        name: prefix of the names of collectives; a number is added if another exchange of the process has it.
        sparse_as_dense: exchange `tf.IndexedSlices` as dense tensors, in the buckets; by default their rows travel
            exactly, whatever the aggregator.
        bucket_bytes: size of a bucket; a larger variable has its own. By default 25 MiB, or an eighth of all gradients,
            at least 1 MiB, if the recipe sends all of them (`plan.usual_bucket_bytes`).
        first_bucket_bytes: the first bucket is closed once it holds this much.
        scale_local_gradients: divide the gradients of local variables by the number of ranks, as Horovod does.
        telemetry: measures the exchanges.
        learning_rate: returns the learning rate of the optimizer that applies the means, for example
            `lambda: optimizer.learning_rate`; only for recipes with `as_published`. A distributed optimizer sets it.
        momentum: the momentum of the optimizer that applies the means, which then has to run without it; only for
            recipes with `MomentumCorrection`. A distributed optimizer sets it.
        optimizer: a distributed optimizer's description of itself, for recipes that run it; these return what to
            subtract from the weights.
        op: `hvd.Average`, or `hvd.Sum` for P times the mean; residuals are in units of the gradient in both.
        process_set: an `hvd.ProcessSet`: its ranks exchange with each other; all other ranks keep their own gradients
            and are not waited for. Only for recipes without nodes; None means all ranks.

    Raises:
        TypeError: if an argument is not an aggregator or process set, or `optimizer` is the optimizer itself.
        ValueError: if `op` is another operation, or the recipe does not work in a process set.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        name: str = "GradientExchange",
        sparse_as_dense: bool = False,
        bucket_bytes: int | None = None,
        first_bucket_bytes: int = buckets.FIRST_BUCKET_BYTES,
        scale_local_gradients: bool = True,
        telemetry: Telemetry | None = None,
        learning_rate: Rate | None = None,
        momentum: Momentum | None = None,
        optimizer: LocalOptimizer | None = None,
        op: int | None = Average,
        process_set: Any = None,
    ):
        if aggregator is not None and not isinstance(aggregator, Aggregator):
            raise TypeError(
                f"Expected an aggregator, such as hvd.recipes.hitopk(density=0.01), got {type(aggregator).__name__}."
            )
        self.aggregator = aggregator or recipes.mean()
        self.takes_over = arguments.takes_over(self.aggregator)
        self.sends_updates = arguments.sends_updates(self.aggregator, op)
        self.looks_ahead = arguments.looks_ahead(self.aggregator)
        self.telemetry = telemetry
        self._returns_sum = arguments.is_sum(op)
        self._process_set = arguments.own_set(process_set, self.aggregator)
        self._of_optimizer = (learning_rate, momentum, arguments.described(optimizer))
        self._name = naming.unique(name, self)
        self._sparse_as_dense = sparse_as_dense
        self._bucket_bytes = bucket_bytes
        self._first_bucket_bytes = first_bucket_bytes
        self._scale_local_gradients = scale_local_gradients
        self._local = LocalVariables()
        self._epoch: int | None = None
        self._tensors = itertools.count(1)
        self._pending: tuple[ResidualSum, RankState | None] | None = None
        self._at_start: list[Callable[[PlannedExchange], None]] = []
        self._planned: PlannedExchange | None = None
        self._obeying: Obeying | None = None
        self._when_written: Callable[[], None] = lambda: None
        self._agreed: str | None = None
        self.joined: Callable[[], Mapping[int, tf.Tensor]] = dict  # `Ahead.joined` of the optimizer

    # AutoGraph would spend seconds on rewriting everything called in here, to no effect.
    @tf.autograph.experimental.do_not_convert
    def __call__(
        self, gradients: Iterable[Gradient | None], variables: Sequence[Any], clip: Clip | None = None
    ) -> list[Gradient | None]:
        """Averages gradients over all ranks.

        Args:
            gradients: one per variable, or None; a variable without a gradient must never have one.
            variables: Keras or TensorFlow variables, the same ones in every call.
            clip: called as clip(gradients, factor) to clip at factor times its thresholds. Dense recipes clip the mean
                at factor 1; sparse ones clip each rank's own gradient, before the residual is added, at 1 / sqrt(P), so
                that the norm that passes a threshold is about the same. With `op=hvd.Sum` the threshold is meant for
                the sum.

        Returns:
            The means, or the sums with `op=hvd.Sum`, in the same order; None for no gradient; for a local variable its
            own gradient; for one that is overwritten with its gradient, as float8 scales are, the maximum.

        Raises:
            ValueError: on every rank, if the ranks' first exchanges differ; on this rank, if the gradients are not
                those of the first exchange, or `init` was not called.
            tf.errors.InvalidArgumentError: on every rank, if any rank's gradient is not finite; no state has changed.
        """
        names = unique_names(variables)
        gradients = self.with_largest(list(gradients), variables)
        there = {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
        named = several.standardised(there, self._travels_in_rows)
        written = {name for name, each in zip(names, variables, strict=True) if overwritten.is_overwritten(each)}
        local = {name for name, is_local in zip(names, self.are_local(variables), strict=True) if is_local}
        exchanged_names = named.keys() - local
        refuse_shards([each for each, name in zip(variables, names, strict=True) if name in exchanged_names])
        shared = {name: gradient for name, gradient in named.items() if name not in local | written}
        own = {name: self.scaled(gradient) for name, gradient in named.items() if name in local - written}
        apart = {name: gradient for name, gradient in shared.items() if self._goes_apart(gradient)}
        shared = {name: gradient for name, gradient in shared.items() if name not in apart}
        planned = self._plan_for(shared, dict(zip(names, variables, strict=True)))
        with tf.control_dependencies(self._obeying.before_step() if self._obeying else []):
            called = names_by_id(variables)
            planned.set_progress({called[number]: value for number, value in self.joined().items()})
            means = exchanged(planned, shared, apart, clip, self._returns_sum)
        if clip is not None:
            # Clipped separately: a norm over both would differ between ranks, and the replicas would drift apart.
            own = clipped(own, clip, 1.0)
        return [means.get(name, own.get(name, named.get(name))) for name in names]

    def register_local_var(self, variable: Any) -> None:
        """Keeps a variable local, so its gradient is not exchanged; call it before the first exchange."""
        self._require_unplanned("Local variables")
        self._local.add(variable)

    def register_local_layers(self, layers: Iterable[keras.layers.Layer]) -> None:
        """Keeps all trainable variables of layers local, including those that are not created yet."""
        self._require_unplanned("Local layers")
        self._local.add_layers(layers)

    def local_variables(self) -> list[Any]:
        """The variables that were registered as local, directly or through their layers."""
        return self._local.variables()

    @property
    def has_local(self) -> bool:
        """Whether any variable or layer was registered as local."""
        return bool(self._local)

    def are_local(self, variables: Sequence[Any]) -> list[bool]:
        """For each variable, whether it was registered as local."""
        return self._local.are(variables)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that begins, from 0; only recipes that change by epoch need it.

        The callbacks of `hvd.callbacks` call it; in your own loop, call it at the start of each epoch.
        """
        self._epoch = epoch
        if self._planned is not None:
            self._planned.set_epoch(epoch)

    def measure(self, telemetry: Telemetry) -> None:
        """Measures all exchanges with this telemetry; call it before the first one.

        Raises:
            RuntimeError: if there has already been an exchange.
        """
        self._require_unplanned("Telemetry")
        self.telemetry = telemetry

    def read_telemetry(self) -> dict[str, Any]:
        """The figures of the last exchange, see `Telemetry`; {} if there are none."""
        if self.telemetry is None or self._planned is None:
            return {}
        return self.telemetry.read(
            self.aggregator, [(bucket.aggregator, bucket.state) for bucket in self._planned.buckets]
        )

    @tf.autograph.experimental.do_not_convert
    def everywhere(self, condition: tf.Tensor) -> tf.Tensor:
        """Whether a condition ([] bool) holds on every rank, [] bool; a collective of 4 bytes."""
        return ending.everywhere(condition, self.grid().world, self._agreed_name())

    @tf.autograph.experimental.do_not_convert
    def with_largest(self, gradients: Sequence[Gradient | None], variables: Sequence[Any]) -> list[Gradient | None]:
        """Gradients, in which those that overwrite their variables are the maximum over all ranks; a collective."""
        name, local = lambda: f"{self._agreed_name()}.largest", self.are_local(variables)
        return overwritten.with_largest(gradients, variables, local, self.grid().world, name)

    @tf.autograph.experimental.do_not_convert
    def reduce_tensor(self, gradient: Gradient | None) -> tf.Tensor | None:
        """Averages the gradient of a tensor that is not a variable, by an all-reduce of its own; None stays None.

        Args:
            gradient: of the same shape on every rank; `tf.IndexedSlices` are exchanged as a dense tensor. All ranks
                have to pass their tensors in the same order.

        Raises:
            TypeError: if the recipe has a residual, which needs a variable.
        """
        arguments.require_no_residual(self.aggregator)
        if gradient is None:
            return None
        topology.size()  # raises if hvd.init() was not called
        wire = getattr(self.aggregator, "wire_dtype", None)
        # Eager calls follow one another; a new name in each step would fill Horovod's tables.
        number = 0 if tf.executing_eagerly() else next(self._tensors)
        name = f"{self._agreed_name()}.tensor{number}"
        return wide.exchange(gradient, self.grid(), name, wire, self._returns_sum).mean

    def scaled(self, gradient: Gradient) -> Gradient:
        """A local variable's gradient, scaled as if the other ranks' gradients were zero."""
        return divided(gradient, self.grid().world.size) if self._scale_local_gradients else gradient

    def grid(self) -> Grid:
        """The ranks that exchange with each other."""
        return topology.grid() if self._process_set is None else subgrid.of(self._process_set)

    @property
    def step(self) -> int:
        """The number of committed exchanges."""
        return 0 if self._planned is None else int(self._planned.step)

    @property
    def states(self) -> tuple[tf.Module, ...]:
        """The aggregator's state for each bucket; empty before the first exchange."""
        return () if self._planned is None else tuple(bucket.state for bucket in self._planned.buckets)

    def account(self) -> dict[str, Any]:
        """The recipe, the grid and the variables' placement; RuntimeError before the first exchange."""
        return state.account(self.planned)

    def residual_sum(self) -> ResidualSum:
        """The sum of the residuals of all ranks; a collective that every rank calls at the same step.

        Raises:
            RuntimeError: before the first exchange, when nothing is known yet.
            ValueError: if a process set exchanges, as checkpoints hold the residuals of all ranks.
        """
        arguments.require_all_ranks(self._process_set)
        self.settle()
        return state.residual_sum(self.planned)

    def rank_state(self) -> RankState:
        """This rank's exact state; RuntimeError before the first exchange."""
        return state.rank_state(self.planned)

    def restore(self, total: ResidualSum, own: RankState | None = None) -> bool | None:
        """Restores the results of `residual_sum` and `rank_state`, before or after the first exchange; a collective.

        If every rank passes its own state, saved under the same recipe, plan and grid, training continues bit for bit
        as if it had not stopped. Otherwise each rank gets an equal share of the residuals, and nothing is lost.

        Args:
            total: the same on every rank; scaled by the caller if the number of ranks has changed.
            own: this rank's own state, if there is one.

        Returns:
            Whether training continues bit for bit; None before the first exchange, when that is not known yet.

        Raises:
            ValueError: if the variables match those of this exchange neither by name nor by order and shape (before the
                first exchange, that exchange raises it), or a process set exchanges.
        """
        arguments.require_all_ranks(self._process_set)
        if self._planned is None:
            self._pending = (total, own)
            return None
        if self._obeying is not None:
            self._obeying.watch.take()  # what was written belongs to what is restored
        return state.restore(self._planned, total, own)

    @property
    def has_begun(self) -> bool:
        """Whether there was an exchange, so that ranks have agreed on a plan."""
        return self._planned is not None

    def begin_again(self, total: ResidualSum | None) -> None:
        """Drops the plan, so that the next exchange makes one for the ranks that there are then.

        A `tf.function` that was traced before raises an error from then on.

        Args:
            total: what was not sent, which all ranks share equally from the next exchange on; the same on every rank.
        """
        if self._planned is not None:
            self._planned.retire()
        if self._obeying is not None:
            self._obeying.watch.take()
        self._planned = self._obeying = self._agreed = None
        self._pending = None if total is None else (total, None)
        self._when_written()

    def when_written(self, told: Callable[[], None]) -> None:
        """Has a function called when variables, for which residuals or slots are kept, were written between steps."""
        self._when_written = told

    def note_slots(self, names: Iterable[str]) -> None:
        """Notes that the optimizer's slots of the variables of these names were written, as from a file."""
        if self._obeying is not None:
            self._obeying.watch.note(names)

    def settle(self) -> None:
        """Drops what belongs to weights that were written since, before it is saved; a collective."""
        if self._obeying is not None:
            self._obeying.settle()

    def at_start(self, call: Callable[[PlannedExchange], None]) -> None:
        """Has the first exchange call this, once all ranks have agreed on what they exchange."""
        self._require_unplanned("What the first exchange calls")
        self._at_start.append(call)

    def _plan_for(self, gradients: Mapping[str, Gradient], variables: Mapping[str, Any]) -> PlannedExchange:
        if self._planned is None:
            shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
            topology.size()  # raises if hvd.init() was not called; otherwise every rank would train on its own
            recipe = one_node.recipe_here(self.aggregator)
            usual = buckets.usual_bucket_bytes(gradients, shapes, recipe.sends_all)
            size = usual if self._bucket_bytes is None else self._bucket_bytes
            apart = arguments.dense_apart(recipe, shapes)
            plan = buckets.make_plan(gradients, shapes, size, self._first_bucket_bytes, apart)
            with making_variables():
                self._planned = self._begin(recipe, plan, variables)
        self._planned.plan.check(gradients)
        return self._planned

    def _agreed_name(self) -> str:
        """The name on rank 0, as other ranks may have made more exchanges before and use another number."""
        if self._agreed is None:
            self._agreed = self.grid().world.gather_descriptions(self._name, "gradients.name")[0]
        return self._agreed

    def _begin(self, recipe: Aggregator, plan: buckets.Plan, variables: Mapping[str, Any]) -> PlannedExchange:
        options = (self.telemetry, self._returns_sum, *self._of_optimizer)
        planned = PlannedExchange(
            recipe, plan, self.grid(), self._agreed_name(), *options, variables=variables, asked=self.aggregator
        )
        state.begin(planned, self._pending)
        self._pending = None
        if planned.keeps:
            drop = functools.partial(state.drop, planned)
            watched = [variables[each] for each in plan.order]
            self._obeying = Obeying(
                watched, self._when_written, self.grid().world, planned.name, planned.exchange_not_finite, drop
            )
        for call in self._at_start:
            call(planned)
        if self._epoch is not None:
            planned.set_epoch(self._epoch)
        return planned

    def _travels_in_rows(self, gradient: Gradient) -> bool:
        return isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense and gradient.dtype in DTYPES

    def _goes_apart(self, gradient: Gradient) -> bool:
        """Whether a gradient is float64, which buckets do not hold, and may travel by itself."""
        return gradient.dtype not in DTYPES and self.aggregator.sends_all

    @property
    def planned(self) -> PlannedExchange:
        """The exchange by the plan that all ranks agreed on; RuntimeError before the first exchange."""
        if self._planned is None:
            raise RuntimeError("There is no plan before the first exchange: train at least one step first.")
        return self._planned

    def _require_unplanned(self, subject: str) -> None:
        if self._planned is not None:
            raise RuntimeError(
                f"{subject} must be set before the first exchange, in which the ranks agree on what they exchange."
            )

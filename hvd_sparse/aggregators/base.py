"""The base class of aggregators, which average a gradient over all ranks."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, Parts, Reduced, Update, commit, dense, metrics, own_culprit
from hvd_sparse.spec import Spec, describe
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Communicator

# XLA refuses to compile a function with an exchange and prints the operations' names, so the names say what to do.
SCOPE = "hvd_sparse_cannot_be_compiled_by_XLA.leave_out_jit_compile_or_use_hvd.compiled_train_step"


class AggregatorState(tf.Module):
    """The state of one aggregator for one vector: the vector's spec, the communicator, and the inner state."""

    def __init__(self, spec: Spec, communicator: Communicator, inner: tf.Module | None = None):
        super().__init__()
        self.spec = spec
        self.communicator = communicator
        self.inner = inner


class Aggregator(abc.ABC):
    """Averages a vector over all ranks, once per step.

    A subclass implements the abstract methods. It may override `set_epoch`, `running`, `decided`, `at_density`,
    `holding`, `node_residual`, `uneven_contributions`, `takes_apart`, `exchange_apart` and the properties; the other
    methods are final.
    """

    recipe_name = ""  # what hvd.recipes calls it, for telemetry; equal aggregators may differ in it
    has_own_code = False  # whether values travel encoded, not in a plain dtype
    sends_nothing = False  # whether its input waits for a later step
    goes_by_nodes = False  # whether it needs to know the nodes of all ranks, which process sets do not

    @property
    def sends_all(self) -> bool:
        """Whether every mean contains the whole gradient, so that clipping can follow the exchange."""
        return False

    @property
    def nests(self) -> bool:
        """Whether it can be the inner of `Hierarchical`."""
        return True

    @property
    def returns_sum(self) -> bool:
        """Whether it returns the sum over all ranks instead of the mean."""
        return False

    # AutoGraph would spend seconds on rewriting everything called in here, to no effect.
    @tf.autograph.experimental.do_not_convert
    def init(self, spec: int | Spec) -> AggregatorState:
        """Creates the state for one vector; a collective that every rank must call.

        Args:
            spec: the vector; a plain size means float32, exchanged by all ranks.

        Raises:
            ValueError: if the vector is invalid; or, on every rank, if the ranks disagree on the vector or the recipe.
        """
        full = spec if isinstance(spec, Spec) else Spec(int(spec), topology.grid())
        full.validate()
        full.grid.world.agree(self.account(full), "the recipe or the vector", f"{full.name}.agree")
        return self.create(full)

    def account(self, spec: Spec) -> dict[str, Any]:
        """What must be the same on all ranks, JSON-serializable."""
        segments = [[segment.name, segment.size] for segment in spec.segments]
        return {"recipe": describe(self), "size": spec.size, "dtype": spec.dtype.name, "segments": segments}

    def create(self, spec: Spec) -> AggregatorState:
        """Creates the state without checking that the other ranks create the same."""
        return self._create(spec, spec.grid.world)

    @tf.autograph.experimental.do_not_convert
    def aggregate(self, vector: tf.Tensor, state: AggregatorState) -> tf.Tensor:
        """Averages a vector over all ranks.

        Args:
            vector: [size] in the spec's dtype.
            state: what `init` returned; it is advanced by one step.

        Returns:
            The mean, or the sum if the spec says so, [size] in the same dtype, with the same bits on every rank.

        Raises:
            tf.errors.InvalidArgumentError: on every rank, if any rank's vector is not finite; the state then stays as
                it was.
        """
        exchange = self.exchange(vector, state)
        name = state.spec.name
        with tf.control_dependencies(commit([exchange], [name], state.spec.grid.world, f"{name}.commit")):
            return tf.identity(exchange.mean)

    @tf.autograph.experimental.do_not_convert
    def exchange(self, vector: tf.Tensor, state: AggregatorState) -> Exchange:
        """Averages a vector [size] without writing the new state; `commit` writes it."""
        spec = state.spec
        world = spec.grid.world
        with tf.name_scope(SCOPE):
            row = tf.reshape(vector, [1, spec.size])
            reduced = self.reduce(Parts(row, (world.world_rank,)), spec.divisor, state)
            mean = dense(reduced.total, spec.size, spec.divisor, spec.dtype)

        def culprit() -> tf.Tensor:
            seen = reduced.culprit
            return seen if reduced.nonfinite is None else tf.maximum(seen, own_culprit(row, world.world_rank))

        return Exchange(
            mean=mean,
            culprit=culprit,
            nonfinite=reduced.nonfinite,
            updates=reduced.updates,
            metrics=metrics(reduced.traffic, reduced.selected, reduced.considered),
        )

    def takes_apart(self, spec: Spec) -> bool:
        """Whether `exchange_apart` can exchange the tensors that make up such a vector."""
        return False

    def exchange_apart(self, tensors: Sequence[tf.Tensor], state: AggregatorState, residual: tf.Tensor) -> Exchange:
        """Averages the tensors that make up the vector, each large one as soon as it is computed; only in a graph.

        Only aggregators whose `takes_apart` returns True support it.

        Args:
            tensors: in the order and with the sizes of the spec's segments, in any shapes.
            state: what `create` returned.
            residual: float32 [0] or [size]: what each rank adds to the vector, the same on every rank.

        Returns:
            As for `exchange`; the mean is a list of tensors in the shapes of `tensors`.
        """
        raise TypeError(f"{type(self).__name__} exchanges vectors only: call exchange(vector, state).")

    def at_density(self, density: float) -> Aggregator:
        """The same aggregator at another density; one that sends everything stays as it is.

        Both can use the same state: either continues from what the other kept.

        Raises:
            TypeError: if it has no density of its own.
        """
        if self.sends_all:
            return self
        raise TypeError(f"{type(self).__name__} has no density: set it for each recipe in it.")

    def holding(self) -> Aggregator:
        """The same aggregator in a step without an exchange, in which its input waits; both can use the same state.

        Raises:
            TypeError: if its input cannot wait.
        """
        raise TypeError(f"{type(self).__name__} exchanges in every step.")

    def restore(self, state: AggregatorState, residual: tf.Tensor) -> None:
        """Restores residuals.

        Args:
            state: what `init` returned.
            residual: float32 [size], the same on every rank: the sum of what the method `residual` returned on all
                ranks, scaled by the caller if the number of ranks has changed.
        """
        for update in self.restored(state, residual):
            update.variable.assign(update.value)

    def set_epoch(self, state: AggregatorState, epoch: int) -> None:  # noqa: B027 - most members have nothing to do
        """Sets the number of the epoch that begins; only a schedule uses it."""

    def running(self, state: AggregatorState) -> tuple[Aggregator, AggregatorState]:
        """The aggregator that last exchanged this vector, and its state: the part that was chosen, or itself."""
        return self, state

    def decided(self, state: AggregatorState) -> Any:
        """What was decided for this vector when its state was created, JSON-serializable, the same on every rank.

        None if there was nothing to decide. States with different decisions are not interchangeable.
        """
        return None

    @abc.abstractmethod
    def reduce(self, parts: Parts, divisor: int, state: AggregatorState) -> Reduced:
        """Sums parts over the ranks of the state's communicator; see `Reduced`."""

    @abc.abstractmethod
    def residual(self, state: AggregatorState) -> tf.Tensor:
        """What this rank has not sent yet, float32 [size]; later means make up for the sum of it over all ranks."""

    def node_residual(self, state: AggregatorState) -> tf.Tensor:
        """This rank's share of what its sender (the rank or its node) has not sent yet, float32 [size].

        It is a collective within the node if the ranks of a node are one sender.
        """
        return self.residual(state)

    @abc.abstractmethod
    def restored(self, state: AggregatorState, residual: tf.Tensor) -> tuple[Update, ...]:
        """The updates after which the residuals of all ranks add up to `residual` ([size] float32)."""

    def uneven_contributions(self, size: int, members: int) -> int | None:
        """The expected number of entries that `reduce` leaves to be added; None unless it differs between ranks."""
        return None

    @abc.abstractmethod
    def contributions(self, size: int, members: int) -> int | None:
        """How many entries `reduce` leaves to be added for a vector of this size; None if it returns a dense sum."""

    @abc.abstractmethod
    def _create(self, spec: Spec, communicator: Communicator) -> AggregatorState:
        """The state for one vector that is summed over `communicator`."""

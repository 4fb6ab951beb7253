"""The role: a gradient goes in, its mean over all ranks comes out."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse._renamed import Renamed
from hvd_sparse.aggregators.transaction import Exchange, Parts, Reduced, Update, commit, dense, metrics, own_culprit
from hvd_sparse.spec import Spec, describe
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Communicator

# XLA refuses a function that holds an exchange, and names the operations: so their names say what to do.
SCOPE = "hvd_sparse_cannot_be_compiled_by_XLA.leave_out_jit_compile_or_use_hvd.compiled_train_step"


class AggregatorState(tf.Module):
    """The state of one aggregator for one vector: whom it talks to about what, and what it keeps."""

    def __init__(self, spec: Spec, communicator: Communicator, inner: tf.Module | None = None):
        super().__init__()
        self.spec = spec
        self.communicator = communicator
        self.inner = inner


class Aggregator(Renamed, abc.ABC):
    """Averages a vector over all ranks, again and again.

    A member of this role implements the abstract methods; the others are final but for `set_epoch`, `running`,
    `decided`, `at_density`, `holding`, `node_residual`, `uneven_contributions`, the two about tensors apart and the
    properties.
    """

    old_names = {"owed": "residual", "sums": "returns_sum"}
    has_own_code = False  # whether values travel in a form that no dtype names
    sends_nothing = False  # whether what it gets waits for a later step
    goes_by_nodes = False  # whether it needs to know the nodes of all ranks, as no process set does

    @property
    def sends_all(self) -> bool:
        """Whether every mean holds the whole gradient, so that clipping can follow the exchange."""
        return False

    @property
    def nests(self) -> bool:
        """Whether it can be the inner of `Hierarchical`."""
        return True

    @property
    def returns_sum(self) -> bool:
        """Whether it hands on the sum over all ranks in place of the mean."""
        return False

    # AutoGraph would take seconds to rewrite all that is called in here, and there is nothing for it to find.
    @tf.autograph.experimental.do_not_convert
    def init(self, spec: int | Spec) -> AggregatorState:
        """Makes the state for one vector; a collective: every rank calls it.

        Args:
            spec: the vector; a plain size stands for float32, exchanged by all ranks.

        Raises:
            ValueError: where the vector cannot be, or, on every rank alike, where the ranks disagree on the vector or
                on the recipe.
        """
        full = spec if isinstance(spec, Spec) else Spec(int(spec), topology.grid())
        full.validate()
        full.grid.world.agree(self.account(full), "the recipe or the vector", f"{full.name}.agree")
        return self.create(full)

    def account(self, spec: Spec) -> dict[str, Any]:
        """What all ranks must have in common, JSON-serialisable."""
        segments = [[segment.name, segment.size] for segment in spec.segments]
        return {"recipe": describe(self), "size": spec.size, "dtype": spec.dtype.name, "segments": segments}

    def create(self, spec: Spec) -> AggregatorState:
        """Makes the state without asking the other ranks whether they make the same."""
        return self._create(spec, spec.grid.world)

    @tf.autograph.experimental.do_not_convert
    def aggregate(self, vector: tf.Tensor, state: AggregatorState) -> tf.Tensor:
        """Averages a vector over all ranks.

        Args:
            vector: [size] in the spec's dtype.
            state: what `init` returned; it is advanced by one step.

        Returns:
            The mean [size] in the same dtype, with the same bits on every rank; where the spec says so, the sum.

        Raises:
            tf.errors.InvalidArgumentError: on every rank alike where a rank's vector is not finite; the state is then
                as before.
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
        """Whether `exchange_apart` can exchange the tensors that such a vector consists of."""
        return False

    def exchange_apart(self, tensors: Sequence[tf.Tensor], state: AggregatorState, residual: tf.Tensor) -> Exchange:
        """Averages the tensors that the vector consists of, each large one as soon as it is there; in a graph.

        Only members that say so by `takes_apart` do.

        Args:
            tensors: in the order and with the sizes of the spec's segments, in any shapes.
            state: what `create` returned.
            residual: float32 [0], or [size]: what each rank adds to the vector, the same on every rank.

        Returns:
            As `exchange`; its mean is a list of tensors in the shapes of `tensors`.
        """
        raise TypeError(f"{type(self).__name__} exchanges vectors only: call exchange(vector, state).")

    def at_density(self, density: float) -> Aggregator:
        """The same aggregator that sends another share of each vector; one that sends all of it stays as it is.

        States fit both: what one keeps the other goes on with.

        Raises:
            TypeError: where it has no density of its own.
        """
        if self.sends_all:
            return self
        raise TypeError(f"{type(self).__name__} has no density: give one to each recipe in it.")

    def holding(self) -> Aggregator:
        """The same aggregator in a step without an exchange: what it gets waits. States fit both.

        Raises:
            TypeError: where nothing can wait.
        """
        raise TypeError(f"{type(self).__name__} exchanges in each step.")

    def restore(self, state: AggregatorState, residual: tf.Tensor) -> None:
        """Puts back residuals.

        Args:
            state: what `init` returned.
            residual: float32 [size], the same on every rank: the sum of what the method `residual` gave on all ranks,
                scaled by the caller where the number of ranks has changed.
        """
        for update in self.restored(state, residual):
            update.variable.assign(update.value)

    def set_epoch(self, state: AggregatorState, epoch: int) -> None:  # noqa: B027 - most members have nothing to do
        """Tells the number of the epoch that begins; only a schedule listens."""

    def running(self, state: AggregatorState) -> tuple[Aggregator, AggregatorState]:
        """The aggregator that has exchanged this vector last, and its state: the part that was chosen, else itself."""
        return self, state

    def decided(self, state: AggregatorState) -> Any:
        """What was decided for this vector when its state was made, JSON-serialisable, the same on every rank.

        None where there was nothing to decide. States of which this differs do not fit each other.
        """
        return None

    @abc.abstractmethod
    def reduce(self, parts: Parts, divisor: int, state: AggregatorState) -> Reduced:
        """Sums parts over the ranks of the state's communicator; see `Reduced`."""

    @abc.abstractmethod
    def residual(self, state: AggregatorState) -> tf.Tensor:
        """What this rank has not sent yet, float32 [size]; the next means are to make up for the sum over all ranks."""

    def node_residual(self, state: AggregatorState) -> tf.Tensor:
        """What the sender that this rank belongs to has not sent yet, a rank's share of it, float32 [size].

        A collective within the node where the ranks of a node are one sender.
        """
        return self.residual(state)

    @abc.abstractmethod
    def restored(self, state: AggregatorState, residual: tf.Tensor) -> tuple[Update, ...]:
        """The updates after which the residuals of all ranks add up to `residual` ([size] float32)."""

    def uneven_contributions(self, size: int, members: int) -> int | None:
        """About how many entries `reduce` leaves to be added, where ranks leave different numbers; None elsewhere."""
        return None

    @abc.abstractmethod
    def contributions(self, size: int, members: int) -> int | None:
        """How many entries `reduce` leaves to be added for a vector of this size; None where it gives a dense sum."""

    @abc.abstractmethod
    def _create(self, spec: Spec, communicator: Communicator) -> AggregatorState:
        """The state for one vector that is summed over `communicator`."""

"""One rank's part in model averaging: when it averages, and what keeps the models close to each other."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.averaging.datagrams import DatagramsChannel
from hvd_sparse.averaging.flat import FlatVariables, require_floats
from hvd_sparse.averaging.reliable import Reliable
from hvd_sparse.averaging.returning import Return, require_return, take_over
from hvd_sparse.averaging.telemetry import Telemetry, distance
from hvd_sparse.averaging.transports import Averaged, Channel, Transport
from hvd_sparse.transport.communicator import Communicator

_REMEDY = (
    "None of it was sent. Look for a learning rate that is too high or for bad input on that rank, resume from the "
    "last checkpoint, or train with loss scaling (keras.optimizers.LossScaleOptimizer), which skips such steps."
)
_NO_MEAN = (
    "The exact mean of all models could not be gathered: it needs Horovod, which has shut down, as it does when the "
    "process of a rank ends{}. Training with Datagrams continues without it: leave out hvd.averaging.mean and "
    "MeanOfModelsCallback from now on, and evaluate and save the model of this rank, which is close to the mean, as a "
    "copy: copy = keras.models.clone_model(model); copy.set_weights(model.get_weights()). The lost rank can return "
    "with hvd.averaging.return_with, which does not restart Horovod."
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an optimizer averages; all of it must be the same on every rank, except what a transport leaves to each rank.

    Attributes:
        transport: how the vectors are sent.
        every: H, the number of own steps between two rounds.
        rotate: whether owners of blocks change.
        resynchronise_every: rounds from one exact mean to the next; None for never.
        max_distance: the largest Euclidean distance between a model and the mean; None sets no bound.
        guard_every: rounds between two checks of that distance.
    """

    transport: Transport
    every: int = 1
    rotate: bool = True
    resynchronise_every: int | None = None
    max_distance: float | None = None
    guard_every: int = 100

    def account(self) -> dict[str, Any]:
        """What must be the same on all ranks, JSON-serialisable."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**own, "transport": self.transport.account()}


class Participant:
    """Averages the variables of one model.

    Attributes:
        settings: how it averages.
        telemetry: measures the rounds, or None.
        variables: the averaged variables, once it has begun.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry | None = None):
        self.settings = settings
        self.telemetry = telemetry
        self.variables: list[Any] = []
        self._mean_at: int | None = None
        self._postponed = False
        self._world: Communicator | None = None
        self._channel: Channel | None = None
        self._return: Return | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it knows its variables and the other ranks."""
        return self._channel is not None

    @property
    def world(self) -> Communicator:
        """All ranks; RuntimeError before the first step, and if this rank has come back without Horovod."""
        self.channel  # noqa: B018 - raises before the first step
        if self._world is None:
            raise RuntimeError(
                "This rank has replaced a lost one, and Horovod cannot admit it: the exact mean of all models, "
                "`resynchronise` and all other collective calls are not available."
            )
        return self._world

    @property
    def channel(self) -> Channel:
        """The transport's open channel; RuntimeError before the first step."""
        if self._channel is None:
            raise RuntimeError(
                "Averaging has not started: it starts in the first step, in which all ranks agree on its settings."
            )
        return self._channel

    def begin(
        self, variables: Sequence[Any], loaded: Sequence[Any], world: Communicator, name: str, passes: int = 1
    ) -> None:
        """Begins with the values of rank 0; a collective.

        Args:
            variables: what is averaged.
            loaded: slots that already hold something; they, too, begin with rank 0's values.
            world: all ranks.
            name: the same on every rank, unique in the process.
            passes: the number of calls of `take_part` that make one step.

        Raises:
            ValueError: if a variable cannot be averaged, or, on every rank, if ranks have built different models or
                have different settings.
        """
        self._take(variables, passes)
        world.agree(self._account, "what they average", f"{name}.agree")
        share_first(world, [*variables, *loaded], name)
        channel = self.settings.transport.open(self._flat.size, world, self.settings.rotate, name)
        self._exact = Reliable().open(self._flat.size, world, False, f"{name}.exact")
        self._start(channel, world.world_rank, world.size, 0)
        self._name = name
        self._world = world

    def _take(self, variables: Sequence[Any], passes: int) -> None:
        require_floats(variables)
        self.variables = list(variables)
        self._flat = FlatVariables(variables)
        self._period = self.settings.every * passes
        self._account = {"variables": self._flat.account(), **self.settings.account(), "passes of a step": passes}

    def _start(self, channel: Channel, rank: int, ranks: int, round: int) -> None:
        with tf.device("CPU:0"):
            self._calls = tf.Variable(0, dtype=tf.int64, trainable=False, name="averaging_calls")
            self._round = tf.Variable(round, dtype=tf.int64, trainable=False, name="averaging_round")
        if self.telemetry is not None:
            self.telemetry.create(ranks, channel)
        self._rank, self._channel = rank, channel

    # ---- after the end of a process ----

    @property
    def ticket(self) -> Return:
        """What lets another process take this one's place.

        Raises:
            ValueError: if ranks that are gone cannot come back.
            RuntimeError: before the first step.
        """
        require_return(self.settings.transport, self._has_exact_rounds)
        channel = self.channel
        assert isinstance(channel, DatagramsChannel)
        return Return(channel.ticket, self._account)

    def return_with(self, ticket: Return) -> None:
        """Makes `come_back` take the place of a rank that is gone, instead of beginning with the others.

        Raises:
            ValueError: if ranks that are gone cannot come back.
            RuntimeError: if it has already begun.
        """
        require_return(self.settings.transport, self._has_exact_rounds)
        if self.has_begun:
            raise RuntimeError("The optimizer has already been used: return with one that is not yet built.")
        self._return = ticket

    @property
    def comes_back(self) -> bool:
        """Whether it takes the place of a rank that is gone."""
        return self._return is not None

    def come_back(self, variables: Sequence[Any], passes: int = 1) -> int:
        """Takes over the model of the live ranks, and takes part from their next round on; not a collective.

        Args:
            variables: what is averaged.
            passes: the number of calls of `take_part` that make one step.

        Returns:
            The number of calls of `take_part` that a rank that was never gone has made.

        Raises:
            ValueError: if a variable cannot be averaged, or this process has built another model or has other settings
                than the job.
            OSError: if it cannot listen at its old address and port.
            RuntimeError: if no other rank takes part.
        """
        assert self._return is not None
        self._take(variables, passes)
        self._return.require_alike(self._account)
        ticket = self._return.channel
        channel = require_return(self.settings.transport, self._has_exact_rounds).reopen(ticket)
        try:
            vector, round = take_over(channel)
        except BaseException:
            channel.close()
            raise
        self._flat.assign(tf.constant(vector))
        self._start(channel, ticket.rank, len(ticket.ends), round)
        return round * self._period

    @property
    def _has_exact_rounds(self) -> bool:
        return self.settings.resynchronise_every is not None or self.settings.max_distance is not None

    @property
    def calls(self) -> int:
        """How often this rank has taken part; 0 before it has begun."""
        return int(self._calls.numpy()) if self.has_begun else 0

    # ---- in each step ----

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """While this is traced, `take_part` does nothing: the caller will call it later."""
        self._postponed = True
        try:
            yield
        finally:
            self._postponed = False

    @tf.autograph.experimental.do_not_convert
    def take_part(self) -> None:
        """Counts a step of this rank, and averages if a round is due; all ranks call it after each step."""
        if self._postponed:
            return
        self.channel  # noqa: B018 - raises if it could not begin
        calls = self._calls.assign_add(1)
        if self._period == 1:
            self._average()
        else:
            tf.cond(calls % self._period == 0, self._average, lambda: False)

    def _average(self) -> bool:
        own, round = self._flat.read(), self._round.read_value()
        with tf.control_dependencies(require_finite(own, self.channel, self._rank, "weights")):
            own = tf.identity(own)
        times = self._calls.read_value() // self._period
        due = self._is_due(times)
        averaged = self.channel.average(own, round) if due is None else self._one_of(due, own, round)
        stray = distance(own, averaged) if self.telemetry is not None else None
        vector, guarded = self._guarded(own, averaged, times)
        self._flat.assign(vector)
        self._round.assign(averaged.round + 1)
        if self.telemetry is not None:
            self.telemetry.record(averaged, stray, guarded if due is None else guarded | due)
        return True

    def _is_due(self, times: tf.Tensor) -> tf.Tensor | None:
        """Whether the n-th round of this rank is to be exact, [] bool; None if no round ever is.

        An exact round is a collective. All ranks make the same number of steps, but one that was away may skip rounds
        of the transport; so this does not depend on the round's number.
        """
        every = self.settings.resynchronise_every
        return None if every is None else tf.equal(times % every, 0)

    def _one_of(self, exact: tf.Tensor, own: tf.Tensor, round: tf.Tensor) -> Averaged:
        return Averaged(*tf.cond(exact, lambda: self._exactly(own, round), lambda: self.channel.average(own, round)))

    def _exactly(self, own: tf.Tensor, round: tf.Tensor) -> Averaged:
        """The exact mean; it says nothing about what the transport loses."""
        averaged = self._exact.average(own, round)
        nothing = tf.zeros_like(averaged.expected)
        return averaged._replace(expected=nothing, arrived=nothing)

    def _guarded(self, own: tf.Tensor, averaged: Averaged, times: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The new vector of the n-th round, exact if a model has strayed too far, and whether one has, [] bool."""
        limit = self.settings.max_distance
        if limit is None:
            return averaged.vector, tf.constant(False)

        def looked() -> tuple[tf.Tensor, tf.Tensor]:
            farthest = self.world.allreduce(distance(own, averaged), "max", f"{self._name}.guard")
            strayed = farthest > limit
            exact = lambda: self._exact.average(averaged.vector, averaged.round).vector  # noqa: E731
            return tf.cond(strayed, exact, lambda: averaged.vector), strayed

        time = tf.equal(times % self.settings.guard_every, 0)
        return tf.cond(time, looked, lambda: (averaged.vector, tf.constant(False)))

    # ---- between steps ----

    def close(self) -> None:
        """Releases what the transport holds; nothing is averaged afterwards."""
        if self._channel is not None:
            self._channel.close()

    def resynchronise(self) -> None:
        """Gives all ranks the exact mean of their variables; a collective."""
        self.world  # noqa: B018 - raises before the first step
        self._flat.assign(self.exact_mean(self._flat, "resynchronise"))
        if self.telemetry is not None:
            self.telemetry.count_resynchronisation()

    def exact_mean(self, flat: FlatVariables, name: str) -> tf.Tensor:
        """The exact mean of some variables over all ranks, [size] float32; an eager collective.

        Raises:
            RuntimeError: if Horovod has ended, as it does on all ranks when the process of one is gone.
        """
        try:
            return self._gathered_mean(flat, name)
        except tf.errors.InvalidArgumentError:  # some values are not finite
            raise
        except tf.errors.OpError as error:
            silent = self.channel.report().get("silent")
            who = f"; ranks {', '.join(map(str, silent))} no longer answer" if silent else ""
            raise RuntimeError(_NO_MEAN.format(who)) from error

    def _gathered_mean(self, flat: FlatVariables, name: str) -> tf.Tensor:
        own = flat.read()
        self.world.agree({"variables": flat.account()}, "what they average", f"{self._name}.{name}.agree")
        channel = Reliable().open(flat.size, self.world, False, f"{self._name}.{name}")
        require_finite(own, channel, self._rank, "weights, slots or statistics")
        return channel.average(own, tf.constant(0, tf.int64)).vector

    def holds_mean(self, does: bool) -> None:
        """Records whether the variables hold the exact mean from now on, until the next step."""
        self._mean_at = self.calls if does else None

    def require_mean(self) -> None:
        """Raises RuntimeError if the model was trained and is about to be saved with the values of this rank alone."""
        if not self.has_begun or (self._world is not None and self._world.size == 1):
            return
        if self._world is None:
            raise RuntimeError(
                "This rank has replaced a lost one, and cannot gather the exact mean: save a copy of the model, by "
                "keras.models.clone_model(model) and set_weights(model.get_weights())."
            )
        if self.calls not in (0, self._mean_at):
            raise RuntimeError(
                "The models of the ranks differ, and their mean was not gathered since the last step: save inside "
                "`with hvd.averaging.mean(model):`, which all ranks must enter, or pass "
                "hvd.callbacks.MeanOfModelsCallback() before the callback that saves."
            )


def share_first(world: Communicator, variables: Sequence[Any], name: str) -> None:
    """Gives variables the values that they have on rank 0; a collective."""
    for number, variable in enumerate(variables):
        variable.assign(world.broadcast(tf.convert_to_tensor(variable), 0, f"{name}.first.{number}"))


def require_finite(vector: tf.Tensor, channel: Channel, rank: int, what: str) -> list[tf.Tensor]:
    """Raises InvalidArgumentError if a vector holds a NaN or an infinity, on all ranks if the channel asks them.

    Returns:
        What averaging must depend on in a graph.
    """
    _, found = ops.sum_parts(vector[None])
    culprit = channel.culprit(tf.where(found == 0, 0, rank + 1))
    told = tf.strings.format(f"The {what} of rank {{}} hold a NaN or an infinity. {_REMEDY}", culprit - 1)
    checked = tf.debugging.Assert(culprit == 0, [told])
    return [] if checked is None else [checked]

"""Ranks of the study of model averaging: threads of one process, each with an optimizer of the library's own.

What differs from real ranks is that a collective hands arrays over (tests/threads.py) and that the weights of a model
are one flat variable, which for plain SGD changes no bit. Statistics of batch normalisation are each rank's own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.averaging_settings import Arm
from benchmarks.averaging_tasks import State, Task
from hvd_sparse import averaging
from hvd_sparse.averaging.gradients import averaged_gradients
from hvd_sparse.averaging.optimizer import averaged
from hvd_sparse.averaging.transports import Channel, Transport
from hvd_sparse.transport.communicator import Grid
from tests import threads


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of each step, from a table."""

    def __init__(self, rates: Sequence[float]):
        self._rates = tf.constant(rates, tf.float32)

    def __call__(self, step: Any) -> Any:
        return tf.gather(self._rates, tf.cast(step, tf.int32))


@dataclasses.dataclass(frozen=True)
class Counted(Transport):
    """Another transport, of which it counts what was to come and what came.

    Attributes:
        transport: that one.
        pieces: the two counts, over all rounds; they grow.
    """

    transport: Transport
    pieces: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2, np.int64), compare=False)

    def account(self):
        return self.transport.account()

    def open(self, size, world, rotate, name):
        return _CountedChannel(self.transport.open(size, world, rotate, name), self.pieces)


class _CountedChannel(Channel):
    def __init__(self, channel: Channel, pieces: np.ndarray):
        self._channel, self._pieces = channel, pieces

    def average(self, vector, round):
        averaged = self._channel.average(vector, round)
        self._pieces += [averaged.expected.numpy().sum(), averaged.arrived.numpy().sum()]
        return averaged

    def culprit(self, own):
        return self._channel.culprit(own)


class Rank:
    """One rank: its weights, its statistics, and the optimizer that moves and averages.

    Args:
        begin: the state before the first step.
        arm: how it averages.
        rates: of each step.
        seed: of losses.
    """

    def __init__(self, begin: State, arm: Arm, rates: Sequence[float], seed: int):
        self.transport = Counted(arm.transport(seed))
        self._weights = keras.Variable(begin.weights, name="weights")
        self._statistics = tf.constant(begin.statistics)
        optimizer, self._gradients = keras.optimizers.SGD(Rates(rates)), arm.gradients
        if arm.gradients:
            self._optimizer = averaging.GradientAveraging(optimizer, self.transport, arm.rotate)
        else:
            self._optimizer = averaging.ModelAveraging(optimizer, self.transport, arm.every, arm.rotate)

    def meet(self, grid: Grid) -> None:
        """What the first step does among processes: all ranks begin together."""
        keras.optimizers.SGD.build(self._optimizer, [self._weights])
        if self._gradients:
            averaged_gradients(self._optimizer).begin([self._weights], grid.world, "averaging")
        else:
            averaged(self._optimizer).begin([self._weights], [], grid.world, "averaging")

    def step(self, task: Task, batch: Sequence[Any]) -> float:
        """Takes a step; returns the loss before it."""
        weights = self._weights.value.read_value()
        gradient, self._statistics, loss = task.gradient(weights, self._statistics, *map(tf.constant, batch))
        self._optimizer.apply([gradient], [self._weights])
        return float(loss)

    def state(self) -> State:
        """Of this rank's own model."""
        return State(self._weights.numpy(), self._statistics.numpy())


def mean(states: Sequence[State]) -> State:
    """The mean of the models of all ranks; of equal ones that one, to the bit."""
    parts = [np.mean(part, axis=0, dtype=np.float64) for part in zip(*states, strict=True)]
    return State(*(part.astype(np.float32) for part in parts))


def train(task: Task, arm: Arm, ranks: int, seed: int) -> dict[str, Any]:
    """Trains from the start.

    Returns:
        - final, loss: the score in points and the loss on test samples, at the mean of the models.
        - own: the score of the first rank's own model there.
        - fitted: the loss on the training samples, at the mean of the models.
        - trained: the mean loss of the last epoch's batches, each at the own model of the rank that took it.
        - curve, losses: after each epoch, the score on validation samples at the mean of the models, and `trained`.
        - distance: Euclidean, of a rank's weights from their mean, in units of the norm of the mean; averaged over
          ranks and over the ends of epochs.
        - lost: the share of blocks that did not arrive.
        - size: elements of the weights.
        - steps: of each rank.
        - weights: a digest of the mean.

    Raises:
        ArithmeticError: where the loss is not finite.
    """
    schedule, steps = task.schedule, task.steps(ranks)
    everyone = threads.grids(ranks, ranks)
    rates = schedule.rates(schedule.epochs * steps, ranks)
    members = [Rank(task.begin(seed), arm, rates, seed) for _ in range(ranks)]
    threads.run_on(everyone, lambda grid: members[grid.world.rank].meet(grid))
    curve, losses, distances = [], [], []
    for epoch in range(schedule.epochs):
        order = task.order(seed, epoch)

        def train_epoch(grid: Grid, epoch: int = epoch, order: np.ndarray = order) -> float:
            rank = grid.world.rank
            own = (rank + arm.turned) % ranks
            batches = (task.batch(order, seed, epoch, step * ranks + own) for step in range(steps))
            return float(np.mean([members[rank].step(task, batch) for batch in batches]))

        losses.append(float(np.mean(threads.run_on(everyone, train_epoch))))
        if not math.isfinite(losses[-1]):
            raise ArithmeticError(f"The loss is {losses[-1]}: take a lower learning rate than {schedule.rate}.")
        states = [member.state() for member in members]
        together = mean(states)
        distances.append(_distance(states, together))
        curve.append(task.score(together, task.validation).points)
    tested = task.score(together, task.test)
    expected, arrived = np.sum([member.transport.pieces for member in members], 0)
    return {
        "final": tested.points,
        "loss": tested.loss,
        "own": task.score(states[0], task.test).points,
        "fitted": task.score(together, task.fitted).loss,
        "trained": losses[-1],
        "curve": curve,
        "losses": losses,
        "distance": float(np.mean(distances)),
        "lost": float((expected - arrived) / max(expected, 1)),
        "size": len(together.weights),
        "steps": schedule.epochs * steps,
        "weights": hashlib.sha256(b"".join(part.tobytes() for part in together)).hexdigest()[:16],
    }


def _distance(states: Sequence[State], together: State) -> float:
    gaps = [np.linalg.norm(state.weights - together.weights) for state in states]
    return float(np.mean(gaps) / np.linalg.norm(together.weights))

"""Ranks of the study of model averaging: threads of one process, each with the library's own optimizer.

Two things differ from real ranks. A collective passes arrays in memory (tests/threads.py). And the weights of a model
are one flat variable, which changes no bit for plain SGD. Each rank has its own statistics of batch normalisation.
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

from benchmarks.averaging.settings import Arm
from benchmarks.averaging.tasks import State, Task
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
    """Wraps a transport, and counts the blocks that were expected and those that arrived.

    Attributes:
        transport: the wrapped transport.
        pieces: the two counts, over all rounds so far.
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
        begin: state before the first step.
        arm: how models are averaged.
        rates: learning rate of each step.
        seed: seed of message losses.
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
        """Makes all ranks begin together, as the first step does among processes."""
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
        """The state of this rank's own model."""
        return State(self._weights.numpy(), self._statistics.numpy())


def mean(states: Sequence[State]) -> State:
    """The mean of the models of all ranks; if they are equal, the same bits."""
    parts = [np.mean(part, axis=0, dtype=np.float64) for part in zip(*states, strict=True)]
    return State(*(part.astype(np.float32) for part in parts))


def train(task: Task, arm: Arm, ranks: int, seed: int) -> dict[str, Any]:
    """Trains from the start.

    Returns:
        - final, loss: score in points and loss on test samples, of the mean of the models.
        - own: score of the first rank's own model on test samples.
        - fitted: loss on the training samples, of the mean of the models.
        - trained: mean loss of the last epoch's batches, each with the model of the rank that used it.
        - curve, losses: after each epoch, the score of the mean model on validation samples, and `trained`.
        - distance: Euclidean distance of a rank's weights from their mean, in units of the norm of the mean; averaged
          over ranks and over the ends of epochs.
        - lost: share of blocks that did not arrive.
        - size: number of weights.
        - steps: number of steps of each rank.
        - weights: digest of the mean.

    Raises:
        ArithmeticError: if the loss is not finite.
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

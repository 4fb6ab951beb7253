"""The same training by plain Keras optimizers: one replica of the model for each rank, and means taken in NumPy.

Where a recipe applies the mean gradient, each replica's optimizer gets it, which is plain Keras on the joined batch. A
recipe of updates is one optimizer for each node, on the node's mean gradient; the mean of their updates changes the
weights. Gradients that are rows, and those of local layers, go to an optimizer as they are under every recipe.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.grid.cell import Cell
from tests.grid.models import MODELS, Two, made, path
from tests.grid.optimizers import OPTIMIZERS
from tests.grid.play import Values, batches, values
from tests.grid.recipes import EVERY, LOCAL, RECIPES
from tests.grid.ways import WAYS

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of recipes.diloco


def simulated(cell: Cell) -> list[Values]:
    """What each rank ends with."""
    training = _Training(cell)
    training.epoch(0)
    if cell.way == "rolled_back":
        training.roll_back()
    if WAYS[cell.way].moves:
        training = training.moved()
    training.epoch(1)
    return [values(model) for model in training.models]


class _Part:
    """The variables of one optimizer, on all ranks."""

    def __init__(self, cell: Cell, variables: list[list[Any]]):
        self.cell, self.variables = cell, variables
        self.optimizers = [OPTIMIZERS[cell.optimizer].make() for _ in variables]
        self.decay = 0.0
        for optimizer, own in zip(self.optimizers, variables, strict=True):
            if cell.optimizer == "AdamW" and cell.node_updates:  # decoupled decay acts on the weights that all share
                self.decay, optimizer.weight_decay = optimizer.weight_decay or 0.0, None
            optimizer.build(own)
        self.sums: list[list[Any]] = [[None] * len(own) for own in variables]
        self.shared = [each.numpy() for each in variables[0]]
        self.velocity = [np.zeros(each.shape, "f4") for each in variables[0]]
        self.local = [
            path(each).startswith(tuple(f"{name}/" for name in MODELS[cell.model].local)) for each in variables[0]
        ]
        self.passes = self.steps = 0
        self.rows: list[bool] = [False] * len(self.local)

    def take_over(self, other: _Part) -> None:
        """Continues with the steps and slots of the other's first replica."""
        self.passes, self.steps = other.passes, other.steps
        for optimizer in self.optimizers:
            for own, value in zip(_inner(optimizer).variables, _inner(other.optimizers[0]).variables, strict=True):
                own.assign(value)

    def take(self, gradients: list[list[Any]]) -> None:
        """Accumulates the ranks' gradients, and applies them after the last pass of a step."""
        for own, new in zip(self.sums, gradients, strict=True):
            for number, gradient in enumerate(new):
                if gradient is not None:
                    # Keras adds up gradients in dense variables, so that rows are rows no longer.
                    self.rows[number] = isinstance(gradient, tf.IndexedSlices) and self.cell.passes == "single"
                    dense = tf.convert_to_tensor(gradient).numpy()
                    own[number] = dense if own[number] is None else own[number] + dense
        self.passes += 1
        if self.passes % (1 if self.cell.passes == "single" else 2):
            return
        self.steps += 1
        self._step()
        self.sums = [[None] * len(own) for own in self.variables]

    def _step(self) -> None:
        divisor = 2.0 if self.cell.passes == "keras_two" else 1.0
        means = [self._means(rank, divisor) for rank in range(len(self.variables))]
        if not self.cell.node_updates:
            for rank in range(len(self.variables)):
                self._apply(rank, means[rank])
            return
        before = [[each.numpy() for each in own] for own in self.variables]
        for rank, own in enumerate(self.variables):
            for number, variable in enumerate(own):
                if means[rank][number] is not None and not self._is_combined(number):
                    variable.assign(variable.numpy() * np.float32(1 - self.decay * self._rate))
            self._apply(rank, means[rank])
        for number, sums in enumerate(self.sums[0]):
            if self._is_combined(number) and sums is not None:
                self._combine(number, [own[number] for own in before])

    @property
    def _rate(self) -> float:
        return float(_inner(self.optimizers[0]).learning_rate)

    def _is_combined(self, number: int) -> bool:
        """Whether each node makes an update of a variable, and the nodes apply the mean of these."""
        return not self.local[number] and not self.rows[number]

    def _means(self, rank: int, divisor: float) -> list[Any]:
        """What the optimizer of a rank gets for each variable."""
        ranks, size = len(self.variables), self.cell.ranks // self.cell.nodes
        node = range(rank // size * size, (rank // size + 1) * size)
        found = []
        for number, (local, rows) in enumerate(zip(self.local, self.rows, strict=True)):
            everyone = [own[number] for own in self.sums]
            if everyone[rank] is None:
                found.append(None)
            elif local:
                found.append(everyone[rank] / np.float32(divisor * ranks))
            else:
                among = node if self.cell.node_updates and not rows else range(ranks)
                found.append(np.mean([everyone[each] for each in among], axis=0) / np.float32(divisor))
        return found

    def _apply(self, rank: int, gradients: list[Any]) -> None:
        optimizer, own = self.optimizers[rank], self.variables[rank]
        given = [None if each is None else tf.constant(each, tf.float32) for each in gradients]
        inner = _inner(optimizer)
        if self.cell.passes == "horovods_two":
            inner.iterations.assign(self.passes - 1)  # Horovod's count of iterations is that of passes
        inner.apply(given, own)

    def _combine(self, number: int, before: list[np.ndarray]) -> None:
        """Applies the mean of the nodes' updates of a variable, or lets the nodes go on by themselves.

        What a node writes itself, in the forward pass, joins its update if it trains on its own, and otherwise changes
        the weights that all share, as under a mean gradient.
        """
        local = RECIPES[self.cell.recipe].applies == LOCAL
        begins = [self.shared[number]] * len(before) if local else before
        moved = [old - own[number].numpy() for old, own in zip(begins, self.variables, strict=True)]
        shared = begins[0] - begins[0] * np.float32(self.decay * self._rate)
        if not local or self.steps % EVERY == 0:
            shared = shared - self._lowered(number, np.mean(moved, axis=0))
            moved = [np.zeros_like(shared)] * len(moved)
        self.shared[number] = shared
        for own, waits in zip(self.variables, moved, strict=True):
            own[number].assign(shared - waits)

    def _lowered(self, number: int, mean: np.ndarray) -> np.ndarray:
        if RECIPES[self.cell.recipe].applies != LOCAL:
            return mean
        velocity = self.velocity[number] = OUTER_MOMENTUM * self.velocity[number] + mean
        return OUTER_RATE * (mean + OUTER_MOMENTUM * velocity)


class _Training:
    """The models of all ranks, and their optimizers."""

    def __init__(self, cell: Cell):
        self._cell = cell
        self.models = [made(cell.model, rank) for rank in range(cell.ranks)]
        self._start = [model.get_weights() for model in self.models]
        self._parts = [_Part(cell, list(variables)) for variables in zip(*map(_lists, self.models), strict=True)]

    def epoch(self, phase: int) -> None:
        of_ranks = [batches(self._cell, rank, phase) for rank in range(self._cell.ranks)]
        for data in zip(*of_ranks, strict=True):
            for number, part in enumerate(self._parts):
                part.take([_gradients(model, number, *own) for model, own in zip(self.models, data, strict=True)])

    def moved(self) -> _Training:
        """The training on the ranks on which it goes on, with the state of this one."""
        made = _Training(self._cell.after)
        for model in made.models:
            model.set_weights(self.models[0].get_weights())
        for new, old in zip(made._parts, self._parts, strict=True):
            new.take_over(old)
        return made

    def roll_back(self) -> None:
        for model, start in zip(self.models, self._start, strict=True):
            model.set_weights(start)


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _lists(model: keras.Model) -> list[list[Any]]:
    """The variables of each optimizer."""
    if isinstance(model, Two):
        return [model.critic.trainable_variables, model.actor.trainable_variables]
    return [model.trainable_variables]


def _gradients(model: keras.Model, number: int, inputs: np.ndarray, targets: np.ndarray) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
    return tape.gradient(loss, _lists(model)[number])

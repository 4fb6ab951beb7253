"""The arms of bench_train.py: one training step per kind of gradient exchange, measured by clocks in its graph."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange import arm_recipes
from benchmarks.train import models as train_models
from benchmarks.train.breakdown import Marks
from hvd_sparse import ops
from hvd_sparse.exchange import telemetry

HOROVOD, AGAIN, NOTHING = "Horovod", "Horovod, A/A", "no exchange"
HOROVOD_FP16 = HOROVOD + arm_recipes.FP16
IMPORTED = "import line alone"
_NEVER = 2**40


class Arm:
    """A model, its optimizer, its batches and its exchange; arms share none of these.

    All arms begin with the same weights and see the same batches; each rank has its own sequence.

    Args:
        name: `HOROVOD`, `HOROVOD_FP16`, `NOTHING`, `IMPORTED`, or a recipe, by a name of exchange/arm_recipes.py.
        task: the task to train.
        size: size of the task's model.
        density: density for recipes that take one.

    Attributes:
        model: the model.
        losses: losses of all steps so far.
        sends_all: whether its mean gradients are those of plain data parallelism, up to the rounding of what travels.
    """

    def __init__(self, name: str, task: train_models.Task, size: Any, density: float):
        keras.utils.set_random_seed(1)
        self.model = task.model(size)
        self.losses: list[float] = []
        self._batches = iter(task.batches(size, seed=hvd.rank()))
        self._exchange: hvd.GradientExchange | None = None
        self._telemetry = hvd.Telemetry(norms_every=_NEVER)
        distributed: Callable[[tf.GradientTape], Any] = lambda tape: tape  # noqa: E731
        self.sends_all = name in (HOROVOD, HOROVOD_FP16, IMPORTED)
        if name == HOROVOD:
            distributed = horovod.DistributedGradientTape
        elif name == HOROVOD_FP16:
            distributed = functools.partial(horovod.DistributedGradientTape, compression=horovod.Compression.fp16)
        elif name == IMPORTED:
            distributed = hvd.DistributedGradientTape
        elif name != NOTHING:
            aggregator = arm_recipes.recipe(name, density)
            self.sends_all = aggregator.sends_all
            self._exchange = hvd.GradientExchange(aggregator, name=f"train.{name}", telemetry=self._telemetry)
            distributed = self._sparsely_distributed
            self._plan()
        self._optimizer = optimizer = task.optimizer()
        optimizer.build(self.model.trainable_variables)  # variables created in the step would cause a second trace
        step = _Step(self.model, optimizer, distributed, self._selections)
        self._step = tf.function(step, jit_compile=False, autograph=False)
        self._never_known = tf.constant(0.0, tf.float64)

    def run(self, steps: int) -> list[Marks]:
        """Takes some training steps; the marks of each begin where those of the last one end."""
        readings, ended = [], time.perf_counter()
        for _ in range(steps):
            asked = ended
            inputs, labels = next(self._batches)
            given = time.perf_counter()
            loss, ready, met, selections = self._step(inputs, labels, self._never_known)
            self.losses.append(float(loss))  # in eager mode on a CPU the whole step has ended by now
            ended = time.perf_counter()
            readings.append((asked, given, ready, met, ended, selections))
        return [
            Marks(asked, given, float(ready), float(met), ended, tuple(map(tuple, selections.numpy().tolist())))
            for asked, given, ready, met, ended, selections in readings
        ]

    def kept_by_optimizer(self) -> np.ndarray:
        """The optimizer's slots, concatenated, float32; after one step they show the mean gradient."""
        slots = [variable for variable in self._optimizer.variables if variable.shape]
        return np.concatenate([np.ravel(slot.value.numpy()) for slot in slots])

    def figures(self) -> dict[str, Any]:
        """The telemetry of the last exchange; {} for arms without an exchange of ours."""
        return {} if self._exchange is None else self._exchange.read_telemetry()

    def _plan(self) -> None:
        """Exchanges zeros once: an exchange that plans while a step is traced would cause a second trace.

        Buckets are then filled in the reverse order of the variables, which in these models is roughly a graph's order.
        """
        variables = [variable.value for variable in self.model.trainable_variables]
        assert self._exchange is not None
        self._exchange([tf.zeros_like(variable) for variable in variables], variables)

    def _sparsely_distributed(self, tape: tf.GradientTape) -> hvd.DistributedGradientTape:
        return hvd.DistributedGradientTape(tape, aggregator=self._exchange)

    def _selections(self) -> tf.Tensor:
        """When the selection of each bucket began and ended in the last exchange, [buckets, 2]."""
        states = () if self._exchange is None else self._exchange.states
        spans = [span for state in states for span in telemetry.spans(state)]
        return tf.stack([span.read_value() for span in spans]) if spans else tf.zeros([0, 2], tf.float64)


@dataclasses.dataclass(eq=False)  # tf.function hashes it
class _Step:
    """A training step as a user of Horovod writes it, with clock readings.

    A clock is read when all of a part's results exist. Our clock op and `time.perf_counter` read the same clock,
    CLOCK_MONOTONIC, which all ranks of a machine share.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    distributed: Callable[[tf.GradientTape], Any]
    selections: Callable[[], tf.Tensor]

    def __call__(self, inputs: Any, labels: tf.Tensor, unknown: tf.Tensor) -> tuple[tf.Tensor, ...]:
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        variables = self.model.trainable_variables
        own: list[tf.Tensor] = []
        with _noting_tape(own) as tape:
            loss = loss_of(labels, self.model(inputs, training=True))
        means = self.distributed(tape).gradient(loss, [variable.value for variable in variables])
        with tf.control_dependencies(own):
            ready = ops.clock(unknown)
        with tf.control_dependencies([*means, ready]):
            met = ops.clock(unknown)
        selections = self.selections()
        self.optimizer.apply(means, variables)
        return loss, ready, met, selections


def _noting_tape(own: list[tf.Tensor]) -> tf.GradientTape:
    """A tape that also puts its gradients into a list; embedding gradients are made dense, alike for all arms."""

    class NotingTape(tf.GradientTape):
        def gradient(self, *args: Any, **options: Any) -> list[tf.Tensor]:
            own[:] = [tf.convert_to_tensor(gradient) for gradient in super().gradient(*args, **options)]
            return list(own)

    return NotingTape()

"""A Keras model whose stages are computed by different ranks."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.optimizers import ahead
from hvd_sparse.pipeline import clipping
from hvd_sparse.pipeline.chain import Chain, Part, made
from hvd_sparse.pipeline.grid import Grid
from hvd_sparse.pipeline.messages import WIRE_DTYPES
from hvd_sparse.pipeline.neighbours import Neighbours, Place, StageError
from hvd_sparse.pipeline.packing import Packed, each_value, unpack
from hvd_sparse.pipeline.passes import Last, Middle
from hvd_sparse.pipeline.schedules import SCHEDULES
from hvd_sparse.pipeline.steps import End, Split, Steps
from hvd_sparse.pipeline.threshold import Threshold
from hvd_sparse.transport import subgrid, topology
from hvd_sparse.transport.communicator import Communicator, LoneCommunicator
from hvd_sparse.transport.meeting import meet


class Stages(keras.Model):
    """Splits a model into stages on different ranks, which send each other only the largest activations (DCT-MP).

        model = hvd.pipeline.Stages([bottom, top], sparsity=0.95, micro_batches=4)
        model.compile(keras.optimizers.Adam(), "binary_crossentropy", metrics=["AUC"])
        model.fit(x, y, batch_size=128, epochs=3)

    All ranks run the same script with the same data in the same order. Each computes only its own stage, and holds only
    that stage's variables and slots; metrics are those of the last stage, on every rank. With one rank, all parts are
    computed there, with a `Threshold` layer at each split: the same to the bit.

    A batch is cut into micro-batches, so that stages work at the same time. Their gradients are added up in order, each
    weighted by its share of the samples, and one step is made. Batch normalisation sees micro-batches. If a gradient is
    not finite in any stage, no stage makes the step.

    Args:
        parts: of the model, in order; layers, models, or functions that create them, which are called only where they
            are needed. At least as many as the grid has stages; consecutive ones share a stage. Each passes one tensor
            [rows, ..., d] to the next. A functional model may take further inputs of the whole model, by name.
        micro_batches: the number that a batch is cut into.
        sparsity: the share of each row that is dropped at each split, or a list with one for each split; 0 sends all.
        wire_dtype: how values are sent: "float32", "float16", "bfloat16", or "int8" or "int4" with a scale for each
            row. With "float32", half-precision activations are sent as they are.
        schedule: "one_forward_one_backward" or "fill_drain".
        grid: trainers and stages; the default is one trainer with as many stages as there are ranks.
        interface: network interface, or address, of this host; its stage listens there and nowhere else.
        name: of the model.

    Steps and bytes sent per split and batch of B rows of d elements, of which k are kept: one message in each direction
    for each micro-batch; forward B k (v + 2) or, with one bit for each element, B (k v + d / 8), and backward B k v,
    where v is the number of bytes of a value.

    Raises:
        TypeError: if a part is none of these.
        ValueError: on every rank, if the parts do not fit the grid or the grid the ranks, or an argument is invalid.
        OSError: on every rank, if one cannot listen.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        micro_batches: int = 1,
        *,
        sparsity: float | Sequence[float] = 0.0,
        wire_dtype: str = "float32",
        schedule: str = "one_forward_one_backward",
        grid: Grid | None = None,
        interface: str | None = None,
        name: str = "stages",
    ):
        super().__init__(name=name)
        if int(os.environ.get("HOROVOD_SIZE", "1")) > 1:
            topology.size()  # raises if hvd.init() was forgotten: each rank would train the whole model
        world = topology.grid().world
        grid = grid or Grid(1, world.size)
        _check(parts, micro_batches, wire_dtype, schedule, grid, world.size)
        sparsities = [sparsity] * (len(parts) - 1) if isinstance(sparsity, (int, float)) else list(sparsity)
        if len(sparsities) != len(parts) - 1:
            raise ValueError(f"Expected a sparsity for each of {len(parts) - 1} splits, got {len(sparsities)}.")
        thresholds = [Threshold(each) if each else None for each in sparsities]
        self._place, self._trainer = _place(grid, world.rank), grid.trainer_of(world.rank)
        own = [number for number in range(len(parts)) if number * grid.stages // len(parts) == self._place.stage]
        self._before = Split(wire_dtype, 0.0 if self._place.is_first else sparsities[own[0] - 1])
        self._after = Split(wire_dtype, 0.0 if self._place.is_last else sparsities[own[-1]])
        chain = Chain([made(parts[number]) for number in own], thresholds[own[0] : own[-1]], own[0] == 0)
        self.parts = chain.layers  # tracked, so that their variables are the model's
        self._part_count, self._first_part, self._own_parts = len(parts), own[0], len(own)
        self._chain = chain
        self._schedule, self._micro_batches = SCHEDULES[schedule], micro_batches
        self._mean_loss = keras.metrics.Mean(name="loss")
        # Not by setattr, which would make what is assigned later a part of the model.
        self.__dict__["_told"] = {}
        account = {"parts": len(parts), "sparsity": sparsities, "wire_dtype": wire_dtype, "micro": micro_batches}
        self._neighbours = self._meet(world, grid, {**account, "schedule": schedule}, interface)
        self._peers: Communicator = subgrid.of(grid.process_set).world if grid.trainers > 1 else LoneCommunicator()
        self._steps: Steps | None = None
        self._apply: Callable[[Packed], None] | None = None
        self.built = True
        atexit.register(self._close_at_exit)

    @property
    def stage(self) -> int:
        """The number of this rank's stage."""
        return self._place.stage

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self._place.stages

    @property
    def part_count(self) -> int:
        """The number of parts of the whole model."""
        return self._part_count

    @property
    def numbered_parts(self) -> list[tuple[int, keras.layers.Layer]]:
        """This rank's parts, with their numbers in the whole model."""
        return list(enumerate(self.parts[: self._own_parts], self._first_part))

    @property
    def trainer(self) -> int:
        """The number of the trainer that this rank belongs to."""
        return self._trainer

    # ---- Keras ----

    @property
    def metrics(self):
        """The compiled metrics in the last stage; stand-ins in the others, which are sent the values."""
        if not self._place.is_last:
            return list(self._told.values())
        return [self._mean_loss, *(each for each in super().metrics if each.name != "loss")]

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        """As for a Keras model; each rank's optimizer has its own stage's variables.

        Raises:
            ValueError: if the optimizer clips by the norm of all gradients, and these are means over trainers or steps;
                or if an argument requires one graph of the whole step.
        """
        if kwargs.pop("jit_compile", None) is True or kwargs.get("steps_per_execution", 1) != 1:
            raise ValueError("A step uses the network: leave out jit_compile=True and steps_per_execution.")
        super().compile(optimizer, loss, **{**kwargs, "run_eagerly": True, "jit_compile": False})
        if self._place.stages > 1:
            clipping.check(self.optimizer, self._peers.size)
        self._steps, self._apply = None, None
        if all(layer.built for layer in self.parts):
            self.optimizer.build(self.trainable_variables)

    def train_step(self, data):
        """One step of all stages."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        # All micro-batches are computed at the same weights, whichever tape records them.
        with _Telling(self._neighbours), ahead.looking_ahead(self.optimizer):
            verdict = self._begun().train((x, y, weight), self)
        self._make_step(verdict.gradients, verdict.end)
        return self._told_of(verdict.end.logs)

    def test_step(self, data):
        """One batch through all stages."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with _Telling(self._neighbours):
            return self._told_of(self._begun().test((x, y, weight)))

    def predict_step(self, data):
        """The last stage's predictions for a batch, on every rank."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with _Telling(self._neighbours):
            return self._begun().predict(x)

    def call(self, inputs, training=False):
        """The whole model, if one rank has all of it.

        Raises:
            RuntimeError: if it does not.
        """
        if self._place.stages > 1:
            raise RuntimeError(
                f"{self.name} has {self._place.stages} stages on as many ranks: use fit, evaluate or predict."
            )
        return self._chain(None, inputs, training)

    # ---- more than Keras ----

    def telemetry(self) -> dict[str, Any]:
        """What this rank's stage has done since it was compiled.

        Returns:
            - stage: its number.
            - activation_bytes, gradient_bytes: payloads that it has sent.
            - waiting_ms: time spent waiting for its neighbours.
        """
        traffic = self._steps.traffic if self._steps is not None else None
        waited = self._neighbours.seconds_waiting if self._neighbours is not None else 0.0
        return {
            "stage": self._place.stage,
            "activation_bytes": traffic.activations if traffic else 0,
            "gradient_bytes": traffic.gradients if traffic else 0,
            "waiting_ms": 1e3 * waited,
        }

    def close(self) -> None:
        """Ends this rank's connections, once the stage before has; calling it again does nothing."""
        atexit.unregister(self._close_at_exit)
        if self._neighbours is not None:
            self._neighbours.close()
            self._neighbours = None

    def _close_at_exit(self) -> None:
        """At the end of the process; a process that ends with an error waits for no other."""
        if self._neighbours is not None and getattr(sys, "last_value", None) is not None:
            self._neighbours.abandon()
        else:
            self.close()

    # ---- the first step ----

    def _meet(self, world: Communicator, grid: Grid, account: dict[str, Any], interface: str | None):
        if world.size == 1:
            return None
        world.agree({**account, "grid": [grid.trainers, grid.stages]}, "the stages' settings", "pipeline.agree")
        if grid.stages == 1:
            return None
        meeting = meet(world, range(world.size), interface, "pipeline")
        subject = hashlib.sha256(json.dumps([account, grid.trainer_of(world.rank)]).encode()).hexdigest()
        neighbours = Neighbours(self._place, meeting, subject, self._micro_batches)
        assert meeting.held is not None
        meeting.held.close()
        return neighbours

    def _begun(self) -> Steps:
        if self._neighbours is None and self._place.stages > 1:
            raise RuntimeError(f"{self.name} was closed: this rank is no longer connected to other stages.")
        if self._steps is not None:
            return self._steps
        if self._place.is_last:
            passes: Middle | Last = Last(self, self._chain, self._measure)
        else:
            passes = Middle(self, self._chain)
        splits, how = (self._before, self._after), (self._schedule, self._micro_batches)
        self._steps = Steps(self._place, self._neighbours, passes, *splits, self._begin, *how)
        return self._steps

    def _measure(self, loss, rows, y, predicted, weight) -> dict[str, Any]:
        self._mean_loss.update_state(loss, sample_weight=tf.cast(rows, tf.float32))
        return self.compute_metrics(None, y, predicted, sample_weight=weight)

    def _told_of(self, logs: dict[str, Any]) -> dict[str, Any]:
        """The metrics in the order of the last stage, which has sent them to the others."""
        for name, value in logs.items() if not self._place.is_last else ():
            self._told.setdefault(name, _Told(name)).value = value
        return logs

    def _begin(self, source: tf.Tensor | None, batch: Any) -> None:
        """Creates all variables, with the values of the first trainer everywhere."""
        if not all(layer.built for layer in self.parts):
            self._chain(source, batch, False)
        for number, weight in enumerate(self.weights if self._peers.size > 1 else ()):
            weight.assign(self._peers.broadcast(tf.convert_to_tensor(weight), 0, f"pipeline.begin.{number}"))
        self.optimizer.build(self.trainable_variables)
        looking = ahead.of(self.optimizer)
        if looking is not None:
            looking.looked()  # in the first step, nothing waits to be sent
        variables, optimizer = list(self.trainable_variables), self.optimizer
        self._apply = tf.function(lambda packed: optimizer.apply(unpack(packed, variables), variables))

    def _make_step(self, gradients: Packed, end: End) -> None:
        """Applies gradients that all stages have found finite; otherwise passes on NaN if somebody must notice."""
        assert self._apply is not None
        hears = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer) or self._peers.size > 1
        if end.culprit and not hears:
            raise FloatingPointError(
                f"A gradient of {end.culprit} is not finite: no stage has applied the step. Look there for a division, "
                "a logarithm or a learning rate that is too high; with float16 use a LossScaleOptimizer."
            )
        if end.culprit:
            gradients = each_value(gradients, lambda values: values * float("nan"))
        elif self._place.stages > 1:
            gradients = clipping.clipped(gradients, end.squares, self.optimizer)
        self._apply(gradients)


class _Told(keras.metrics.Metric):
    """A metric that another rank computes."""

    value = 0.0

    def __init__(self, name: str):
        super().__init__(name=name)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `value` is assigned."""

    def result(self) -> float:
        """The last value received."""
        return self.value


class _Telling:
    """Tells the neighbours why this stage cannot go on, if it fails."""

    def __init__(self, neighbours: Neighbours | None):
        self._neighbours = neighbours

    def __enter__(self) -> None:
        if self._neighbours is not None:
            self._neighbours.require_alive()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or self._neighbours is None:
            return
        notes = " ".join(getattr(error, "__notes__", ()))
        own = f"{self._neighbours.place.name()} cannot go on: {type(error).__name__}: {error} {notes}".rstrip()
        self._neighbours.fail(str(error) if isinstance(error, StageError) else own)


def _place(grid: Grid, rank: int) -> Place:
    if grid.stages == 1:
        return Place(0, 1, (rank,))
    return Place(grid.stage_of(rank), grid.stages, tuple(grid.ranks_of_trainer(grid.trainer_of(rank))))


def _check(parts: Sequence[Part], micro_batches: int, wire_dtype: str, schedule: str, grid: Grid, ranks: int) -> None:
    if grid.size != ranks:
        raise ValueError(
            f"Expected {grid.trainers} trainers of {grid.stages} stages to be {ranks} ranks, got {grid.size}: start as "
            "many ranks, or pass another grid."
        )
    if len(parts) < grid.stages:
        raise ValueError(f"Expected at least {grid.stages} parts, one for each stage, got {len(parts)}.")
    if micro_batches < 1:
        raise ValueError(f"Expected micro_batches of at least 1, got {micro_batches}.")
    if wire_dtype not in WIRE_DTYPES:
        raise ValueError(f"Expected wire_dtype to be one of {', '.join(WIRE_DTYPES)}, got {wire_dtype!r}.")
    if schedule not in SCHEDULES:
        raise ValueError(f"Expected schedule to be one of {', '.join(SCHEDULES)}, got {schedule!r}.")

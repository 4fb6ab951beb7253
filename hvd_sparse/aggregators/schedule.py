"""One aggregator after another, by epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse.aggregators import branches
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import Parts, Reduced, Update
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Communicator

_NO_EPOCH = -1


class _Stages(AggregatorState):
    """The states of all stages, the epoch, and which stage holds the residual."""

    def __init__(self, spec: Spec, communicator: Communicator, levels: Sequence[AggregatorState]):
        super().__init__(spec, communicator)
        self.levels = list(levels)
        self.epoch = tf.Variable(_NO_EPOCH, dtype=tf.int32, trainable=False, name=f"{spec.name}_epoch")
        self.holder = tf.Variable(0, dtype=tf.int32, trainable=False, name=f"{spec.name}_holder")


@dataclasses.dataclass(frozen=True)
class Schedule(Aggregator):
    """Exchanges with the aggregator of the current epoch, as in the DAWNBench run (CommLib 5.6).

    When the stage changes, the residual of the old stage is added to the first exchange of the new one, so nothing is
    lost. Any callback of `hvd.callbacks` sets the epoch; in your own loop, call `set_epoch`.

    Attributes:
        stages: (first epoch, aggregator), the first from epoch 0, in ascending order.
    """

    disk_name = "Schedule"
    stages: tuple[tuple[int, Aggregator], ...]

    def __post_init__(self):
        starts = [start for start, _ in self.stages]
        if not starts or starts[0] != 0 or any(a >= b for a, b in zip(starts, starts[1:], strict=False)):
            raise ValueError(
                f"Expected ascending stages that start at epoch 0, such as [(0, hitopk(0.01)), (13, torus2d())], got "
                f"first epochs {starts}."
            )
        for _, aggregator in self.stages:
            if isinstance(aggregator, Schedule):
                raise ValueError("A schedule cannot be a stage of a schedule: list all stages in one.")

    @property
    def sends_all(self):
        """Whether every stage sends everything."""
        return all(aggregator.sends_all for _, aggregator in self.stages)

    @property
    def returns_sum(self):
        """Whether any stage returns the sum."""
        return any(aggregator.returns_sum for _, aggregator in self.stages)

    @property
    def nests(self):
        """False: put `Hierarchical` into the stages, not a schedule into `Hierarchical`."""
        return False

    def set_epoch(self, state, epoch):
        state.epoch.assign(epoch)

    def running(self, state):
        number = int(state.holder.numpy())
        return self.stages[number][1].running(state.levels[number])

    def decided(self, state):
        found = [part.decided(level) for (_, part), level in zip(self.stages, state.levels, strict=True)]
        return found if any(each is not None for each in found) else None

    def reduce(self, parts, divisor, state):
        stage = self._stage(state)
        switched = tf.not_equal(stage, state.holder)
        row = tf.cast(parts.rows, tf.float32)
        flushed = tf.cond(switched, lambda: row + self.residual(state)[tf.newaxis], lambda: row)
        inputs = Parts(flushed, parts.sources)
        branches = [
            lambda index=index: self._outputs(index, inputs, divisor, state) for index in range(len(self.stages))
        ]
        outputs = tf.switch_case(stage, branches)
        return self._assemble(outputs, stage, switched, state)

    def residual(self, state):
        branches = [
            lambda aggregator=aggregator, level=level: aggregator.residual(level)
            for (_, aggregator), level in zip(self.stages, state.levels, strict=True)
        ]
        return tf.switch_case(state.holder.read_value(), branches)

    def restored(self, state, residual):
        """Restores into the first stage that keeps a residual; another current stage takes it over as at any switch."""
        pairs = [(aggregator, level) for (_, aggregator), level in zip(self.stages, state.levels, strict=True)]
        holder = next((index for index, (part, level) in enumerate(pairs) if part.restored(level, residual)), None)
        if holder is None:
            return ()
        updates = [
            update
            for index, (part, level) in enumerate(pairs)
            for update in part.restored(level, residual if index == holder else tf.zeros_like(residual))
        ]
        return (*updates, Update(state.holder, tf.constant(holder)))

    def contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        # A flush adds float32 residuals, which a narrower dtype could not hold.
        levels = []
        for index, (_, aggregator) in enumerate(self.stages):
            stage = spec._replace(dtype=tf.float32, name=f"{spec.name}.stage{index}")
            levels.append(aggregator._create(stage, communicator))
        return _Stages(spec, communicator, levels)

    def _stage(self, state: _Stages) -> tf.Tensor:
        known = tf.debugging.assert_greater_equal(
            state.epoch,
            0,
            "A schedule of aggregators does not know the epoch: pass a callback from hvd.callbacks to fit, or call "
            "set_epoch(epoch) at the start of each epoch.",
        )
        starts = tf.constant([start for start, _ in self.stages])
        with tf.control_dependencies([known] if known is not None else []):
            return tf.reduce_sum(tf.cast(state.epoch >= starts, tf.int32)) - 1

    def _outputs(self, index: int, parts: Parts, divisor: int, state: _Stages) -> branches.Outputs:
        """The exchange of one stage, in the form common to all stages; the variables of the others get no value."""
        _, aggregator = self.stages[index]
        level = state.levels[index]
        packed = branches.pack(aggregator.reduce(parts, divisor, level), level.spec, divisor, level.variables)
        values = [
            packed.values if other is level else [tf.zeros([0], variable.dtype) for variable in other.variables]
            for other in state.levels
        ]
        return packed._replace(values=values)

    def _assemble(self, outputs: branches.Outputs, stage: tf.Tensor, switched: tf.Tensor, state: _Stages) -> Reduced:
        advanced = [
            Update(variable, value, tf.equal(stage, index))
            for index, (level, values) in enumerate(zip(state.levels, outputs.values, strict=True))
            for variable, value in zip(level.variables, values, strict=True)
        ]
        return branches.unpack(outputs, state.spec, (*advanced, *self._flushes(stage, switched, state)))

    def _flushes(self, stage: tf.Tensor, switched: tf.Tensor, state: _Stages) -> list[Update]:
        """Clears the residual of the old stage after a change of stage: this exchange has sent it."""
        size = state.spec.size
        no_residual = tf.cond(switched, lambda: tf.zeros([size]), lambda: tf.zeros([0]))
        cleared = [
            update._replace(when=tf.logical_and(switched, tf.equal(state.holder, index)))
            for index, ((_, aggregator), level) in enumerate(zip(self.stages, state.levels, strict=True))
            for update in aggregator.restored(level, no_residual)
        ]
        return [*cleared, Update(state.holder, stage)]

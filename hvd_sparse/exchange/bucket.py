"""One bucket of gradients, the aggregator that averages it, and its residual."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator, Exchange
from hvd_sparse.aggregators.transaction import Update
from hvd_sparse.compression.senders import slots_of
from hvd_sparse.compression.updates import Updating
from hvd_sparse.exchange import arguments, telemetry
from hvd_sparse.exchange.plan import Bucket
from hvd_sparse.spec import Gathered, Spec, flattened


class BucketExchange:
    """Averages one bucket, once per step.

    A recipe without a residual cannot take over the residual from a checkpoint of another recipe: it is held here and
    added to the first exchange.
    """

    def __init__(self, bucket: Bucket, spec: Spec, aggregator: Aggregator):
        self.bucket = bucket
        self.aggregator = aggregator
        self.state = aggregator.create(spec)
        self._world = spec.grid.world
        self._prefix = spec.name
        self._apart = aggregator.takes_apart(spec) and not arguments.is_deterministic()
        self._residual: tf.Variable | None = None
        if not aggregator.restored(self.state, tf.zeros([spec.size])):
            # [0] if there is none, else [size]: this rank's share.
            self._residual = tf.Variable(tf.zeros([0]), shape=[None], trainable=False, name=f"{spec.name}_residual")

    @property
    def label(self) -> str:
        """The name of this bucket in error messages."""
        first, last = self.bucket.segments[0].name, self.bucket.segments[-1].name
        return f"{self._prefix} ({first})" if first == last else f"{self._prefix} ({first} .. {last})"

    def exchange(self, gradients: Mapping[str, tf.Tensor]) -> Exchange:
        """Averages the bucket over all ranks, without writing the new state.

        If the recipe supports it, large gradients are not concatenated in a graph: Horovod sends them as they become
        ready, as it does without this package. They are concatenated in eager code, where calls wait for each other,
        and if TensorFlow is set to be deterministic: Horovod fuses small messages as they become ready, so the order in
        which it adds may differ from run to run.
        """
        residual = self._residual
        if self._apart and residual is not None and not tf.executing_eagerly():
            tensors = [gradients[segment.name] for segment in self.bucket.segments]
            exchange = self.aggregator.exchange_apart(tensors, self.state, residual.read_value())
            return exchange._replace(updates=(*exchange.updates, Update(residual, tf.zeros([0]))))
        vector = self.bucket.pack(gradients)
        if residual is None:
            return self.aggregator.exchange(vector, self.state)
        total = tf.cond(
            tf.size(residual) > 0,
            lambda: tf.cast(tf.cast(vector, tf.float32) + residual, vector.dtype),
            lambda: tf.identity(vector),
        )
        exchange = self.aggregator.exchange(total, self.state)
        return exchange._replace(updates=(*exchange.updates, Update(residual, tf.zeros([0]))))

    def means(self, exchange: Exchange) -> dict[str, tf.Tensor]:
        """The mean of each variable, once the exchange is committed."""
        if isinstance(exchange.mean, list):
            return {
                segment.name: tf.identity(mean)
                for segment, mean in zip(self.bucket.segments, exchange.mean, strict=True)
            }
        return self.bucket.unpack(tf.identity(exchange.mean))

    def unsent(self) -> dict[str, tf.Tensor]:
        """What this rank's node has not sent yet, by variable; a collective within the node."""
        return self.bucket.unpack(self.aggregator.node_residual(self.state))

    def set_progress(self, ahead: Mapping[str, tf.Tensor]) -> None:
        """Sets how far this rank's node is ahead of the shared weights in some variables; those of others are left."""
        for part in self.state.submodules:
            if isinstance(part, Updating):
                part.set_progress(ahead)

    def residual_sum(self) -> dict[str, np.ndarray]:
        """The sum of the residuals of all ranks, by variable; empty if there are none. A collective."""
        total = self._total()
        return {} if total is None else {name: piece.numpy() for name, piece in self.bucket.unpack(total).items()}

    def restore(self, residuals: Mapping[str, np.ndarray]) -> None:
        """Gives each rank an equal share of the residuals; a variable that is missing gets zero."""
        total = flattened(self.bucket.segments, residuals)
        if self._residual is None:
            self.aggregator.restore(self.state, total)
        else:
            share = total / float(self._world.size)
            self._residual.assign(share if tf.reduce_any(total != 0) else tf.zeros([0]))

    def own_residual(self) -> dict[str, np.ndarray]:
        """This rank's part of `residual_sum`, by variable; no collective."""
        own = self.aggregator.residual(self.state) if self._residual is None else self._residual.read_value()
        found = self.bucket.unpack(own) if tf.size(own) > 0 else {}
        return {name: piece.numpy() for name, piece in found.items()}

    def own_slots(self) -> dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """What this rank has of each slot that is kept here, see `Slots.part`; no collective."""
        return {name: part for slots in slots_of(self.state) for name, part in slots.part().items()}

    def slot_begins(self) -> dict[str, float]:
        """The initial values of the slots that are kept here, by name; see `Slots.begins`."""
        return {name: value for slots in slots_of(self.state) for name, value in slots.begins.items()}

    def gather_slots(self) -> dict[str, dict[str, np.ndarray]]:
        """The mean over all nodes of each slot that is kept here, by variable; {} if none is. A collective."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for slots in slots_of(self.state):
            found |= slots.gather(self._prefix)
        return found

    def give_slots(self, gathered: Gathered) -> None:
        """Gives every rank the slots of rank 0; a slot that is missing gets its initial value. A collective."""
        for slots in slots_of(self.state):
            slots.give(gathered, self._prefix)

    def restart(self) -> None:
        """Forgets what depends on past exchanges besides residuals and slots: gain ratios and outer velocities."""
        for part in self._parts():
            if hasattr(part, "restart"):
                part.restart()

    def outer_velocities(self) -> dict[str, np.ndarray]:
        """The velocity of the outer step, which all ranks share, by variable; empty if there is none."""
        velocity = self._outer_velocity()
        return {} if velocity is None else {name: piece.numpy() for name, piece in self.bucket.unpack(velocity).items()}

    def give_outer_velocities(self, velocities: Mapping[str, np.ndarray]) -> None:
        """Sets the velocity of the outer step, if there is one; a variable that is missing gets zero."""
        velocity = self._outer_velocity()
        if velocity is not None:
            velocity.assign(flattened(self.bucket.segments, velocities))

    def counters(self) -> dict[str, tf.Variable]:
        """The steps of each part, which seeds, densities and turns depend on; by its name in the bucket."""
        found = [part.step for part in self._parts() if hasattr(part, "step")]
        return {self._short_name(counter): counter for counter in found}

    def variables(self) -> dict[str, tf.Variable]:
        """All variables of this rank's state, by name in the bucket."""
        in_state = [variable for variable in self.state.variables if not telemetry.is_figure(variable)]
        found = in_state if self._residual is None else [*in_state, self._residual]
        return {self._short_name(variable): variable for variable in found}

    def _short_name(self, variable: tf.Variable) -> str:
        """The part of a name that does not depend on other names in the process, such as ".shard_step"."""
        return variable.name.rpartition(self._prefix)[2].removesuffix(":0")

    def _parts(self) -> tuple[tf.Module, ...]:
        return (self.state, *self.state.submodules)

    def _outer_velocity(self) -> tf.Variable | None:
        found = (part.outer_velocity for part in self._parts() if hasattr(part, "outer_velocity"))
        return next((each for each in found if each.shape[0]), None)

    def _total(self) -> tf.Tensor | None:
        if self._residual is None:
            return self._world.allreduce(self.aggregator.residual(self.state), "sum", f"{self._prefix}.residual_sum")
        # Every rank has the same share, so no collective is needed.
        return self._residual.read_value() * float(self._world.size) if tf.size(self._residual) > 0 else None

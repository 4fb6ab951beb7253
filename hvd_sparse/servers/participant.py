"""One rank's part in sharded servers: what its optimizer pushes, pulls and writes into the model's variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.optimizers import ahead
from hvd_sparse.optimizers.ahead import Ahead
from hvd_sparse.optimizers.variables import unique_names
from hvd_sparse.servers import applying, local
from hvd_sparse.servers.joining import join
from hvd_sparse.servers.member import Guest
from hvd_sparse.servers.model import ModelVariables
from hvd_sparse.servers.pushing import Pushes, cut, entries, unpacked
from hvd_sparse.servers.returning import come_back, require_replicas
from hvd_sparse.servers.saving import Resumed, Write
from hvd_sparse.servers.settings import Settings
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.transport.meeting import Ticket


class Participant:
    """One optimizer's part in the job: its variables, what it pushes and its connections.

    Attributes:
        settings: the same on every rank, except the interface.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self._variables: list[Any] = []
        self._model: ModelVariables | None = None
        self._pushes: Pushes | None = None
        self._ahead: Ahead | None = None
        self._steps: tf.Variable | None = None
        self._member: Guest | None = None
        self._write: Write | None = None
        self._resumed: Resumed | None = None
        self._ticket: Ticket | None = None

    @property
    def has_begun(self) -> bool:
        """Whether this rank has joined the servers."""
        return self._member is not None

    @property
    def sends_all(self) -> bool:
        """Whether a rank sends whole gradients and keeps nothing back."""
        return self.settings.push is None

    @property
    def sends_updates(self) -> bool:
        """Whether a rank pushes its optimizer's updates instead of gradients."""
        return local.sends_updates(self.settings.push)

    @property
    def looks_ahead(self) -> bool:
        """Whether gradients are computed at the weights minus the updates that this rank has not pushed."""
        return local.looks_ahead(self.settings.push)

    def write_by(self, write: Write) -> None:
        """Sets how this rank writes its part of a checkpoint."""
        self._write = write
        if self._member is not None:
            self._member.keeper.write = write

    def resume_with(self, resumed: Resumed) -> None:
        """Sets what this rank resumes with, before it has begun; all ranks call it, or none."""
        self._resumed = resumed

    def return_with(self, ticket: Ticket) -> None:
        """See `return_with`."""
        require_replicas(self.settings)
        self._ticket = ticket

    @property
    def member(self) -> Guest:
        """This rank's connections, with its server unless it has come back; RuntimeError before the first step."""
        if self._member is None:
            raise RuntimeError("The servers start with the first step: train at least one step first.")
        return self._member

    @property
    def steps(self) -> tf.Tensor:
        """The pushes of all ranks / P, [] int64, rounded down."""
        assert self._steps is not None
        return self._steps.read_value()

    def begin(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
        """Joins the servers with rank 0's variables; a collective of all ranks, unless this rank comes back."""
        applying.require_plain(variables)
        self._variables = list(variables)
        named = zip(unique_names(variables), variables, strict=True)
        segments = tuple(Segment(name, tuple(variable.shape)) for name, variable in named)
        self._member = member = self._return(segments) if self._ticket else self._join(optimizer, segments)
        self._model = ModelVariables(variables)
        own = local.optimizer_of(optimizer) if self.sends_updates else None
        self._pushes = pushes = Pushes(self.settings.push, [spec._replace(optimizer=own) for spec in member.shards])
        self._steps = tf.Variable(self._steps_of(member.connections.pushes), trainable=False, name="steps_of_all")
        member.keeper.unsent, member.keeper.memory = lambda: self.unsent().numpy(), pushes.memory
        member.keeper.write = self._write
        if self._resumed is not None and self._resumed.unsent is not None:
            pushes.restore(self._resumed.unsent, self._resumed.memory)
        member.keeper.begin()
        if self.looks_ahead:
            self._ahead = ahead.begin(optimizer, variables)
            self._look_ahead()
        if self._resumed is not None or self._ticket is not None:
            self._assign(member.connections.copy.values)
            optimizer.iterations.assign(self.steps)

    def _join(self, optimizer: keras.optimizers.Optimizer, segments: tuple[Segment, ...]) -> Guest:
        topology.size()  # raises if hvd.init() was forgotten
        state = None if self._resumed is None else self._resumed.state
        return join(optimizer, self._variables, segments, topology.grid(), self.settings, state)

    def _return(self, segments: tuple[Segment, ...]) -> Guest:
        assert self._ticket is not None
        size = sum(segment.size for segment in segments)
        whole = Spec(size, Grid.lone(), segments=segments, name="servers")
        return come_back(cut(whole, len(self._ticket.addresses)), self._ticket, self.settings)

    def _steps_of(self, pushes: int) -> np.int64:
        return np.int64(pushes // len(self.member.shards))

    def step(self, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        """Pushes gradients, pulls parameters and writes them into the variables, which then hold the copy."""
        assert self._pushes is not None and self._steps is not None and self._model is not None
        given = {id(variable): gradient for gradient, variable in zip(gradients, variables, strict=True)}
        flat = [_flat(given.get(id(variable)), variable) for variable in self._variables]
        with tf.control_dependencies(flat):  # not while the step still waits for its batch, which may never come
            begun = tf.numpy_function(self._begin_to_choose, [], [], stateful=True)
        with tf.control_dependencies([begun]):
            chosen = self._pushes.choose(flat)
        lengths = [len(parts) for parts in chosen]
        inputs = [tf.cast(rate, tf.float64), *(part for parts in chosen for part in parts)]

        def exchange(rate: np.ndarray, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool, np.ndarray]:
            return self._exchange(float(rate), parts, lengths)

        types = [tf.float32, tf.int32, tf.bool, tf.int64]
        values, places, everywhere, steps = tf.numpy_function(exchange, inputs, types)
        self._model.put(values, places, everywhere)
        self._steps.assign(tf.ensure_shape(steps, []))
        self._look_ahead()

    def unsent(self) -> tf.Tensor:
        """What this rank has not pushed yet, [d] float32; after the first step has begun."""
        assert self._pushes is not None
        return self._pushes.waiting()

    def _look_ahead(self) -> None:
        """Sets by how much the next gradient's weights are lower than the copy."""
        if self._ahead is not None:
            unsent = unpacked(self.unsent(), [variable.shape for variable in self._variables])
            self._ahead.move({id(variable): part for variable, part in zip(self._variables, unsent, strict=True)})

    def take_published(self) -> None:
        """Gives the variables all of the servers' current parameters; the next step continues from the copy."""
        self._assign(self.member.connections.published())

    def pause(self) -> None:
        """As `take_published`, and tells servers not to wait for this rank until its next step."""
        self._assign(self.member.connections.pause())

    def finish(self) -> None:
        """See `finish`."""
        final = self.member.finish()
        if final is not None:
            self._assign(final)

    def _assign(self, vector: np.ndarray) -> None:
        """Gives the variables values other than the copy: the next step must write all of the copy to them."""
        assert self._model is not None
        self._model.assign(vector)
        self.member.connections.copy.forget_who_looked()

    def _exchange(self, rate: float, parts: Sequence[np.ndarray], lengths: Sequence[int]):
        """Runs in Python, between two parts of a graph."""
        assert self._model is not None
        connections, left = self.member.connections, iter(parts)
        connections.step(rate, [entries([next(left) for _ in range(length)]) for length in lengths])
        news = self._model.news(connections.copy)
        places = np.zeros(0, np.int32) if news.indices is None else news.indices
        return news.values, places, news.indices is None, self._steps_of(connections.pushes)

    def _begin_to_choose(self) -> None:
        self.member.keeper.flight.begin()


def _flat(gradient: Any, variable: Any) -> tf.Tensor:
    """A variable's gradient [n] float32; zeros where it has none."""
    size = int(np.prod(variable.shape, dtype=np.int64))
    if gradient is None:
        return tf.zeros([size], tf.float32)
    return tf.reshape(tf.cast(tf.convert_to_tensor(gradient), tf.float32), [size])

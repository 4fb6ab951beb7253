"""A Keras optimizer that runs on sharded servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.exchange import slots
from hvd_sparse.exchange.plan import unique_names
from hvd_sparse.servers import applying, local
from hvd_sparse.servers.joining import join
from hvd_sparse.servers.member import Guest
from hvd_sparse.servers.model import ModelVariables
from hvd_sparse.servers.pushing import Pushes, cut, entries
from hvd_sparse.servers.replicas import Replicas
from hvd_sparse.servers.returning import come_back, require_replicas
from hvd_sparse.servers.rules import InOrderOfArrival, Rule, Together
from hvd_sparse.servers.saving import Resumed, Write
from hvd_sparse.servers.settings import Settings
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.transport.eager import making_variables
from hvd_sparse.transport.meeting import Ticket

_SERVED = "_hvd_sparse_servers"


def ShardedServers(  # noqa: N802 - as hvd.DistributedOptimizer
    optimizer: keras.optimizers.Optimizer,
    push: Compressor | None = None,
    pull: Compressor | None = None,
    *,
    synchronous: bool = False,
    max_staleness: int | None = None,
    pushes_per_update: int = 1,
    lazy: bool = False,
    replicas: int = 0,
    replica_age: int = 100,
    interface: str | None = None,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer run on sharded parameter servers (Aji and Heafield 2017, sections 3 and 4).

    Every rank is also the server of 1/P of the parameters and of the optimizer's slots. In each step a rank pushes its
    gradient to the P servers and pulls parameters from them, both as sparse messages over separate connections, and
    waits for no other rank: fast ranks make more steps. Pass the optimizer to `compile`, or use it in your own loop,
    like any other. It keeps its class and config. `iterations`, and with it a learning rate schedule, counts the pushes
    of all ranks / P: the steps of a synchronous job that has seen as many batches. Ranks clip gradients, servers apply
    weight decay.

    Args:
        optimizer: an element-wise one, such as SGD, Adam or Adagrad, that has not been used; changed in place and
            returned.
        push: what is sent of gradient + residual, such as `SampledThreshold(0.01)`; a compressor without feedback is
            wrapped in `ErrorFeedback`. None sends all. With `MomentumCorrection(ErrorFeedback(...), momentum=0.9)` each
            rank first accumulates its gradients in a momentum of its own. With `LocalUpdates(ErrorFeedback(...))` each
            rank runs the optimizer on its own gradient, with its own slots, and pushes the amounts by which weights are
            to be lowered; servers subtract them.
        pull: what is sent of the parameters, selected by their difference from what this rank was last sent; a
            compressor without feedback. With a quantizer, such as `Quantized(SampledThreshold(0.01), TwoBits())`,
            differences are sent in few bits, and copies come close to the parameters without becoming equal. None sends
            all.
        synchronous: servers wait for the pushes of all ranks and make one update with their mean, added in rank order:
            the aggregator of the same compressor, shard by shard, to the bit if `pull` is None.
        max_staleness: number of updates that may be made while a rank computes; faster ranks wait. None sets no bound.
        pushes_per_update: number of pushes averaged for one update; asynchronous Adam is better with several (Aji and
            Heafield 2019).
        lazy: whether an update touches only what was pushed, as TensorFlow Addons' LazyAdam does: where the mean of the
            pushes is zero, parameters and slots stay as they are, which is not made up for later. Plain SGD and Adagrad
            train as usual; with others, momentum and averages of squares do not fade there, and weights never decay
            there. For SGD, RMSprop, Adam, AdamW and Adagrad.
        replicas: with 1, the rank after each server holds a copy of its part, and takes over if the server is gone.
        replica_age: number of updates that this copy may lack, at least 1; a server waits before it makes more.
        interface: network interface, or address, of this host; its server listens there and nowhere else. By default
            the address by which the other hosts know this one.

    Raises:
        TypeError: if it is not a Keras optimizer.
        ValueError: if servers cannot run it, or the settings contradict each other; in the first step, on every rank,
            if there is one rank and `replicas` is set.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"Expected a Keras optimizer, such as keras.optimizers.Adam(), got {type(optimizer).__name__}.")
    if optimizer.built or optimizer.__class__ is not type(optimizer):
        raise ValueError(f"The optimizer {optimizer.name} is already in use: wrap it once, before the first step.")
    applying.check(optimizer)
    local.check(optimizer, push)
    if lazy and local.sends_updates(push):
        raise ValueError("If clients push LocalUpdates, servers only subtract what arrives: leave out lazy=True.")
    if lazy:
        applying.check_lazy(optimizer)
    _check_pull(pull)
    feeding = push if push is None or push.feeds_back else ErrorFeedback(push)
    rule = _rule(synchronous, max_staleness, pushes_per_update)
    insured = _insured(replicas, replica_age)
    vars(optimizer)[_SERVED] = Participant(Settings(feeding, pull, rule, interface, insured, lazy=lazy))
    optimizer.__class__ = _served_class(type(optimizer))
    return optimizer


def finish(optimizer: keras.optimizers.Optimizer) -> None:
    """Ends this rank's part in sharded servers, after its last step.

    It waits until all ranks have finished, gives the variables their final values, the same on every rank, and stops
    this rank's server. Without this call a rank waits at the end of its process.

    Args:
        optimizer: made by `ShardedServers`.

    Raises:
        RuntimeError: before the first step.
        ServerLostError: if a server is gone.
    """
    served(optimizer).finish()


def ticket(optimizer: keras.optimizers.Optimizer) -> bytes:
    """Returns what lets this rank come back if its process ends and another one is started in its place.

    It contains the job's secret. Hand it only to the process that will start the other one, through a pipe that both
    have inherited; never put it in a file, an environment variable or the launcher's store.

    Args:
        optimizer: made by `ShardedServers` with `replicas=1`, after its first step has begun.

    Raises:
        ValueError: if there are no replicas.
        RuntimeError: before the first step.
    """
    participant = served(optimizer)
    require_replicas(participant.settings)
    return participant.member.ticket.to_bytes()


def return_with(optimizer: keras.optimizers.Optimizer, ticket: bytes) -> None:
    """Lets a rank that was gone come back in its first step: it pulls everything, and pushes again; not a collective.

    Do not call `hvd.init()`, as Horovod cannot admit a new process: whatever asks Horovod, such as `hvd.rank()`, fails.
    The rank no longer serves, and no checkpoint contains what it has not sent.

    Args:
        optimizer: made by `ShardedServers` with the same settings as before, not used yet.
        ticket: what `ticket` returned for this rank, whose former process has ended.

    Raises:
        ValueError: if it is not a ticket, or there are no replicas.
    """
    served(optimizer).return_with(Ticket.from_bytes(ticket))


def is_served(optimizer: Any) -> bool:
    """Whether an optimizer runs on servers, or is a loss scale optimizer around one that does."""
    inner = slots.without_loss_scaling(optimizer)
    return isinstance(inner, keras.optimizers.Optimizer) and _SERVED in vars(inner)


def served(optimizer: Any) -> Participant:
    """The participant of an optimizer that runs on servers, with or without loss scaling around it."""
    return vars(slots.without_loss_scaling(optimizer))[_SERVED]


def _check_pull(pull: Compressor | None) -> None:
    if pull is not None and pull.feeds_back:
        raise ValueError(
            "What a pull leaves out stays in the difference: pass the compressor alone, without "
            f"{type(pull).__name__} around it."
        )
    if pull is not None and pull.wire_dtype != "float32":
        raise ValueError(
            f"A pull carries new values as they are, or differences in few bits: leave wire_dtype out of "
            f"{type(pull).__name__}, or write Quantized({type(pull).__name__}(...), TwoBits())."
        )


def _rule(synchronous: bool, max_staleness: int | None, pushes_per_update: int) -> Rule:
    if not synchronous:
        return InOrderOfArrival(max_staleness, pushes_per_update)
    if max_staleness is not None or pushes_per_update != 1:
        raise ValueError(
            "synchronous=True makes one update from the pushes of all ranks, and no copy is ever older: leave out "
            "max_staleness and pushes_per_update."
        )
    return Together()


def _insured(replicas: int, age: int) -> Replicas | None:
    if replicas not in (0, 1) or age < 1:
        raise ValueError(f"Expected replicas of 0 or 1 and replica_age of at least 1, got {replicas} and {age}.")
    return Replicas(age) if replicas else None


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
        member.keeper.unsent, member.keeper.memory = lambda: pushes.waiting().numpy(), pushes.memory
        member.keeper.write = self._write
        if self._resumed is not None and self._resumed.unsent is not None:
            pushes.restore(self._resumed.unsent, self._resumed.memory)
        member.keeper.begin()
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
        with tf.control_dependencies([tf.numpy_function(self._begin_to_choose, [], [], stateful=True)]):
            chosen = self._pushes.choose(flat)
        lengths = [len(parts) for parts in chosen]
        inputs = [tf.cast(rate, tf.float64), *(part for parts in chosen for part in parts)]

        def exchange(rate: np.ndarray, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool, np.ndarray]:
            return self._exchange(float(rate), parts, lengths)

        types = [tf.float32, tf.int32, tf.bool, tf.int64]
        values, places, everywhere, steps = tf.numpy_function(exchange, inputs, types)
        self._model.put(values, places, everywhere)
        self._steps.assign(tf.ensure_shape(steps, []))

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


def _served_class(base: Any) -> type:
    """A subclass that pushes and pulls, under the same name; it is saved as the base class."""

    class Served(base):
        __class__ = property(lambda self: base)

        @property
        def servers(self) -> Guest:
            """This rank's connections, with its server unless it has come back, from the first step on."""
            return served(self).member

        def build(self, variables):
            if not self.built:
                with making_variables():
                    keras.optimizers.Optimizer.build(self, variables)
                    served(self).begin(self, list(variables))

        def apply(self, grads, trainable_variables=None):
            base.apply(self, grads, trainable_variables)
            self.iterations.assign(served(self).steps)

        def finalize_variable_values(self, var_list):
            """Called at the end of `fit`: the model gets the servers' parameters, and no server waits for this rank."""
            served(self).pause()

        def _apply_weight_decay(self, variables):
            pass

        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            served(self).step(grads, trainable_variables, learning_rate)

    Served.__name__, Served.__qualname__ = base.__name__, base.__qualname__
    Served.__module__, Served.__doc__ = base.__module__, base.__doc__
    return Served


def _flat(gradient: Any, variable: Any) -> tf.Tensor:
    """A variable's gradient [n] float32; zeros where it has none."""
    size = int(np.prod(variable.shape, dtype=np.int64))
    if gradient is None:
        return tf.zeros([size], tf.float32)
    return tf.reshape(tf.cast(tf.convert_to_tensor(gradient), tf.float32), [size])

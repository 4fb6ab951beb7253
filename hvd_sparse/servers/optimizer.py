"""A Keras optimizer that runs on sharded servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.optimizers import ahead, attached
from hvd_sparse.optimizers.attached import Attached, Figures, Own
from hvd_sparse.servers import applying, local
from hvd_sparse.servers.member import Guest
from hvd_sparse.servers.participant import Participant
from hvd_sparse.servers.replicas import Replicas
from hvd_sparse.servers.returning import require_replicas
from hvd_sparse.servers.rules import InOrderOfArrival, Rule, Together
from hvd_sparse.servers.settings import Settings
from hvd_sparse.transport.eager import making_variables
from hvd_sparse.transport.meeting import Ticket


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
            to be lowered; servers subtract them. With `ahead=True` in it, gradients are computed at the weights minus
            what the rank has not pushed yet; in your own loop, compute them in `with hvd.looking_ahead(optimizer)`.
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
    if optimizer.built or attached.to(optimizer) is not None:
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
    participant = Participant(Settings(feeding, pull, rule, interface, insured, lazy=lazy))
    attached.attach(optimizer, Served(participant), _Public)
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


def served(optimizer: Any) -> Participant:
    """The participant of an optimizer that runs on servers, with or without loss scaling around it.

    Raises:
        ValueError: if it does not run on servers.
    """
    way = "hvd.servers.ShardedServers(optimizer)"
    return attached.required(optimizer, Served, "runs on servers", way).participant


class Served(Attached):
    """Servers have the slots and the parameters: a step pushes gradients to them and pulls parameters."""

    own_pace = True

    def __init__(self, participant: Participant):
        self.participant = participant

    @property
    def looks_ahead(self) -> bool:
        return self.participant.looks_ahead

    def build(self, own: Own, variables: Sequence[Any]) -> None:
        with making_variables():
            keras.optimizers.Optimizer.build(own.optimizer, variables)
            self.participant.begin(own.optimizer, list(variables))

    def apply(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        if self.looks_ahead and not own.optimizer.built and not tf.executing_eagerly():
            raise ValueError(
                "A step that looks ahead needs a built optimizer before it is traced: call "
                "optimizer.build(model.trainable_variables) first, as fit does."
            )
        own.apply(ahead.to_apply(own.optimizer, gradients), variables)
        own.iterations.assign(self.participant.steps)

    def decay(self, own: Own, variables: Sequence[Any]) -> None:
        """Nothing: servers apply weight decay."""

    def update(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        self.participant.step(gradients, variables, rate)

    def end(self, own: Own, variables: Sequence[Any]) -> None:
        """Gives the model the servers' parameters; no server waits for this rank any longer."""
        self.participant.pause()

    def publish(self) -> None:
        self.participant.take_published()

    def measured(self, every: int) -> Figures:
        participant = self.participant  # which joins the servers in the first step
        return Figures(lambda: participant.member.connections.number, lambda: participant.member.telemetry(), "servers")


class _Public:
    """What users may call on an optimizer that runs on servers."""

    @property
    def servers(self) -> Guest:
        """This rank's connections, with its server unless it has come back, from the first step on."""
        return served(self).member


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

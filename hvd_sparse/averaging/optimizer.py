"""A Keras optimizer whose models are averaged over ranks after the ranks' own steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from hvd_sparse.averaging.participant import Participant, Settings
from hvd_sparse.averaging.reliable import Reliable
from hvd_sparse.averaging.returning import Return
from hvd_sparse.averaging.telemetry import Telemetry
from hvd_sparse.averaging.transports import Transport
from hvd_sparse.optimizers import attached, slots
from hvd_sparse.optimizers.attached import Attached, Own
from hvd_sparse.transport import topology
from hvd_sparse.transport.eager import making_variables

_numbers = itertools.count()


def ModelAveraging(  # noqa: N802 - as hvd.DistributedOptimizer
    optimizer: keras.optimizers.Optimizer,
    transport: Transport = Reliable(),  # noqa: B008 - it is frozen
    every: int = 1,
    rotate: bool = True,
    resynchronise_every: int | None = None,
    max_distance: float | None = None,
    guard_every: int = 100,
    telemetry: Telemetry | None = None,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average models over all ranks, by messages some of which may be lost (RPS, section 4.1).

    Each rank makes steps of its own, with all that the optimizer does and its own slots. After every H-th step all
    trainable variables, laid end to end as a float32 vector, are averaged block by block: ranks send each block to its
    owner, which sends back the mean of what has arrived. A rank that does not receive a block keeps its own. Pass the
    optimizer to `compile`, or use it in your own loop, like any other. It keeps its class and config; `iterations`
    counts a rank's own steps. All ranks begin with rank 0's variables, and must make the same number of steps.

    Models differ between ranks during training. `mean` gathers the exact mean of all, for evaluating and saving;
    `hvd.callbacks.MeanOfModelsCallback` does so in `fit`. With loss scaling, a rank that skips a step takes part with
    its weights unchanged. With `gradient_accumulation_steps`, only steps that are applied count.

    Args:
        optimizer: any Keras optimizer, with or without loss scaling around it, not wrapped yet. It is changed in place
            and returned. If it is already built, as a loaded one is, it joins now, which is a collective.
        transport: how the vectors are sent: `Reliable()`, `Lossy(probability, seed)` or `Datagrams(...)`.
        every: H, the number of own steps between two rounds of averaging (local SGD).
        rotate: whether the owner of a block changes in each round. An owner's own weights are never lost and so count
            for more than those of others; False is as published.
        resynchronise_every: number of steps after which a round is exact, over a reliable network instead of the
            transport; a multiple of `every`. None never makes one.
        max_distance: the Euclidean distance between a rank's model and the mean, measured before a round, above which
            all ranks get the exact mean; `Telemetry` shows what is usual. None sets no bound.
        guard_every: number of rounds between two checks of the largest distance of all ranks, by one all-reduce of 4
            bytes, in which all wait for each other; only used with `max_distance`.
        telemetry: measures what is lost.

    Raises:
        TypeError: if it is not a Keras optimizer, or not a transport.
        ValueError: if it is already wrapped or a setting is out of its range; in the first step, on every rank, if
            ranks have built different models or have different settings.
        tf.errors.InvalidArgumentError: in a step, if a rank's weights hold a NaN or an infinity, which is not sent;
            raised on every rank with `Reliable` and `Lossy`.

    Steps and bytes sent per rank: those of the transport, in every H-th step.
    """
    inner = require_new(optimizer)
    if not isinstance(transport, Transport):
        raise TypeError(f"Expected a transport, such as hvd.averaging.Lossy(0.01), got {type(transport).__name__}.")
    for name, value in {"every": every, "guard_every": guard_every}.items():
        if value < 1:
            raise ValueError(f"Expected {name} of at least 1, got {value}.")
    if max_distance is not None and max_distance <= 0.0:
        raise ValueError(f"Expected a max_distance above 0, or None, got {max_distance}.")
    rounds = None if resynchronise_every is None else _rounds(resynchronise_every, every)
    settings = Settings(transport, every, rotate, rounds, max_distance, guard_every)
    part = ModelsAveraged(Participant(settings, telemetry))
    attached.attach(inner, part)
    if inner.built:
        part.begin(inner, list(slots.variables(inner).values()), inner.variables)
    return optimizer


def averaged(optimizer: Any) -> Participant:
    """The object that averages an optimizer's models; ValueError if there is none."""
    way = "hvd.averaging.ModelAveraging(optimizer)"
    return attached.required(optimizer, ModelsAveraged, "averages models", way).participant


class ModelsAveraged(Attached):
    """Models are averaged after the optimizer's own steps."""

    own_models = True

    def __init__(self, participant: Participant):
        self.participant = participant

    def build(self, own: Own, variables: Sequence[Any]) -> None:
        with making_variables():
            own.build(variables)
            self.begin(own.optimizer, list(variables))

    def begin(self, optimizer: Any, variables: Sequence[Any], loaded: Sequence[Any] = ()) -> None:
        """Begins with rank 0's variables, or comes back; `loaded` are slots that already hold something."""
        passes = optimizer.gradient_accumulation_steps or 1
        with making_variables():
            if self.participant.comes_back:
                slots.calls(optimizer).assign(self.participant.come_back(variables, passes))
            else:
                name = f"averaging.{next(_numbers)}"
                self.participant.begin(variables, loaded, topology.world(), name, passes)

    def scaled(self, apply: Callable[[], None]) -> None:
        """Takes part even if this rank skips the step, as the others do."""
        with self.participant.postponed():
            apply()
        self.participant.take_part()

    def apply(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        own.apply(gradients, variables)
        self.participant.take_part()

    def require_savable(self) -> None:
        self.participant.require_mean()

    def save(self, own: Own, store: Any) -> None:
        self.require_savable()
        own.save(store)


def resynchronise(optimizer: keras.optimizers.Optimizer) -> None:
    """Gives all ranks the exact mean of their models; a collective, between two steps.

    Args:
        optimizer: made by `ModelAveraging`. Its slots stay each rank's own.

    Raises:
        ValueError: if it does not average models.
        RuntimeError: before the first step.

    Steps and bytes sent per rank: those of `Reliable`.
    """
    averaged(optimizer).resynchronise()


def close(optimizer: keras.optimizers.Optimizer) -> None:
    """Releases what an optimizer's transport holds, such as sockets; the optimizer can make no step afterwards.

    Args:
        optimizer: made by `ModelAveraging`.
    """
    averaged(optimizer).close()


def ticket(optimizer: keras.optimizers.Optimizer) -> bytes:
    """Returns what lets this rank come back if its process ends and another one is started in its place.

    It contains the job's secret. Hand it only to the process that will start the other one, through a pipe that both
    have inherited; never put it in a file, an environment variable or the launcher's store.

    Args:
        optimizer: made by `ModelAveraging` with `Datagrams`, after its first step has begun.

    Raises:
        ValueError: if it does not average models, uses another transport, or some rounds are exact.
        RuntimeError: before the first step.
    """
    return averaged(optimizer).ticket.to_bytes()


def return_with(optimizer: keras.optimizers.Optimizer, ticket: bytes) -> None:
    """Lets a rank that was gone come back in its first step: it takes over what the others have; not a collective.

    Do not call `hvd.init()`, as Horovod cannot admit a new process: whatever asks Horovod, such as `hvd.rank()`, fails.
    For some rounds the rank only receives, until it has the whole model; from then on it takes part as before. Its
    slots and the statistics of batch normalisation start anew, and `iterations` is about what the others have. Exact
    operations are collectives of Horovod and raise an error here: `mean`, `resynchronise`, saving the model with its
    optimizer. The other ranks cannot do them either once a Horovod process is gone.

    Args:
        optimizer: made by `ModelAveraging` with `Datagrams` and the same settings as before, not used yet.
        ticket: what `ticket` returned for this rank, whose former process has ended.

    Raises:
        ValueError: if it is invalid, the transport is not `Datagrams`, or some rounds are exact; in the first step,
            if this process has built another model or has other settings than the job.
        OSError: in the first step, if it cannot listen at its old address and port.
        RuntimeError: if the optimizer was already used; in the first step, if no other rank takes part.
    """
    averaged(optimizer).return_with(Return.from_bytes(ticket))


def require_new(optimizer: Any) -> Any:
    """The optimizer, without loss scaling around it; TypeError or ValueError if anything else is around it."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"Expected a Keras optimizer, such as keras.optimizers.SGD(), got {type(optimizer).__name__}.")
    inner = slots.without_loss_scaling(optimizer)
    if attached.to(inner) is not None:
        raise ValueError(f"The optimizer {inner.name} is already distributed: pass one that is not, and wrap it once.")
    return inner


def _rounds(steps: int, every: int) -> int:
    if steps < 1 or steps % every:
        raise ValueError(
            f"Expected resynchronise_every to be a multiple of {every}, or None, got {steps}: models are "
            f"averaged, and can be resynchronised, only every {every} steps."
        )
    return steps // every

"""A Keras optimizer whose models are averaged over ranks after its own steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras

from hvd_sparse.averaging.participant import Participant, Settings
from hvd_sparse.averaging.reliable import Reliable
from hvd_sparse.averaging.returning import Return
from hvd_sparse.averaging.telemetry import Telemetry
from hvd_sparse.averaging.transports import Transport
from hvd_sparse.exchange import slots
from hvd_sparse.transport import topology
from hvd_sparse.transport.eager import making_variables

_AVERAGED = "_hvd_sparse_averaging"
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
    """Makes a Keras optimizer average models over all ranks, by messages of which some may be lost (RPS, section 4.1).

    Each rank makes steps of its own, with all that the optimizer does and slots of its own. After every H-th of them
    all trainable variables, laid end to end as a vector of float32, are averaged block by block: ranks send each block
    to its owner, who sends back the mean of what has arrived. A rank that does not receive a block keeps its own. It is
    to be passed to `compile`, or used in a loop of one's own, as any optimizer. It keeps its class and config;
    `iterations` counts a rank's own steps. All ranks begin with what rank 0 has, and make equally many steps.

    Models differ between ranks while they train. `mean` has the exact mean of all, to evaluate and to save it;
    `hvd.callbacks.MeanOfModelsCallback` does so in `fit`. With loss scaling a rank that skips a step takes part with
    its weights as they are. With `gradient_accumulation_steps` only steps that are applied count.

    Args:
        optimizer: any Keras optimizer, with or without loss scaling around it, not wrapped yet. It is changed in place
            and returned. One that is built already, as a loaded one is, takes part from now on: a collective then.
        transport: what carries the vectors: `Reliable()`, or `Lossy(probability, seed)`.
        every: H, own steps between two rounds of averaging (local SGD).
        rotate: whether the owner of a block is another rank in each round. An owner's own weights are never lost, so
            that they count for more than others; False is as published.
        resynchronise_every: steps after which a round is exact, by a reliable network, in place of the transport; a
            multiple of `every`. None never asks for it.
        max_distance: the Euclidean distance between a rank's model and the mean, measured before a round, beyond which
            all ranks get the exact mean; `Telemetry` tells what is usual. None sets no bound.
        guard_every: in every so many rounds ranks tell each other the largest distance, by one all-reduce of 4 bytes
            that waits for all; of use with `max_distance` alone.
        telemetry: measures what is lost.

    Raises:
        TypeError: where it is no Keras optimizer, or no transport.
        ValueError: where it is wrapped already or a setting is out of its range; in the first step, on every rank
            alike, where ranks have built other models or have other settings.
        tf.errors.InvalidArgumentError: in a step, where a rank's weights hold a NaN or an infinity, which is sent to
            nobody: on every rank alike with `Reliable` and `Lossy`.

    Steps and bytes sent per rank: those of the transport, in every H-th step.
    """
    inner = require_new(optimizer)
    if not isinstance(transport, Transport):
        raise TypeError(f"Expected a transport, as hvd.averaging.Lossy(0.01), got {type(transport).__name__}.")
    for name, value in {"every": every, "guard_every": guard_every}.items():
        if value < 1:
            raise ValueError(f"Expected {name} of at least 1, got {value}.")
    if max_distance is not None and max_distance <= 0.0:
        raise ValueError(f"Expected a max_distance above 0, or None, got {max_distance}.")
    rounds = None if resynchronise_every is None else _rounds(resynchronise_every, every)
    settings = Settings(transport, every, rotate, rounds, max_distance, guard_every)
    vars(inner)[_AVERAGED] = Participant(settings, telemetry)
    inner.__class__ = _averaged_class(type(inner))
    if inner.built:
        _begin(inner, list(slots.variables(inner).values()), inner.variables)
    return optimizer


def is_averaged(optimizer: Any) -> bool:
    """Whether an optimizer averages models, or is one with loss scaling around such a one."""
    return isinstance(optimizer, keras.optimizers.Optimizer) and _AVERAGED in vars(
        slots.without_loss_scaling(optimizer)
    )


def averaged(optimizer: Any) -> Participant:
    """What averages the models of an optimizer; ValueError where it does not."""
    if not is_averaged(optimizer):
        raise ValueError(
            f"Expected an optimizer that averages models, got {type(optimizer).__name__}: make it one by "
            "hvd.averaging.ModelAveraging(optimizer)."
        )
    return vars(slots.without_loss_scaling(optimizer))[_AVERAGED]


def resynchronise(optimizer: keras.optimizers.Optimizer) -> None:
    """Gives all ranks the exact mean of their models; a collective, between two steps.

    Args:
        optimizer: of `ModelAveraging`. Its slots stay each rank's own.

    Raises:
        ValueError: where it averages nothing.
        RuntimeError: before the first step.

    Steps and bytes sent per rank: those of `Reliable`.
    """
    averaged(optimizer).resynchronise()


def close(optimizer: keras.optimizers.Optimizer) -> None:
    """Gives back what an optimizer's transport holds, such as sockets; the optimizer makes no step afterwards.

    Args:
        optimizer: of `ModelAveraging`.
    """
    averaged(optimizer).close()


def ticket(optimizer: keras.optimizers.Optimizer) -> bytes:
    """With what this rank can come back where its process is gone and another one is started in its place.

    It has the job's secret in it: hand it to the process that will start the other one, by a pipe that both have
    inherited, and to nobody else; no file, environment variable or store of the launcher is a place for it.

    Args:
        optimizer: of `ModelAveraging` by `Datagrams`, from its first step on.

    Raises:
        ValueError: where it averages nothing, or by something else, or some rounds are exact.
        RuntimeError: before the first step.
    """
    return averaged(optimizer).ticket.to_bytes()


def return_with(optimizer: keras.optimizers.Optimizer, ticket: bytes) -> None:
    """Has a rank that was gone come back in its first step: it takes over what the others have; no collective.

    Without `hvd.init()`, as Horovod's ranks cannot take in another one: what asks Horovod, as `hvd.rank()`, fails. Of
    some rounds it takes what comes and contributes nothing, until it has all of the model; from then on it takes part
    as it did. Its slots and the statistics of batch normalisation begin anew, and `iterations` is about what the others
    have. What is exact is a collective of Horovod and refused here in words: `mean`, `resynchronise`, saving the model
    with its optimizer. The other ranks can do none of it either since one of Horovod's processes is gone.

    Args:
        optimizer: of `ModelAveraging` by `Datagrams`, with the settings of before, not used yet.
        ticket: of this rank, whose former process has ended, by `ticket`.

    Raises:
        ValueError: where it is no ticket, the transport is not `Datagrams`, or some rounds are exact; in the first
            step, where this process has built another model or has other settings than the job.
        OSError: in the first step, where it cannot listen at its old address and port.
        RuntimeError: where the optimizer was used already; in the first step, where no other rank takes part.
    """
    averaged(optimizer).return_with(Return.from_bytes(ticket))


def require_new(optimizer: Any) -> Any:
    """The optimizer within loss scaling, if there is any; TypeError or ValueError where something else is around it."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"Expected a Keras optimizer, as keras.optimizers.SGD(), got {type(optimizer).__name__}.")
    inner = slots.without_loss_scaling(optimizer)
    if inner.__class__ is not type(inner):
        raise ValueError(f"The optimizer {inner.name} is distributed already: give one that is not, and wrap it once.")
    return inner


def _rounds(steps: int, every: int) -> int:
    if steps < 1 or steps % every:
        raise ValueError(
            f"Models are averaged every {every} steps, and can be made alike then only: expected resynchronise_every "
            f"to be a multiple of {every}, or None, got {steps}."
        )
    return steps // every


def _begin(optimizer: Any, variables: Sequence[Any], loaded: Sequence[Any] = ()) -> None:
    participant = averaged(optimizer)
    passes = optimizer.gradient_accumulation_steps or 1
    with making_variables():
        if participant.comes_back:
            slots.calls(optimizer).assign(participant.come_back(variables, passes))
        else:
            participant.begin(variables, loaded, topology.world(), f"averaging.{next(_numbers)}", passes)


def _averaged_class(base: Any) -> type:
    """A subclass that takes part in averaging after its own steps, under the same name."""

    class Averaged(base):
        __class__ = property(lambda self: base)

        def build(self, variables):
            if not self.built:
                with making_variables():
                    base.build(self, variables)
                    _begin(self, list(variables))

        def apply(self, grads, trainable_variables=None):
            base.apply(self, grads, trainable_variables)
            averaged(self).take_part()

        def save_own_variables(self, store):
            averaged(self).require_mean()
            base.save_own_variables(self, store)

    Averaged.__name__, Averaged.__qualname__ = base.__name__, base.__qualname__
    Averaged.__module__, Averaged.__doc__ = base.__module__, base.__doc__
    return Averaged

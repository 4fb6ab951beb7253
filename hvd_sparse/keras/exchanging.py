"""The exchange in the steps of a Keras optimizer: what `hvd.DistributedOptimizer` attaches.

Where Keras has accumulated gradients and is about to apply them, the exchange happens. Clipping and weight decay, which
Keras applies just before, come after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvd_sparse.exchange import clipping, sender_side
from hvd_sparse.exchange.arguments import trains_alone
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.telemetry import Telemetry
from hvd_sparse.keras import local_optimizer, momentum, tensorflow_checkpoints
from hvd_sparse.optimizers import ahead, attached, slots, without_slots
from hvd_sparse.optimizers.attached import Attached, Figures, Own
from hvd_sparse.transport.eager import making_variables


class Passes(NamedTuple):
    """How gradients of several backward passes are accumulated, by Horovod's rules; one pass leaves it to Keras.

    Attributes:
        number: the number of passes in one step.
        averaged: whether their sum is divided by that number.
    """

    number: int = 1
    averaged: bool = False

    @property
    def factor(self) -> int:
        """What the mean of the passes, which Keras passes on, is multiplied by."""
        return 1 if self.averaged else self.number


ONE_PASS = Passes()


def distribute(
    optimizer: keras.optimizers.Optimizer,
    exchange: GradientExchange,
    passes: Passes = ONE_PASS,
    again: Callable[[keras.optimizers.Optimizer], None] | None = None,
) -> None:
    """Makes an optimizer exchange its gradients from now on; the object, its variables and its config stay the same.

    Args:
        optimizer: an optimizer that is not distributed yet.
        exchange: averages its gradients.
        passes: how they are accumulated before.
        again: makes another optimizer distributed in the same way; `from_config` calls it.
    """
    if passes.number > 1:
        optimizer.gradient_accumulation_steps = passes.number
    attached.attach(optimizer, Exchanging(exchange, passes), _Public, again)
    tensorflow_checkpoints.track(optimizer, exchange)
    if optimizer.built and exchange.takes_over:
        _hand_over(optimizer, exchange)


def exchange_of(optimizer: Any) -> GradientExchange | None:
    """The exchange of a distributed optimizer, also inside a loss-scaling one; None for any other."""
    found = attached.to(optimizer)
    return found.exchange if isinstance(found, Exchanging) else None


def meets_otherwise(optimizer: Any) -> bool:
    """Whether an optimizer's step needs the other ranks, but for another reason than an exchange."""
    return attached.to(optimizer) is not None and exchange_of(optimizer) is None


class _Variables(list):
    """An optimizer's variables: a list, as in Keras, that can also be called, as in Horovod scripts."""

    def __call__(self) -> list[Any]:
        return self


class Exchanging(Attached):
    """Gradients are exchanged before the optimizer applies them, or the exchange runs the optimizer.

    Args:
        exchange: averages the gradients.
        passes: how they are accumulated before.
    """

    def __init__(self, exchange: GradientExchange, passes: Passes):
        self.exchange = exchange
        self._passes = passes

    @property
    def looks_ahead(self) -> bool:
        return self.exchange.looks_ahead

    def build(self, own: Own, variables: Sequence[Any]) -> None:
        # Variables that are made inside a trace make TensorFlow trace the function again, which is needed where the
        # first step of a loop builds the optimizer: that trace has not looked ahead.
        with contextlib.nullcontext() if self.looks_ahead else making_variables():
            if not self.exchange.sends_updates:
                own.build(variables)
            else:
                slots.build_without(own.optimizer, variables)
            if self.exchange.takes_over:
                _hand_over(own.optimizer, self.exchange)

    def finite(self, here: Any) -> Any:
        """All ranks skip a step, or none, as that decides whether gradients are exchanged."""
        return self.exchange.everywhere(here)

    def apply(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        own.apply(ahead.to_apply(own.optimizer, gradients), variables)

    def overwriting(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        return self.exchange.with_largest(gradients, variables)

    def clip(self, own: Own, gradients: list[Any]) -> list[Any]:
        """Nothing: `update` does it."""
        return gradients

    def decay(self, own: Own, variables: Sequence[Any]) -> None:
        """Nothing: `update` does it."""

    def update(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        results = self._exchanged(own, gradients, variables)
        first = tf.nest.flatten(results, expand_composites=True)
        with tf.control_dependencies(first):
            own.decay(variables)
            # Keras raises the count after all reads of it: this one waits until all ranks have committed.
            tf.convert_to_tensor(slots.calls(own.optimizer))
        if not self.exchange.takes_over:
            own.update(results, variables, rate)  # they are mean gradients
            return
        taken = sender_side.taking_over(self.exchange, variables, slots.names(own.optimizer))
        triples = list(zip(results, variables, taken, strict=True))
        if self.exchange.sends_updates:
            local_optimizer.apply_updates(own.optimizer, triples, rate)
        else:
            _update_without_momentum(own, triples, rate, first)

    def _exchanged(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The mean gradient of each variable, or its update; names depend on the list of all variables."""

        def clip(each: list[tf.Tensor], factor: float) -> list[tf.Tensor]:
            with clipping.scaled_thresholds(own.optimizer, factor):
                return own.clip(each)

        factor = self._passes.factor
        summed = gradients if factor == 1 else [gradient * factor for gradient in gradients]
        found = {id(each): gradient for each, gradient in zip(variables, summed, strict=True)}
        whole = slots.built_for(own.optimizer)
        clips = clip if clipping.clips(own.optimizer) else None
        returned = self.exchange([found.get(id(each)) for each in whole], whole, clips)
        by_id = {id(each): result for each, result in zip(whole, returned, strict=True)}
        return [by_id[id(each)] for each in variables]

    def iterations(self, own: Own) -> Any:
        """The variable that counts calls, also if gradients are accumulated over several, as Horovod's does."""
        return slots.calls(own.optimizer) if self._passes.number > 1 else own.iterations

    def variables(self, own: Own) -> list[Any]:
        stand_in = without_slots.of(own.optimizer)
        return _Variables([*own.variables, *(stand_in.variables if stand_in else ())])

    def tracked(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        return tensorflow_checkpoints.wanted(children, save_type)

    def save(self, own: Own, store: Any) -> None:
        momentum.require_consolidated(own.optimizer, self.exchange)
        stand_in = without_slots.of(own.optimizer)
        if stand_in is None:
            own.save(store)
        else:
            stand_in.save(own.optimizer, store, self.exchange.step > 0)

    def load(self, own: Own, store: Any) -> None:
        stand_in, loaded = without_slots.of(own.optimizer), slots.fits(store, own.optimizer)
        if stand_in is None:
            own.load(store)
        else:
            loaded = stand_in.load(own.optimizer, store)
        if loaded:
            self.exchange.note_slots(slots.names(own.optimizer).values())

    def set_weights(self, own: Own, weights: Any) -> None:
        stand_in, given = without_slots.of(own.optimizer), True
        if stand_in is None:
            own.set_weights(weights)
        else:
            given = stand_in.set_weights(own.optimizer, weights)
        if given:
            self.exchange.note_slots(slots.names(own.optimizer).values())

    def measured(self, every: int) -> Figures:
        if self.exchange.telemetry is None:
            self.exchange.measure(Telemetry(norms_every=every))
        telemetry = self.exchange.telemetry
        assert telemetry is not None  # `measure` has set it
        return Figures(lambda: telemetry.step, self.exchange.read_telemetry, "exchange")


class _Public:
    """What users may call on a distributed optimizer."""

    @property
    def exchange(self) -> GradientExchange:
        """The exchange, which averages the gradients and holds their residuals."""
        found = exchange_of(self)
        assert found is not None  # as it is a distributed optimizer's
        return found

    def register_local_var(self, variable: Any) -> None:
        """Keeps a variable local, so its gradient is not exchanged, only divided by the number of ranks."""
        self.exchange.register_local_var(variable)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that begins, from 0; recipes that change by epoch need it outside `fit`."""
        self.exchange.set_epoch(epoch)


def _update_without_momentum(
    own: Own, exchanged: Sequence[tuple[Any, Any, bool]], rate: Any, first: Sequence[tf.Tensor]
) -> None:
    """Makes the optimizer's step, without its momentum where the exchange has applied it.

    Args:
        own: the optimizer.
        exchanged: for each variable, the mean, the variable, and whether the exchange keeps its momentum.
        rate: the learning rate.
        first: what must be known before anything is written.
    """

    def update(over: bool) -> None:
        pairs = [(mean, variable) for mean, variable, taken in exchanged if taken == over]
        if pairs:
            own.update([mean for mean, _ in pairs], [variable for _, variable in pairs], rate)

    names, held = slots.names(own.optimizer), slots.momenta(own.optimizer)
    empty = [held[names[id(each)]] for _, each, over in exchanged if over and names[id(each)] in held]
    with tf.control_dependencies(first), momentum.left_out(own.optimizer, empty):
        update(True)
    update(False)


def _hand_over(optimizer: Any, exchange: GradientExchange) -> None:
    """Lets the exchange run the step of an optimizer that has been built, or keep its momentum."""
    if exchange.sends_updates:
        _begin_updates(optimizer, exchange)
    else:
        momentum.note_writes(optimizer, slots.momenta)


def _begin_updates(optimizer: Any, exchange: GradientExchange) -> None:
    variables = slots.built_for(optimizer)
    local = exchange.are_local(variables)
    without_slots.begin(optimizer, [each for each, own in zip(variables, local, strict=True) if own])
    tensorflow_checkpoints.built(optimizer)
    if exchange.looks_ahead:
        replicated = [each for each, own in zip(variables, local, strict=True) if not own]
        looking = ahead.begin(optimizer, replicated, trains_alone(exchange.aggregator))
        exchange.joined = looking.joined
        exchange.when_written(looking.forget)

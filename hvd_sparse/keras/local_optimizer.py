"""Runs Keras's optimizers on the sender's side, on this rank's shard of its node's mean gradient.

A recipe with `LocalUpdates` exchanges the updates that an optimizer computes from a node's gradients. A twin of the
optimizer, of the same class and settings, has slots for the shard only; its step runs in a `keras.StatelessScope`, so
that nothing is written before all ranks have committed. Optimizers that need whole variables provide a step for shards
themselves (`optimizers/on_shards.py`), or run on all of the node's vector. Whatever acts on weights stays with the
optimizer itself: decoupled weight decay, constraints, the moving average. Gradients are clipped before.

The optimizer then has no slots of its own; `without_slots.py` provides what stands in for them in files.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression.senders import slots_of
from hvd_sparse.compression.updates import LocalSlots
from hvd_sparse.exchange import sender_side
from hvd_sparse.exchange.arguments import sends_updates
from hvd_sparse.optimizers import ahead, kinds, on_shards, slots, without_slots
from hvd_sparse.optimizers.shard_slots import PieceSlots, TwinSlots
from hvd_sparse.optimizers.whole_slots import WholeSlots
from hvd_sparse.spec import Gathered, LocalOptimizer, Spec

_LAYER_WISE = ("LARS", "LAMB")  # of the package lars


def of(optimizer: keras.optimizers.Optimizer) -> LocalOptimizer | None:
    """The description of an optimizer for an exchange that runs it, for `Spec.optimizer`; None if that is impossible.

    It does not keep the optimizer alive, as the optimizer itself holds the exchange.

    Args:
        optimizer: an optimizer that is not distributed yet.
    """
    kind = _kind(optimizer)
    if kind is None:
        return None
    reference = weakref.ref(optimizer)

    def alive() -> keras.optimizers.Optimizer:
        found = reference()
        if found is None:
            raise ReferenceError("The optimizer of this exchange no longer exists.")
        return found

    def create(spec: Spec) -> LocalSlots:
        return kind(spec, alive())

    def gathered() -> Gathered:
        found = without_slots.gathered_slots(alive())
        return {name: {each: slot.value.numpy() for each, slot in held.items()} for name, held in found.items()}

    return LocalOptimizer(create, gathered)


def check(optimizer: keras.optimizers.Optimizer, recipe: Aggregator) -> None:
    """Raises ValueError if a recipe exchanges updates that this optimizer cannot compute."""
    if sends_updates(recipe) and _kind(optimizer) is None:
        known = ", ".join(kinds.names(kinds.Step.ELEMENT, kinds.Step.WHOLE))
        raise ValueError(
            f"The exchange cannot run {type(optimizer).__name__} on a node's gradient: use one of {known}, or "
            f"{' or '.join(_LAYER_WISE)} of the package lars, with its original step, or a recipe that exchanges "
            "gradients, such as hvd.recipes.hitopk(0.01) or hvd.recipes.mean()."
        )


def apply_updates(optimizer: Any, exchanged: Sequence[tuple[Any, Any, bool]], learning_rate: Any) -> None:
    """Applies the result of an exchange to the weights.

    Args:
        optimizer: an optimizer that is distributed by a recipe that sends updates.
        exchanged: for each variable, the result, the variable, and whether the result is an update, to be subtracted,
            or a gradient, for the optimizer's own step.
        learning_rate: the learning rate of this step.
    """
    stand_in = without_slots.of(optimizer)
    assert stand_in is not None  # created by `build`
    for given, variable, is_update in exchanged:
        if is_update:
            variable.assign_sub(tf.cast(given, variable.dtype))
        else:
            stand_in.step(optimizer, given, variable, learning_rate)
    stand_in.gathered = None  # the exchange has taken it over, and this step makes it outdated
    looking = ahead.of(optimizer)
    if looking is not None:
        looking.move(sender_side.unsent(optimizer.exchange, slots.names(optimizer)))


def velocities(optimizer: Any) -> list[tf.Variable]:
    """The slots in which an exchange that runs the optimizer accumulates past steps, including the learning rate.

    SGD and RMSprop have such slots. Besides those of the exchange there are those of variables with an optimizer of
    their own (rows, local ones), and those of a file that wait for the exchange to begin.
    """
    optimizer = slots.without_loss_scaling(optimizer)
    kind, stand_in = kinds.of(optimizer), without_slots.of(optimizer)
    if stand_in is None or kind is None or kind.velocities is None:
        return []
    found = [each.slots for state in optimizer.exchange.states for each in slots_of(state)]
    of_others = [each for own in stand_in.optimizers for each in slots.velocities(own)]
    return [*(each[kind.velocities] for each in found if kind.velocities in each), *of_others]


def _kind(optimizer: keras.optimizers.Optimizer) -> Callable[[Spec, keras.optimizers.Optimizer], LocalSlots] | None:
    """What makes the slots of an optimizer; None if the exchange cannot run it."""
    if on_shards.offered(optimizer) is not None:
        return PieceSlots
    step = kinds.step_of(optimizer)
    if step is kinds.Step.ELEMENT:
        return TwinSlots
    return WholeSlots if step is kinds.Step.WHOLE else None

"""Which variables of a model and of its optimizers all ranks share, and which are each rank's own.

Everything is *replicated*, with the same value on every rank, except

- what an exchange keeps, which is no variable of the optimizer: the residuals, and under recipes of updates the slots
  of the variables that it exchanges, of which each rank of a node has a *shard*;
- the kinds of `OwnKind`, which are *each rank's own*.

Metrics are neither saved nor broadcast.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.keras.tracked import layers_of, optimizers_of
from hvd_sparse.optimizers import ahead, slots, without_slots
from hvd_sparse.optimizers.variables import resource, unique_names


class OwnKind(enum.Enum):
    """What is each rank's own; the text names it in messages."""

    SEED = "random seeds"
    STATE = "states of stateful RNN layers"
    LOCAL = "local variables and their slots"
    AHEAD = "offsets of looking ahead"
    SUM = "gradients accumulated between two updates"
    STATISTIC = "non-trainable weights such as moving statistics"


# Where a rank's own value is not known, it gets the mean over the ranks that saved, or begins afresh.
MEAN = (OwnKind.SUM, OwnKind.STATISTIC)
AFRESH = (OwnKind.SEED, OwnKind.STATE, OwnKind.LOCAL, OwnKind.AHEAD)


class OwnVariable(NamedTuple):
    """A variable that each rank has for itself."""

    variable: Any
    kind: OwnKind


def own_of(model: keras.Model) -> dict[str, OwnVariable]:
    """What each rank has for itself of a built model and its built optimizers, by names that are alike on all ranks."""
    optimizers = list(optimizers_of(model).values())
    local = local_variables(model)
    own = _of_model(model, local)
    for number, optimizer in enumerate(optimizers):
        own |= _of_optimizer(f"optimizer {number}", optimizer, local)
    return own


def local_variables(model: keras.Model) -> list[Any]:
    """The variables that are registered as local with any of a model's optimizers, each once."""
    exchanges = (exchange_of(each) for each in optimizers_of(model).values())
    listed = [each for exchange in exchanges if exchange is not None for each in exchange.local_variables()]
    return list({id(resource(each)): each for each in listed}.values())


def held_for(optimizer: keras.optimizers.Optimizer, variables: Iterable[Any]) -> list[Any]:
    """An optimizer's variables that belong to these variables of the model, such as their momentum, in its order."""
    listed = list(variables)
    inner = slots.without_loss_scaling(optimizer)
    stand_in = without_slots.of(inner)
    held = [*slots.of_variables(inner, listed), *(stand_in.of_variables(listed) if stand_in else ())]
    wanted = {id(each) for each in held}
    return [each for each in inner.variables if id(each) in wanted]


def numbered(model: keras.Model) -> list[Any]:
    """What versions without this table saved of each rank's own, in their order."""
    seeds = _seeds(model)
    local = local_variables(model)
    found = list(optimizers_of(model).values())[:1]
    of_optimizer = [slot for optimizer in found for slot in held_for(optimizer, local)]
    return [*seeds, *local, *of_optimizer, *(offset for optimizer in found for offset in ahead.offsets(optimizer))]


def _of_model(model: keras.Model, local: Sequence[Any]) -> dict[str, OwnVariable]:
    kinds = {id(resource(each)): OwnKind.STATISTIC for each in model.non_trainable_weights}
    kinds |= {id(resource(each)): OwnKind.LOCAL for each in local}
    weights, states = list(model.weights), _states(model)
    kinds |= {id(resource(each)): OwnKind.STATE for each in states}
    inside = {id(resource(each)) for each in weights}
    others = [each for each in local if id(resource(each)) not in inside]
    own = {
        f"weight {name}": OwnVariable(each, kinds[id(resource(each))])
        for name, each in zip(unique_names(weights), weights, strict=True)
        if id(resource(each)) in kinds
    }
    others += [each for each in states if id(resource(each)) not in inside]  # Keras does not count them as weights
    own |= {f"seed {number}": OwnVariable(each, OwnKind.SEED) for number, each in enumerate(_seeds(model))}
    named = zip(unique_names(others), others, strict=True)
    return own | {f"other {name}": OwnVariable(each, kinds[id(resource(each))]) for name, each in named}


def _of_optimizer(called: str, optimizer: keras.optimizers.Optimizer, local: Sequence[Any]) -> dict[str, OwnVariable]:
    inner = slots.without_loss_scaling(optimizer)
    found = [OwnVariable(each, OwnKind.LOCAL) for each in held_for(inner, local)]
    taken = {id(each.variable) for each in found}
    found += [OwnVariable(each, OwnKind.SUM) for each in slots.sums(inner) if id(each) not in taken]
    found += [OwnVariable(each, OwnKind.AHEAD) for each in ahead.offsets(inner)]
    return {f"{called} {own.kind.name.lower()} {number}": own for number, own in enumerate(found)}


def _seeds(model: keras.Model) -> list[Any]:
    weights = {id(resource(each)) for each in model.weights}
    return [each for each in model.variables if id(resource(each)) not in weights]


def _states(model: keras.Model) -> list[Any]:
    recurrent = [each for each in layers_of(model) if isinstance(each, keras.layers.RNN) and each.stateful]
    return [state for layer in recurrent for state in keras.tree.flatten(layer.states) if state is not None]


def told(own: Mapping[str, OwnVariable], kinds: Iterable[OwnKind]) -> list[str]:
    """The texts of those of the kinds that there are."""
    there = {each.kind for each in own.values()}
    return [kind.value for kind in kinds if kind in there]

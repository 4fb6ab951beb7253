"""Broadcasts a model and all its optimizers, including what only some ranks have made so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from hvd_sparse.horovod_api.variables import broadcast_variables
from hvd_sparse.keras import momentum
from hvd_sparse.keras.ownership import held_for, local_variables
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import slots, without_slots
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.transport import topology


def broadcast_state(model: keras.Model, root_rank: int, left: Iterable[Any] = ()) -> None:
    """Broadcasts the variables of one rank's model and optimizers to all ranks; a collective.

    Optimizers and slots that any rank has made are made on all of them first. Slots that the root rank has read from a
    file, and that the exchange takes over when it begins, are passed on as well.

    Args:
        model: a model that is built on every rank; its optimizer is built if necessary, if there is but one.
        root_rank: the rank whose variables all ranks get.
        left: variables that stay as they are, with their slots; also local ones, and the states of random seeds and
            residuals, which are not among those of model and optimizers.

    Raises:
        ValueError: on every rank, if the ranks' variables differ in number, shapes or dtypes.
    """
    optimizers = list(optimizers_of(model).values())
    build_alike(model, optimizers)
    passed_on = _make_alike(optimizers, root_rank)
    own = [*left, *local_variables(model)]
    own += [held for optimizer in optimizers for held in held_for(optimizer, own)]
    _broadcast([*model.weights, *(each for held in optimizers for each in held.variables), *passed_on], own, root_rank)


def places_in(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> list[int] | None:
    """The places of a built optimizer's variables among the model's trainable ones; None if it is not built."""
    if not optimizer.built:
        return None
    places = {id(resource(each)): place for place, each in enumerate(model.trainable_variables)}
    own = slots.variables(slots.without_loss_scaling(optimizer)).values()
    return [places.get(id(resource(each)), -1) for each in own]


def build_at(model: keras.Model, optimizer: keras.optimizers.Optimizer, places: Sequence[int] | None) -> None:
    """Builds an optimizer on the variables at these places, as another rank or a checkpoint has it."""
    variables = list(model.trainable_variables)
    if places is not None and not optimizer.built and all(0 <= place < len(variables) for place in places):
        optimizer.build([variables[place] for place in places])


def build_alike(model: keras.Model, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Builds each optimizer on the variables that it has on any rank, and a model's only one in any case; collective.

    Which variables each of several gets is known in their first steps only.
    """
    alone = optimizers == [getattr(model, "optimizer", None)]
    described = [places_in(model, each) for each in optimizers]
    every_rank = topology.world().gather_descriptions(described, "broadcast.built_on")
    if len({len(each) for each in every_rank}) > 1:
        raise ValueError(
            f"The ranks' models have different numbers of optimizers, {[len(each) for each in every_rank]} by rank: "
            "first build and compile the same model on every rank."
        )
    for number, optimizer in enumerate(optimizers):
        build_at(model, optimizer, next((each[number] for each in every_rank if each[number] is not None), None))
        if alone and not optimizer.built:
            optimizer.build(model.trainable_variables)


def _make_alike(optimizers: Sequence[keras.optimizers.Optimizer], root_rank: int) -> list[Any]:
    """Makes on this rank what others have of the slots that are not the optimizer's own; returns what was gathered."""
    inner = [slots.without_loss_scaling(each) for each in optimizers]
    stand_ins = [(each, found) for each in inner if (found := without_slots.of(each)) is not None]
    described = [[found.apart(each), found.gathered is not None] for each, found in stand_ins]
    every_rank = topology.world().gather_descriptions(described, "broadcast.apart")
    passed_on = []
    for number, (optimizer, stand_in) in enumerate(stand_ins):
        theirs = [each[number] for each in every_rank if number < len(each)]
        gathered = root_rank < len(every_rank) and number < len(every_rank[root_rank])
        gathered = gathered and every_rank[root_rank][number][1]
        passed_on += stand_in.take_part(optimizer, {name for names, _ in theirs for name in names}, gathered)
        if not gathered:  # a rank that had gathered slots has them no longer
            vars(optimizer).pop(momentum.CONSOLIDATED, None)
    return passed_on


def _broadcast(state: Iterable[Any], own: Iterable[Any], root_rank: int) -> None:
    left = {id(resource(variable)) for variable in own}
    distinct = {id(resource(variable)): resource(variable) for variable in state}
    broadcast_variables([each for number, each in distinct.items() if number not in left], root_rank)

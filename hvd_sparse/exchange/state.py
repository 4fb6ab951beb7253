"""The state of an exchange, as it is saved in checkpoints and restored.

Two forms are saved. The sum of all ranks' residuals fits any recipe, any buckets and any number of ranks. With the
state of each rank, training continues bit for bit, under the same recipe, plan and grid.

Saved names of parts and variables are fixed strings, independent of those in the code: see `spec.describe`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange.arguments import sends_updates
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.spec import describe

GRADIENTS, WEIGHTS = "gradients", "weights"  # also on disk


@dataclasses.dataclass(frozen=True)
class ResidualSum:
    """The sum of all ranks' residuals, and their progress, which fits any recipe and any number of ranks.

    Attributes:
        shapes: the shapes of all variables in buckets, by name, in the order of the model's variables.
        residuals: float32, by variable name, in the variable's shape: the sum over all ranks. A variable without a
            residual may be left out.
        step: the number of exchanges so far.
        counters: the steps of each part, by its name in a bucket.
        unit: `GRADIENTS`, or `WEIGHTS` if updates were exchanged.
        velocities: float32, by variable name: the velocity of the outer step, which all ranks share.
    """

    shapes: dict[str, tuple[int, ...]]
    residuals: dict[str, np.ndarray]
    step: int
    counters: dict[str, int]
    unit: str = GRADIENTS
    velocities: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RankState:
    """The exact state of one rank, for the same rank under the same recipe, plan and grid only.

    Attributes:
        account: the result of `account` when it was saved.
        values: the values of the state's variables by name.
    """

    account: dict[str, Any]
    values: dict[str, np.ndarray]


def account(exchange: PlannedExchange) -> dict[str, Any]:
    """The recipe, its decisions, the grid and the variables' placement; JSON-serializable, the same on every rank.

    Variables are identified by number, as Keras numbers the names of layers and they differ between equal models.
    """
    return {
        "recipe": describe(exchange.aggregator),
        "decided": [bucket.aggregator.decided(bucket.state) for bucket in exchange.buckets],
        "grid": {"ranks": exchange.grid.world.size, "ranks per node": exchange.grid.node.size},
        "places": list(exchange.plan.placement().values()),
    }


def residual_sum(exchange: PlannedExchange) -> ResidualSum:
    """The sum of the residuals of all ranks; a collective."""
    residuals = {name: value for bucket in exchange.buckets for name, value in bucket.residual_sum().items()}
    counters = {name: int(counter) for bucket in exchange.buckets for name, counter in bucket.counters().items()}
    velocities = {name: value for bucket in exchange.buckets for name, value in bucket.outer_velocities().items()}
    return ResidualSum(shapes_of(exchange), residuals, int(exchange.step), counters, unit(exchange), velocities)


def unit(exchange: PlannedExchange) -> str:
    """The unit of the residuals."""
    return WEIGHTS if sends_updates(exchange.aggregator) else GRADIENTS


def rank_state(exchange: PlannedExchange) -> RankState:
    """This rank's exact state."""
    return RankState(account(exchange), values(exchange))


def values(exchange: PlannedExchange) -> dict[str, np.ndarray]:
    """The values of this rank's state, by name."""
    return {name: variable.numpy() for name, variable in _variables(exchange).items()}


def set_values(exchange: PlannedExchange, saved: Mapping[str, np.ndarray]) -> None:
    """Sets what `values` has returned."""
    for name, variable in _variables(exchange).items():
        variable.assign(saved[name])


def slots(exchange: PlannedExchange) -> dict[str, dict[str, np.ndarray]]:
    """The mean over all nodes of each slot that was taken over, by slot name and variable name; a collective."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for bucket in exchange.buckets:
        for name, values in bucket.gather_slots().items():
            found.setdefault(name, {}).update(values)
    return found


def begin(exchange: PlannedExchange, pending: tuple[ResidualSum, RankState | None] | None) -> None:
    """Restores a pending saved state; without one, slots continue from the optimizer's. A collective."""
    if pending is None:
        _give_slots(exchange)
    else:
        restore(exchange, *pending)


def _give_slots(exchange: PlannedExchange) -> None:
    """Gives all ranks the slots of rank 0's optimizer, as far as they were taken over; a collective."""
    if exchange.taken_over is None:
        return
    gathered = exchange.taken_over.gathered()
    (known, *_) = exchange.grid.world.gather_descriptions(bool(gathered), f"{exchange.name}.known")
    if not known:
        return
    for bucket in exchange.buckets:
        bucket.give_slots(gathered)


def restore(exchange: PlannedExchange, total: ResidualSum, own: RankState | None) -> bool:
    """Restores a saved state and returns whether exactly, see `GradientExchange.restore`; a collective.

    Residuals in another unit than the recipe's are applied to the weights, once.
    """
    if _put_back(exchange, own):
        return True
    here = _names_here(total, shapes_of(exchange))
    residuals = {here[name]: residual for name, residual in total.residuals.items()}
    velocities = {here[name]: velocity for name, velocity in total.velocities.items()}
    if total.unit != unit(exchange):
        exchange.apply_residuals(residuals, total.unit == GRADIENTS)
        residuals = {}
    for bucket in exchange.buckets:
        bucket.restore(residuals)
        bucket.give_outer_velocities(velocities)
        for name, counter in bucket.counters().items():
            counter.assign(total.counters.get(name, total.step))
    exchange.step.assign(total.step)
    _give_slots(exchange)
    return False


def drop(exchange: PlannedExchange, slots_written: bool, names: Collection[str]) -> None:
    """Drops what waits to be sent, after weights were written on all ranks; a collective.

    Args:
        exchange: of all ranks.
        slots_written: whether slots were written, too, on any rank; rank 0's are then taken over.
        names: the variables whose slots were written on this rank.
    """
    for bucket in exchange.buckets:
        bucket.restore({})
    if not slots_written or exchange.taken_over is None:
        return
    goes_on = slots(exchange)
    for slot, values in exchange.taken_over.gathered().items():
        goes_on.setdefault(slot, {}).update({name: value for name, value in values.items() if name in names})
    for bucket in exchange.buckets:
        bucket.give_slots(goes_on)
        bucket.restart()


def inherit(exchange: PlannedExchange, other: PlannedExchange, names: Mapping[str, str]) -> None:
    """Continues from an exchange that will not run again, for variables that are in both; a collective.

    Each rank gets an equal share of its residuals in addition to those that are here. Momentum and steps go on.

    Args:
        exchange: has not run yet.
        other: of the same recipe and the same ranks.
        names: the name of each of these variables here, by its name there.
    """
    total, shapes = residual_sum(other), shapes_of(exchange)
    residuals = residual_sum(exchange).residuals
    for name, residual in _renamed(total.residuals, names, shapes).items():
        residuals[name] = residuals[name] + residual if name in residuals else residual
    restore(exchange, ResidualSum(shapes, residuals, total.step, total.counters, unit(exchange)), None)
    momenta = slots(exchange)
    for slot, values in slots(other).items() if momenta else ():
        momenta[slot].update(_renamed(values, names, shapes))
    for bucket in exchange.buckets if momenta else ():
        bucket.give_slots(momenta)


def _renamed(
    values: Mapping[str, np.ndarray], names: Mapping[str, str], shapes: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """What belongs to variables with a shape here, by their names here."""
    return {names[name]: value for name, value in values.items() if names.get(name) in shapes}


def _put_back(exchange: PlannedExchange, own: RankState | None) -> bool:
    """Restores each rank's own state if every rank has one that fits; returns whether it did."""
    saved: Mapping[str, np.ndarray] = {}
    if own is not None and own.account == account(exchange):
        saved = own.values
    fits = set(saved) == set(_variables(exchange))
    everybody = exchange.grid.world.allreduce(tf.constant(int(fits)), "min", f"{exchange.name}.restore")
    if everybody == 1:
        set_values(exchange, saved)
    return bool(everybody == 1)


def _variables(exchange: PlannedExchange) -> dict[str, tf.Variable]:
    in_buckets = {
        f"bucket{number}{name}": variable
        for number, bucket in enumerate(exchange.buckets)
        for name, variable in bucket.variables().items()
    }
    return {**in_buckets, "step": exchange.step}


def shapes_of(exchange: PlannedExchange) -> dict[str, tuple[int, ...]]:
    """The shapes of all variables in buckets, by name, in the order of the model's variables."""
    plan = exchange.plan
    in_rows = {segment.name for segment, _ in plan.slices}
    return {name: tuple(place[0]) for name, place in plan.placement().items() if name not in in_rows}


def _names_here(total: ResidualSum, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """This exchange's names of the saved variables; other names are matched by order if the shapes agree."""
    if total.shapes == dict(shapes):
        return {name: name for name in shapes}
    if list(total.shapes.values()) != list(shapes.values()):
        raise ValueError(
            "The checkpoint's variables differ from those exchanged here: it holds "
            f"{_listed(total.shapes, shapes)}; here are {_listed(shapes, total.shapes)}. Build the same model, with "
            "the same local layers and the same sparse_as_dense."
        )
    return dict(zip(total.shapes, shapes, strict=True))


def _listed(shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> str:
    """The first variables that the others do not have."""
    different = [f"{name} {list(shape)}" for name, shape in shapes.items() if others.get(name) != shape]
    return ", ".join(different[:4]) + (", ..." if len(different) > 4 else "") if different else "fewer"

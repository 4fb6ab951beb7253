"""What an exchange holds from step to step: as a checkpoint saves it, and as it is put back.

Two forms are saved. The sum over all ranks of their residuals fits any recipe, any buckets and any number of ranks. The
state of each rank goes on to the bit, under the same recipe, plan and grid.

Names of parts and of variables that are saved are fixed strings, apart from those in the code: see `spec.describe`,
and `_VARIABLES` for names that older versions wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange.arguments import sends_updates
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.spec import describe, described_now

GRADIENTS, WEIGHTS = "gradients", "weights"  # on disk, too
_VARIABLES = {"_carried": "_residual"}  # how names ended that older versions wrote -> how they end now


@dataclasses.dataclass(frozen=True)
class ResidualSum:
    """The residuals of all ranks together, and how far they are: what fits any recipe and any number of ranks.

    Attributes:
        shapes: of all variables in buckets, by name, in the order of the model's variables.
        residuals: float32, by variable name, in the variable's shape: the sum over all ranks. A variable without a
            residual may be left out.
        step: how many exchanges there have been.
        counters: how often the selectors have selected, by their names in a bucket.
        unit: `GRADIENTS`, or `WEIGHTS` where updates were exchanged.
    """

    shapes: dict[str, tuple[int, ...]]
    residuals: dict[str, np.ndarray]
    step: int
    counters: dict[str, int]
    unit: str = GRADIENTS


@dataclasses.dataclass(frozen=True)
class RankState:
    """The state of one rank to the bit; of use only to the same rank under the same recipe, plan and grid.

    Attributes:
        account: what `account` said when it was taken.
        values: by name of the state's variable.
    """

    account: dict[str, Any]
    values: dict[str, np.ndarray]


def account(exchange: PlannedExchange) -> dict[str, Any]:
    """The recipe, what it decided, the grid and where the variables lie; JSON-serialisable, alike on every rank.

    Variables go by their number: Keras numbers the names of layers, so that they differ between equal models.
    """
    return {
        "recipe": describe(exchange.aggregator),
        "decided": [bucket.aggregator.decided(bucket.state) for bucket in exchange.buckets],
        "grid": {"ranks": exchange.grid.world.size, "ranks per node": exchange.grid.node.size},
        "places": list(exchange.plan.placement().values()),
    }


def residual_sum(exchange: PlannedExchange) -> ResidualSum:
    """The residuals of all ranks together; a collective."""
    residuals = {name: value for bucket in exchange.buckets for name, value in bucket.residual_sum().items()}
    counters = {name: int(counter) for bucket in exchange.buckets for name, counter in bucket.counters().items()}
    return ResidualSum(_shapes(exchange), residuals, int(exchange.step), counters, unit(exchange))


def unit(exchange: PlannedExchange) -> str:
    """What residuals are measured in."""
    return WEIGHTS if sends_updates(exchange.aggregator) else GRADIENTS


def rank_state(exchange: PlannedExchange) -> RankState:
    """This rank's state to the bit."""
    return RankState(account(exchange), {name: variable.numpy() for name, variable in _variables(exchange).items()})


def slots(exchange: PlannedExchange) -> dict[str, dict[str, np.ndarray]]:
    """The mean over all nodes of each slot that was taken over, by its name and that of the variable; a collective."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for bucket in exchange.buckets:
        for name, values in bucket.gather_slots().items():
            found.setdefault(name, {}).update(values)
    return found


def begin(exchange: PlannedExchange, pending: tuple[ResidualSum, RankState | None] | None) -> None:
    """Puts back what was saved, where that is pending; else slots go on from the optimizer's. A collective."""
    if pending is None:
        _give_slots(exchange)
    else:
        restore(exchange, *pending)


def _give_slots(exchange: PlannedExchange) -> None:
    """Has all ranks go on with the slots of rank 0's optimizer, where they were taken over; a collective."""
    if exchange.taken_over is None:
        return
    gathered = exchange.taken_over.gathered()
    (known, *_) = exchange.grid.world.gather_descriptions(bool(gathered), f"{exchange.name}.known")
    if not known:
        return
    for bucket in exchange.buckets:
        bucket.give_slots(gathered)


def restore(exchange: PlannedExchange, total: ResidualSum, own: RankState | None) -> bool:
    """Puts back what was saved; a collective. Returns whether it is to the bit, see `GradientExchange.restore`.

    Residuals in another unit than the recipe's are applied to the weights, once.
    """
    if _put_back(exchange, own):
        return True
    residuals = _matched(total, _shapes(exchange))
    if total.unit != unit(exchange):
        exchange.apply_residuals(residuals, total.unit == GRADIENTS)
        residuals = {}
    for bucket in exchange.buckets:
        bucket.restore(residuals)
        for name, counter in bucket.counters().items():
            counter.assign(total.counters.get(name, total.step))
    exchange.step.assign(total.step)
    _give_slots(exchange)
    return False


def _put_back(exchange: PlannedExchange, own: RankState | None) -> bool:
    """Puts back each rank's own state where every rank has one that fits; says whether."""
    variables = _variables(exchange)
    values: dict[str, np.ndarray] = {}
    if own is not None and described_now(own.account) == account(exchange):
        values = {_name_now(name): value for name, value in own.values.items()}
    fits = set(values) == set(variables)
    everybody = exchange.grid.world.allreduce(tf.constant(int(fits)), "min", f"{exchange.name}.restore")
    if everybody == 1:
        for name, variable in variables.items():
            variable.assign(values[name])
    return bool(everybody == 1)


def _name_now(name: str) -> str:
    """What a variable of a state is called now, by the name that some version wrote."""
    old = next((end for end in _VARIABLES if name.endswith(end)), None)
    return name if old is None else name.removesuffix(old) + _VARIABLES[old]


def _variables(exchange: PlannedExchange) -> dict[str, tf.Variable]:
    in_buckets = {
        f"bucket{number}{name}": variable
        for number, bucket in enumerate(exchange.buckets)
        for name, variable in bucket.variables().items()
    }
    return {**in_buckets, "step": exchange.step}


def _shapes(exchange: PlannedExchange) -> dict[str, tuple[int, ...]]:
    plan = exchange.plan
    in_rows = {segment.name for segment, _ in plan.slices}
    return {name: tuple(place[0]) for name, place in plan.placement().items() if name not in in_rows}


def _matched(total: ResidualSum, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Residuals under the names that the variables have here; other names are matched by order where shapes agree."""
    if total.shapes == dict(shapes):
        return total.residuals
    if list(total.shapes.values()) != list(shapes.values()):
        raise ValueError(
            "The checkpoint's variables are not those that are exchanged here: it holds "
            f"{_listed(total.shapes, shapes)}; here are {_listed(shapes, total.shapes)}. Build the same model, with "
            "the same local layers and the same sparse_as_dense."
        )
    here = dict(zip(total.shapes, shapes, strict=True))
    return {here[name]: residual for name, residual in total.residuals.items()}


def _listed(shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> str:
    """The first variables that the others do not have."""
    different = [f"{name} {list(shape)}" for name, shape in shapes.items() if others.get(name) != shape]
    return ", ".join(different[:4]) + (", ..." if len(different) > 4 else "") if different else "fewer"

"""Trains one cell: what each rank does, and what it ends with."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import hvd_sparse as hvd
from tests.grid import world
from tests.grid.cell import Cell
from tests.grid.loops import LOOPS, TRACED, Batches, Loop
from tests.grid.models import MODELS, batch, made, path
from tests.grid.optimizers import OPTIMIZERS
from tests.grid.recipes import RECIPES
from tests.grid.ways import WAYS, Stopped

Values = list[tuple[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a rank ends with: its variables by path, and those of a training that was not stopped, if that is known."""

    values: Values
    unstopped: Values | None


def played(cell: Cell) -> list[Ended]:
    """What each rank ends with, with ranks that are threads."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="grid"))
    try:
        if not WAYS[cell.way].moves:
            return world.run(cell.ranks, cell.local_size, lambda rank: of_rank(cell, rank, folder))
        world.run(cell.ranks, cell.local_size, lambda rank: _train(cell, rank, folder, cell.way, [0]))
        after = cell.after
        return world.run(
            after.ranks, after.local_size, lambda rank: Ended(_train(after, rank, folder, cell.way, [1]), None)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def batches(cell: Cell, rank: int, phase: int) -> Batches:
    """A rank's batches in the first or second phase; the third is one batch that is not part of the training."""
    first, second = cell.counts
    steps = (range(first), range(first, first + second), range(99, 100))[phase]
    return [batch(cell.model, 0 if cell.data == "same" else rank, step) for step in steps]


def optimizer_of(cell: Cell) -> keras.optimizers.Optimizer:
    """The cell's optimizer as Keras makes it."""
    optimizer = OPTIMIZERS[cell.optimizer].make()
    if cell.passes == "keras_two":
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        inner.gradient_accumulation_steps = 2
    return optimizer


def of_rank(cell: Cell, rank: int, folder: pathlib.Path) -> Ended:
    """What a rank ends with, on ranks of any kind; the folder is the same on all of them, and empty."""
    stopped = _train(cell, rank, folder, cell.way)
    unstopped = _train(cell, rank, folder, "not_stopped") if cell.is_exact and cell.way != "not_stopped" else None
    return Ended(stopped, unstopped)


def _train(cell: Cell, rank: int, folder: pathlib.Path, way: str, phases: Sequence[int] = (0, 1)) -> Values:
    recipe, options, chosen = RECIPES[cell.recipe], _options(cell), WAYS[way]

    def aggregator() -> Any:
        return recipe.make(cell.share)

    def new(other: Any = None) -> keras.Model:
        return _compiled(cell, made(cell.model, rank), other or aggregator(), options)

    def train(model: keras.Model, phase: int, data: Batches, callbacks: Sequence[Any] = ()) -> None:
        for each in optimizers(model):
            inner = getattr(each, "inner_optimizer", each)
            if hasattr(inner, "set_epoch"):
                inner.set_epoch(phase)
        _loop(cell).train(model, data, phase, callbacks)

    model = new()
    at = Stopped(
        model,
        new,
        aggregator,
        options,
        MODELS[cell.model].local,
        _loop(cell).is_eager,
        model.get_weights(),
        folder,
        lambda model: train(model, 0, batches(cell, rank, 2)),
        lambda name: world.gather(None, name),
    )
    if cell.counts[0] and 0 in phases:
        train(model, 0, batches(cell, rank, 0), chosen.saves(folder))
    if 1 not in phases:
        return []
    model, callbacks = chosen.go_on(at)
    train(model, 1, batches(cell, rank, 1), callbacks)
    return values(model)


def _loop(cell: Cell) -> Loop:
    return {**LOOPS, **TRACED}[cell.loop]


def _options(cell: Cell) -> dict[str, Any]:
    return {"backward_passes_per_step": 2} if cell.passes == "horovods_two" else {}


def _compiled(cell: Cell, model: keras.Model, aggregator: Any, options: dict[str, Any]) -> keras.Model:
    local = [layer for layer in model.layers if layer.name in MODELS[cell.model].local]
    own = [
        hvd.DistributedOptimizer(optimizer_of(cell), aggregator=aggregator, local_layers=local, **options)
        for _ in range(MODELS[cell.model].optimizers)
    ]
    model.compile(*own, loss="mse", **_loop(cell).compiled)
    return model


def optimizers(model: keras.Model) -> list[Any]:
    """The optimizers of a model."""
    return [model.optimizer, *([model.second] if hasattr(model, "second") else ())]


def values(model: keras.Model) -> Values:
    """All variables of a model, by path, without metrics and seeds that nothing draws from."""
    seeds = [each for each in model.variables if each.path.endswith("seed_generator_state")]
    draws = any(isinstance(layer, keras.layers.Dropout) for layer in model.layers)
    held = [*model.weights, *(seeds if draws else ())]
    distinct: dict[int, Any] = {id(each): each for each in held}
    return [(path(each), keras.ops.convert_to_numpy(each)) for each in distinct.values()]

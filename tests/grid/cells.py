"""The cells that are tested: every pair of values, every refusal, and more that a seed draws."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Mapping

from tests.grid import covering, refusals, rules
from tests.grid.cell import AXES, Cell
from tests.grid.loops import TRACED
from tests.grid.ways import WAYS

SEED = 1
# What is traced, on real ranks: each costs seconds.
TRACED_AXES = {
    **{axis: values[:1] for axis, values in AXES.items()},
    "optimizer": ("momentum", "Adam", "LAMB"),
    "recipe": ("dense", "hitopk", "corrected", "updates", "recommended", "diloco"),
    "way": ("not_stopped", "checkpoint_new", "model_file"),
    "model": ("dense", "embedding", "batch_norm", "spectral", "two_optimizers"),
    "loop": tuple(TRACED),
    "passes": ("single", "keras_two"),
    "shape": ("2x1", "2x2"),
}
TRACED_QUICK = 6
DRAWN = 40  # cells of the thorough tier that a seed draws, each of which holds 120 triples of values
ANOTHER = "HVD_SPARSE_GRID_SEED"  # set: draws the thorough cells by this seed


def _forbids(values: Mapping[str, str]) -> bool:
    return rules.forbids(values) or refusals.forbids(values)


@functools.cache
def quick() -> list[Cell]:
    """Cells that together hold every pair of values that is neither forbidden nor refused, and each refusal."""
    staying = {**AXES, "way": [way for way in AXES["way"] if not WAYS[way].moves]}
    rows = covering.pairwise(AXES, _forbids, SEED, covering.pairwise(staying, _forbids, SEED))
    return [*(Cell(**row) for row in rows), *refusals.examples()]


@functools.cache
def thorough() -> list[Cell]:
    """Cells that are drawn by a seed, and each optimizer with each recipe through a checkpoint."""
    rows = covering.drawn(AXES, _forbids, int(os.environ.get(ANOTHER, SEED)), DRAWN)
    usual = {axis: values[0] for axis, values in AXES.items()} | {"way": "checkpoint_new"}
    pairs = itertools.product(AXES["optimizer"], AXES["recipe"])
    rows += [usual | {"optimizer": optimizer, "recipe": recipe} for optimizer, recipe in pairs]
    known = set(quick())
    cells = dict.fromkeys(Cell(**row) for row in rows if not _forbids(row))
    return [cell for cell in cells if cell not in known]


@functools.cache
def traced() -> list[Cell]:
    """Cells for real ranks, with every pair of the values of `TRACED_AXES`."""
    return [Cell(**row) for row in covering.pairwise(TRACED_AXES, _forbids, SEED)]

"""Cells of the grid of `tests/grid/` whose training is traced, on real ranks."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from hvd_sparse import topology
from tests.grid import cells, check, faults, play, world
from tests.grid.cell import Cell
from tests.parallel.cases import case

CELLS = [cell.name for cell in cells.traced() if faults.of(cell) is None]


@case(
    ranks=[2],
    over=lambda ranks: [{"cell": name} for name in CELLS],
    quick=lambda ranks, cell: cell in CELLS[: cells.TRACED_QUICK],
)
def it_ends_as_the_oracles_say(cell):
    made = Cell.named(cell)
    topology.init(local_size=made.local_size)
    folder = world.gather(tempfile.mkdtemp(prefix="grid") if topology.rank() == 0 else None, "grid.folder")[0]
    own = play.of_rank(made, topology.rank(), pathlib.Path(folder))
    everyone = world.gather([_listed(own.values), own.unstopped and _listed(own.unstopped)], "grid.ended")
    if topology.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    told = check.differs(made, [play.Ended(_values(ended), _values(other)) for ended, other in everyone])
    assert not told, told


def _listed(values: play.Values) -> list[Any]:
    return [[path, value.dtype.name, value.shape, value.tobytes().hex()] for path, value in values]


def _values(listed: list[Any] | None) -> Any:
    return listed and [
        (path, np.frombuffer(bytes.fromhex(text), dtype).reshape(shape)) for path, dtype, shape, text in listed
    ]

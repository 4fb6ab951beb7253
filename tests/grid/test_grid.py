"""Each cell of the grid as a test; `python -m tests.grid CELL` runs one by itself."""

import keras
import pytest

import hvd_sparse as hvd
from tests.grid import cells, check, faults


@pytest.fixture(autouse=True)
def fresh():
    hvd.init()
    keras.config.set_dtype_policy("float32")


def listed():
    """All cells; those with a known fault are expected to fail."""
    tiers = [(cells.quick(), []), (cells.thorough(), [pytest.mark.thorough])]
    for cell, marks in ((cell, marks) for found, marks in tiers for cell in found):
        fault = faults.of(cell)
        known = [] if fault is None else [pytest.mark.xfail(reason=fault.what, strict=True)]
        yield pytest.param(cell, id=cell.name, marks=[*marks, *known])


@pytest.mark.parametrize("cell", listed())
def test_cell(cell):
    told = check.wrong(cell)
    assert not told, told

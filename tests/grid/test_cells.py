"""The list of cells: every pair of values is in it, few are refused, and each row of a table has a cell."""

import itertools
import pathlib

import pytest

from tests.grid import cells, covering, faults, refusals, rules
from tests.grid.cell import AXES, Cell

SMALL = {"a": ("1", "2", "3"), "b": ("4", "5"), "c": ("6", "7"), "d": ("8", "9")}


def _forbidden(values):
    return values.get("a") == "1" and values.get("b") == "4"


def _pairs(rows):
    return {frozenset(pair) for row in rows for pair in itertools.combinations(row.items(), 2)}


def test_every_pair_is_covered_but_those_that_are_forbidden():
    wanted = {
        frozenset([(one, first), (other, second)])
        for one, other in itertools.combinations(SMALL, 2)
        for first, second in itertools.product(SMALL[one], SMALL[other])
    } - {frozenset([("a", "1"), ("b", "4")])}
    rows = covering.pairwise(SMALL, _forbidden, seed=3)
    assert _pairs(rows) == wanted
    assert len(rows) < 3 * 2 * 2
    assert rows == covering.pairwise(SMALL, _forbidden, seed=3)


def test_rows_are_added_to_those_that_there_are():
    fewer = {**SMALL, "a": ("1", "2")}
    first = covering.pairwise(fewer, _forbidden, seed=3)
    rows = covering.pairwise(SMALL, _forbidden, 3, first)
    assert rows[: len(first)] == first and {row["a"] for row in rows[len(first) :]} == {"3"}
    assert _pairs(rows) == _pairs(covering.pairwise(SMALL, _forbidden, 3))


def test_rows_are_drawn_by_the_seed_and_the_rules():
    rows = covering.drawn(SMALL, _forbidden, seed=4, count=30)
    assert rows == covering.drawn(SMALL, _forbidden, 4, 30) != covering.drawn(SMALL, _forbidden, 5, 30)
    assert not any(map(_forbidden, rows)) and len(rows) == 30


@pytest.mark.parametrize("one, other", list(itertools.combinations(AXES, 2)))
def test_every_pair_of_values_is_in_a_cell(one, other):
    held = {(getattr(cell, one), getattr(cell, other)) for cell in cells.quick()}
    for pair in itertools.product(AXES[one], AXES[other]):
        values = dict(zip((one, other), pair, strict=True))
        assert pair in held or rules.forbids(values), values


def test_few_cells_are_refused():
    assert sum(map(bool, map(refusals.of, cells.quick()))) <= 0.05 * len(cells.quick())
    assert sum(map(bool, map(refusals.of, cells.traced()))) == 0


def test_each_row_of_the_tables_has_a_cell():
    everyone = cells.quick()
    assert {refusals.of(cell) for cell in everyone} == {None, *refusals.REFUSALS}
    assert all(any(row.shows(cell) for cell in (*everyone, *cells.traced())) for row in faults.FAULTS)


def test_a_cell_has_the_name_that_finds_it():
    assert all(Cell.named(cell.name) == cell for cell in (*cells.quick(), *cells.traced()))


def test_the_page_on_saving_has_the_table_of_refusals():
    page = pathlib.Path(__file__).parents[2] / "docs" / "saving.md"
    assert refusals.table() in page.read_text(), "run: python -m tests.grid"

"""Eight faults of schedules over real elastic jobs; `make faults` runs more of them."""

import collections

import pytest

from tests.faults import schedules

SEEDS = (1, 2, 3, 4, 9)


def test_seeds_draw_every_recipe_and_kind_within_bounds():
    drawn = [schedules.drawn(seed) for seed in range(1, 61)]
    assert {each.recipe for each in drawn} == set(schedules.RECIPES) and {each.slots for each in drawn} == {1, 2}
    kinds = collections.Counter(fault.kind for each in drawn for fault in each.faults)
    assert set(kinds) == set(schedules.KINDS) and min(kinds.values()) > 5
    assert any(fault.overlaps for each in drawn for fault in each.faults)
    for each in drawn:
        ranks = len(each.hosts) * each.slots
        for fault in each.faults:
            ranks += each.slots if fault.kind == "join" else -each.slots
            assert schedules.LEAST <= ranks <= schedules.MOST, each


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_holds(tmp_path, seed):
    schedules.run(schedules.drawn(seed), tmp_path)

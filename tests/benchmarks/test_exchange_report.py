"""Which cells bench_exchange.py measures together, and its report of them."""

import pytest

from benchmarks.exchange import bench_exchange
from benchmarks.exchange import report as exchange_report

pytestmark = pytest.mark.thorough

ARMS = [*exchange_report.DENSE, "topk", "mstopk", "hitopk"]


def test_arms_are_timed_together_where_memory_holds_what_they_keep():
    assert bench_exchange.groups_of(ARMS, 10**6, 4, 20e9) == [ARMS]


def test_arms_that_keep_too_much_for_the_memory_are_timed_in_groups():
    assert bench_exchange.groups_of(ARMS, 110 * 10**6, 4, 20e9) == [
        ["horovod.allreduce", "horovod.allreduce, A/A", "horovod.allreduce-fp16", "dense"],
        ["torus2d"],
        ["torus2d-fp16", "2DTAR, literal"],
        ["topk"],
        ["mstopk"],
        ["hitopk"],
    ]


def test_a_cell_for_which_there_is_no_memory_has_no_groups():
    assert bench_exchange.groups_of(ARMS, 110 * 10**6, 8, 20e9) == []


def test_a_cell_that_fills_the_memory_has_ranks_of_its_own():
    one, two = {"groups": [ARMS]}, {"groups": [ARMS]}
    large, larger = {"groups": [ARMS[:3], ARMS[3:]]}, {"groups": [[arm] for arm in ARMS]}
    assert bench_exchange.launches([one, large, two, larger]) == [[one, two], [large], [larger]]
    assert bench_exchange.launches([large]) == [[], [large]]
    assert bench_exchange.launches([]) == [[]]


def test_dense_arms_of_milliseconds_are_timed_beside_all_densities_and_others_once():
    def dense(name, rate):
        cells = bench_exchange.cells_of((2, 2), rate, [name], bench_exchange.DENSITIES, ["torch.distributed"])
        return [[arm for arm in cell["rounds"] if arm not in exchange_report.SPARSE] for cell in cells]

    ours_and_horovod = [arm for arm in exchange_report.DENSE if arm != "2DTAR, literal"]
    everyone = [*exchange_report.DENSE, "torch.distributed"]
    assert dense("1M", "10gbit") == [everyone, ours_and_horovod, ours_and_horovod]
    assert dense("25M", "10gbit") == [everyone, [], []]


def test_only_what_takes_seconds_is_timed_after_one_round():
    cells = bench_exchange.cells_of((4, 2), "100mbit", ["25M", "1M"], [0.001, 0.1], [])
    warm = [(cell["warm"].get("torus2d"), cell["warm"]["topk"]) for cell in cells]
    assert warm == [
        (1, bench_exchange.WARM),
        (None, 1),
        (bench_exchange.WARM, bench_exchange.WARM),
        (None, bench_exchange.WARM),
    ]
    assert cells[0]["rounds"]["topk"] > cells[1]["rounds"]["topk"] > cells[0]["rounds"]["torus2d"]


def row(arm, ms, density=0.01, decided=()):
    cell = {"shape": "2x2", "rate": "1gbit", "size": "25M", "density": density}
    return {**cell, "arm": arm, "ms": ms, "decided": list(decided)}


ROWS = [
    row("horovod.allreduce", 100.0, 0.001),
    row("horovod.allreduce, A/A", 104.0, 0.001),
    row("dense", 101.0, 0.001),
    row("torus2d", 80.0, 0.001),
    row("topk", 40.0),
    row("hitopk", 10.0),
    row("auto", 11.0, decided=["topk"]),
]


def test_auto_is_held_against_the_best_recipe_of_its_cell_and_against_horovod():
    (choice,) = exchange_report.choices(ROWS)
    assert (choice["best"], choice["chose"]) == ("hitopk", ["topk"])
    assert choice["against_same"] == pytest.approx(11 / 40 - 1)
    assert (choice["regret"], choice["against_horovod"], choice["noise"]) == pytest.approx((0.1, -0.89, 0.04))


def test_auto_is_held_against_dense_arms_of_its_own_cell_where_there_are_some():
    (choice,) = exchange_report.choices([*ROWS, row("horovod.allreduce", 55.0), row("torus2d", 5.0)])
    assert (choice["best"], choice["against_horovod"]) == ("torus2d", pytest.approx(11 / 55 - 1))
    again = [row("horovod.allreduce", 1.0, 0.1), *ROWS, row("horovod.allreduce", 2.0, 0.1)]
    assert exchange_report.choices(again)[0]["against_horovod"] == pytest.approx(11 / 1 - 1), "the first that was timed"


def test_auto_that_loses_to_horovod_is_counted():
    lost = [each if each["arm"] != "auto" else row("auto", 108.0) for each in ROWS]
    assert "by more than the noise (A/A) and 3% in 1 of them" in exchange_report.choices_table(lost)[0]
    assert "by more than the noise (A/A) and 3% in 0 of them" in exchange_report.choices_table(ROWS)[0]


def test_auto_that_chose_several_recipes_is_held_against_none_by_itself():
    several = [each if each["arm"] != "auto" else row("auto", 11.0, decided=["hitopk", "topk"]) for each in ROWS]
    assert exchange_report.choices(several)[0]["against_same"] is None
    assert "| hitopk, topk |  | hitopk |" in exchange_report.choices_table(several)[-1]


def test_auto_whose_choice_had_no_arm_of_its_own_is_held_against_none_by_itself():
    alone = [each if each["arm"] != "auto" else row("auto", 11.0, decided=["mstopk"]) for each in ROWS]
    assert exchange_report.choices(alone)[0]["against_same"] is None


def test_targets_are_judged_by_the_cells_that_were_measured():
    made = exchange_report.verdicts(ROWS)
    assert [(verdict.measured, verdict.met) for verdict in made] == [("10.0x", True), ("1.2x", False)]

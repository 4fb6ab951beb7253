"""A service on the same links as training: its messages, its workers, its report, and a small run on nodes."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.averaging import service as averaging_service
from benchmarks.averaging import service_node, service_rank
from benchmarks.averaging import service_report as averaging_service_report
from benchmarks.averaging.service import Plan
from benchmarks.averaging.service_arms import (
    ALONE,
    DATAGRAMS_ALIKE,
    DATAGRAMS_SECOND,
    TCP_ALIKE,
    TCP_SECOND,
    TRAINED,
    slower,
)
from benchmarks.averaging.service_report import Row, Used
from benchmarks.machines.conductor import Conductor, Worker
from benchmarks.reporting import report
from tests.benchmarks import needs

LIMIT = 120.0  # seconds: a limit that no machine reaches


def options_of(words):
    parser = argparse.ArgumentParser()
    averaging_service.add_arguments(parser)
    return parser.parse_args(words)


# ---- messages ----


@given(st.integers(0, 2**32), st.integers(2, 9), st.data())
def test_messages_come_in_order_and_go_to_others(seed, nodes, data):
    me = data.draw(st.integers(0, nodes - 1))
    schedule = service_node.arrivals(200.0 * nodes, 2.0, nodes, me, seed)
    times = [arrival.after for arrival in schedule]
    assert times == sorted(times) and all(0 < after < 2.0 for after in times)
    assert {arrival.to for arrival in schedule} == set(range(nodes)) - {me}
    assert schedule == service_node.arrivals(200.0 * nodes, 2.0, nodes, me, seed)
    assert schedule != service_node.arrivals(200.0 * nodes, 2.0, nodes, me, seed + 1)


@pytest.mark.parametrize("seed", range(2))
def test_messages_come_by_a_poisson_process(seed):
    """Within four standard errors: their number follows from the rate, and the gaps' deviation equals their mean."""
    rate, seconds, nodes = 400.0, 20.0, 8
    schedules = [service_node.arrivals(rate, seconds, nodes, me, seed) for me in range(nodes)]
    assert len({schedule[0].after for schedule in schedules}) == nodes
    expected = rate * seconds
    assert abs(sum(map(len, schedules)) - expected) < 4 * math.sqrt(expected)
    gaps = np.concatenate([np.diff([0.0, *(arrival.after for arrival in schedule)]) for schedule in schedules])
    assert abs(gaps.std() / gaps.mean() - 1) < 4 * math.sqrt(1 / len(gaps))


@given(st.integers(1, 5), st.lists(st.booleans(), min_size=1, max_size=60))
def test_times_run_from_the_arrival_and_only_so_many_are_on_their_way(most, turns):
    outstanding = service_node.Outstanding(most)
    arrived, going, gone, answered, held_back = [], [], [], [], 0
    for time, arrives in enumerate(turns):
        if arrives:
            held_back += len(going) == most
            arrived.append(float(time))
            outstanding.arrive(to=time, time=float(time))
        elif going:
            number, to = going.pop(0)
            answered.append(time - to)
            outstanding.answer(number, float(time))
        while (next_one := outstanding.next()) is not None:
            going.append(next_one)
            gone.append(next_one[1])
        assert len(going) <= most and (len(going) == most or len(outstanding) == len(going))
    assert gone == arrived[: len(gone)], "in the order in which they came"
    assert outstanding.times == answered and outstanding.held_back == held_back
    assert len(outstanding) == len(arrived) - len(answered)


# ---- conductor and workers ----


@contextlib.contextmanager
def conducted(workers):
    """A conductor, and threads that follow it; afterwards all have ended without an error."""
    failed = []

    def watched(work, *arguments):
        try:
            work(*arguments)
        except BaseException as error:
            failed.append(error)
            raise

    threads = []
    with Conductor("127.0.0.1", LIMIT) as conductor:
        for work in workers:
            threads.append(threading.Thread(target=watched, args=(work, conductor.end), daemon=True))
            threads[-1].start()
        yield conductor
    for thread in threads:
        thread.join(LIMIT)
    assert not failed and not any(thread.is_alive() for thread in threads)


def serve(number, end):
    node = service_node.Node("127.0.0.1", 0)
    service_node.work(node, Worker(end, f"node {number}", node.end))


def test_all_messages_are_answered_over_sockets(monkeypatch):
    monkeypatch.setattr(service_node, "MOST", 2)
    nodes, seconds = 3, 0.3
    names = [f"node {number}" for number in range(nodes)]
    with conducted([functools.partial(serve, number) for number in range(nodes)]) as conductor:
        said = conductor.await_workers(nodes)
        for number, name in enumerate(names):
            conductor.ask([name], {"ends": [said[each] for each in names], "me": number})
        for seed in (1, 2):
            told = {"rate": 600, "seconds": seconds, "seed": seed, "begin": 0.0, "limit": LIMIT}  # all are due at once
            results = conductor.ask(names, told)
            for me, result in enumerate(results):
                wanted = len(service_node.arrivals(600, seconds, nodes, me, seed))
                assert len(result["times"]) == wanted > 2 and result["unanswered"] == 0
                assert min(result["times"]) > 0 and 0 < result["held_back"] < wanted


def test_a_worker_that_ends_is_told_of():
    def leave(end):
        worker = Worker(end, "short", {"size": 3})
        assert next(worker.commands()) == {"what": "go"}
        worker.connection.close()

    def stay(end):
        worker = Worker(end, "long")
        for command in worker.commands():
            worker.reply(command["what"] * 2)

    with conducted([leave, stay]) as conductor:
        assert conductor.await_workers(2) == {"short": {"size": 3}, "long": None}
        conductor.tell(["long", "short"], {"what": "go"})
        assert conductor.hear(["long"]) == ["gogo"]
        with pytest.raises(RuntimeError, match="short has ended"):
            conductor.hear(["short"])


def test_ranks_make_the_steps_on_which_the_first_decides(tmp_path):
    service_rank.new_decisions(tmp_path / "decisions")
    made = []

    def follow():
        decisions, steps = service_rank.Decisions(str(tmp_path / "decisions"), False), 0
        while decisions.another(steps, True):
            steps += 1
        made.append(steps)

    other = threading.Thread(target=follow, daemon=True)
    other.start()
    first = service_rank.Decisions(str(tmp_path / "decisions"), True)
    assert [first.another(step, step < 3) for step in range(4)] == [True] * 3 + [False]
    other.join(LIMIT)
    assert made == [3]


# ---- the report ----


def test_each_arm_is_at_each_load_and_datagrams_at_lower_rates_at_that_of_the_targets():
    plan = Plan(loads=(100, 200, 400), shares=(0.9, 0.5))
    cells = averaging_service.cells_of(plan)
    assert plan.load == 200 and len(cells) == len(set(cells)) == 3 * 5 + 2 + 1
    assert {cell.arm.name for cell in cells if cell.load == 0} == {TCP_ALIKE.name, DATAGRAMS_ALIKE.name}
    assert {cell.arm.share for cell in cells if cell.arm in (ALONE, slower(0.5))} == {1.0, 0.5}
    assert {cell.arm.share for cell in cells if cell.arm.name in {arm.name for arm in TRAINED}} == {0.9}


@pytest.mark.parametrize(
    "words, told",
    [
        (["--service-nodes", "1"], "2 to 64 nodes"),
        (["--service-rate", "fast"], "a rate such as"),
        (["--service-window", "0.5"], "a window above"),
        (["--service-queue", "0"], "a queue"),
        (["--service-loads", "0,10"], "loads of at least 1"),
        (["--service-shares", "1.5"], "shares in (0, 1]"),
        (["--service-loads", "many"], "invalid literal"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, told):
    assert averaging_service.problem(options_of([])) is None
    assert told in (averaging_service.problem(options_of(words)) or "")


@pytest.mark.parametrize(
    "target, wanted",
    [(1.0, ("<", 100)), (2.0, ("", 100)), (3.0, ("", 150)), (10.0, ("", 350)), (16.0, ("", 500)), (17.0, (">", 500))],
)
def test_messages_at_a_mean_time_are_read_off_the_curve(target, wanted):
    curve = [(100, 2.0), (200, 4.0), (500, 16.0)]
    assert averaging_service_report.carried_at(curve, target) == wanted


def test_messages_at_a_mean_time_are_those_at_which_it_is_first_reached():
    assert averaging_service_report.carried_at([(100, 2.0), (200, 4.0), (500, 3.0)], 4.0) == ("", 200)
    assert averaging_service_report.carried_at([(100, 4.0), (200, 4.0)], 4.0) == ("", 100)


def row(arm, load, mean, steps, **others):
    whole = dict.fromkeys(Row._fields, 0.01) | {"arm": arm.name, "load": load, "carried": float(load)}
    return Row(**(whole | {"mean": mean, "median": mean, "p99": 3 * mean, "steps": steps, **others}))


def rows_of(second=1.5, steps=5.0, rounds=6):
    """Rows of `rounds` rounds at three loads."""
    by_arm = {TCP_ALIKE: (4.0, 5.0), TCP_SECOND: (2.0, 4.8), DATAGRAMS_ALIKE: (3.0, 5.1)}
    by_arm[DATAGRAMS_SECOND] = second, steps
    rows = []
    for more in np.resize([1.0, 1.1], rounds):
        for load in (100, 200, 400):
            rows.append(row(ALONE, load, 1.0, 0.0))
            rows += [row(arm, load, mean * more * load / 200, steps) for arm, (mean, steps) in by_arm.items()]
        rows += [row(arm, 0, math.nan, 6.0, median=math.nan, p99=math.nan) for arm in (TCP_ALIKE, DATAGRAMS_ALIKE)]
        rows.append(row(slower(0.5), 200, 1.2, 3.0, lost=0.02))
    return rows


def judged(second, steps):
    plan = Plan(loads=(100, 200, 400), shares=(1.0, 0.5))
    return averaging_service_report.summarise(rows_of(second, steps), plan._asdict(), plan.load)


@pytest.mark.parametrize(
    "second, steps, ahead, faster",
    [(1.5, 5.0, True, True), (1.5, 4.5, False, False), (2.5, 5.0, False, True), (2.1, 5.2, True, True)],
)
def test_targets_are_judged_round_by_round(second, steps, ahead, faster):
    verdicts = judged(second, steps).verdicts
    assert [verdict.met for verdict in verdicts] == [ahead, faster]
    assert verdicts[0].measured.endswith(f"at {second / 2:.2f} ({second / 2:.2f} to {second / 2:.2f}) of the time")
    assert verdicts[1].measured.startswith(f"{4 / second:.2f} ({4 / second:.2f} to ")


@pytest.mark.parametrize("time, wanted", [(0.9, 0.0), (1.0, 3.0), (1.5, 4.0), (3.0, 5.5), (4.0, 6.0), (9.0, 6.0)])
def test_steps_at_an_equal_time_are_read_off_the_curve_over_the_rates(time, wanted):
    assert averaging_service_report.steps_at([(4.0, 6.0), (1.0, 3.0), (2.0, 5.0)], time) == wanted


def test_with_few_rounds_nobody_is_ahead():
    plan = Plan(loads=(100, 200, 400), shares=(1.0, 0.5))
    few, enough = (averaging_service_report.summarise(rows_of(rounds=n), plan._asdict(), plan.load) for n in (5, 6))
    assert [section.verdicts[0].met for section in (few, enough)] == [False, True]


def test_the_report_has_a_table_for_each_load_and_a_picture(tmp_path):
    section = judged(1.5, 5.0)
    text = report.of_questions("T", [report.Answer(section, "By hand.")])
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    assert "| TCP | 200 |" in text and "| service alone | > 400 |" in text and "### Training alone" in text
    averaging_service_report.draw(section.figures, str(tmp_path / "service.png"))
    assert (tmp_path / "service.png").stat().st_size > 3_000


def test_a_row_puts_together_what_was_told():
    trained = [{"steps": 4, "seconds": 2.0, "expected": 10, "arrived": 9, "averaging": [0.1, 0.3]}] * 2
    served = [{"times": [0.001, 0.003], "held_back": 1}, {"times": [0.002], "held_back": 0}]
    used = Used.of([600, 150, 50, 5], 1000.0)
    made = averaging_service_report.row_of("TCP", 3, trained, served, 0.5, used)
    assert (made.mean, made.median, made.carried, made.held_back) == pytest.approx((2.0, 2.0, 6.0, 1 / 3))
    assert (made.steps, made.averaging, made.lost) == pytest.approx((2.0, 200.0, 0.1))
    assert (made.busy, made.first, made.again) == (0.6, 0.25, 0.1)
    nobody = averaging_service_report.row_of("alone", 0, [], [], 0.5, used)
    assert math.isnan(nobody.mean) and nobody.steps == nobody.lost == nobody.carried == 0.0


# ---- runs ----


@pytest.mark.thorough
@needs.namespaces
def test_training_and_service_share_links_and_bytes_go_by_their_queue():
    asked = {"nodes": 2, "window": 1, "rounds": 1, "loads": 60, "shares": 0.9, "size": 20_000}
    words = [f"--service-{name}={value}" for name, value in asked.items()]
    plan = averaging_service.plan_of(options_of(words))
    rows = {(row.arm, row.load): row for row in averaging_service.run(plan, print)}
    assert set(rows) == {(cell.arm.name, cell.load) for cell in averaging_service.cells_of(plan)}
    messages = sum(len(service_node.arrivals(60, 0.5, 2, me, 0)) for me in range(2))
    for (arm, load), found in rows.items():
        assert found.carried * 0.5 == pytest.approx(messages if load else 0)
        assert (found.steps > 0) == (arm != ALONE.name) and found.busy > 0
        assert (found.first > 0) == ("first" in arm), "the service's packets alone, and only where they go first"
    for arm in (TCP_SECOND, DATAGRAMS_SECOND):
        assert rows[arm.name, 60].first < 1, "training's do not go first"
    assert all(rows[key].lost == 0 for key in rows if key[0] in (TCP_ALIKE.name, TCP_SECOND.name))

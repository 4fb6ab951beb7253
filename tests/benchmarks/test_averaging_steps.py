"""Steps with datagrams compared with Horovod's: the report's arithmetic, competing bursts, and a small run."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import time

import numpy as np
import pytest

from benchmarks.averaging import bench_averaging, datagram_floor
from benchmarks.averaging import steps as averaging_steps
from benchmarks.averaging import steps_report as reports
from benchmarks.averaging.rank import ARMS, DATAGRAMS, HOROVOD, Meeting, Vectors
from benchmarks.averaging.steps import Plan, Steps, Training
from benchmarks.exchange import links
from benchmarks.machines import neighbour
from benchmarks.machines.cluster import Cluster
from tests import threads
from tests.benchmarks import needs

TINY = Plan(
    **{"elements": 60_000, "rounds": 2, "link": "100mbit", "nodes": 2, "crowded_elements": 40_000},
    **{"crowded_rounds": 3, "quiet_rounds": 2, "trainings": 2, "epochs": 1},
)


def step_of(seconds: float, arrived: int = 100, lasted: float = 0.1) -> dict:
    told = {"seconds": seconds, "processor": seconds / 2, "sent": 3e6, "expected": 100, "arrived": arrived}
    return {**told, "phases": [[lasted, 0.1], [0.05, 0.1]], "waited": 0.0}


def told_of(seconds: dict[str, list[float]], **others) -> list[dict]:
    """Results of two ranks, of which the second is slower."""
    slower = {arm: [each + 0.1 for each in taken] for arm, taken in seconds.items()}
    return [
        {arm: [step_of(each, **others) for each in taken] for arm, taken in rank.items()} for rank in (seconds, slower)
    ]


# ---- the report ----


def test_a_step_lasts_until_the_slowest_rank_has_it():
    steps = reports.steps_of(told_of({DATAGRAMS: [0.4, 0.6]}, arrived=90), DATAGRAMS)
    assert steps.seconds.tolist() == pytest.approx([0.5, 0.7])
    assert steps.processor.tolist() == pytest.approx([0.225, 0.325])
    assert steps.lost.tolist() == pytest.approx([0.1, 0.1]) and steps.phases.shape == (2, 2, 2, 2)
    rival = reports.steps_of(told_of({HOROVOD: [0.4]}), HOROVOD)
    assert rival.lost.tolist() == [0.0] and rival.phases.size == 0


def test_a_phase_may_last_its_limit_a_tenth_and_20_ms():
    phases = np.array([[1.0, 1.0], [1.12, 1.0], [1.13, 1.0], [0.074, 0.05], [0.076, 0.05]])
    assert (reports.excesses(phases) > 1e-9).tolist() == [False, False, True, False, True]


def test_tails_are_compared_with_an_interval():
    random = np.random.default_rng(1)
    ones, others = random.uniform(1, 2, 500), random.uniform(3, 6, 500)
    middle, low, high = reports.tail_ratio(ones, others)
    assert low < middle < high and middle == pytest.approx(1 / 3, rel=0.02) and high - low < 0.02
    assert reports.tail_ratio(ones, ones)[0] == 1.0


def summary(datagrams: list[float], lasted: float = 0.1, arrived: int = 99, score: float = 95.0):
    told = {"steps": told_of({HOROVOD: [1.0] * 8, DATAGRAMS: datagrams}, lasted=lasted, arrived=arrived)}
    lost = {"reduce_scatter": 0.01, "all_gather": 0.02}
    trained = {
        name: [{"scores": [95.0, told, told], "seconds": [1.0] * 3, "lost": lost}] * 2
        for name, told in ((reports.QUIET, 95.0), (reports.CROWDED, score))
    }
    plan = {**Plan(elements=31_250_000, nodes=2, trainings=3)._asdict(), "rate": 1e9}
    crowded = {name: {**told, "training": trained[name]} for name in trained}
    alone = {**told, reports.FLOOR: [{"datagrams": 1000, "processor": 0.25}]}
    return reports.summarise(plan, {"off": alone, reports.KERNEL: alone, "on": alone}, crowded)


def test_what_is_wanted_is_judged():
    good, bad = summary([1.0] * 8), summary([3.0] * 8, lasted=0.2, arrived=90, score=93.0)
    assert [verdict.met for verdict in good.verdicts] == [*[True] * 7, False, True, True]
    assert not any(verdict.met for verdict in bad.verdicts)
    told = [verdict.measured for verdict in good.verdicts]
    assert told[0] == "1.00 (1.00 to 1.00)" and told[1].startswith("0.91,")  # 1 Gbit at 1 Gbit/s in 1.1 s
    assert told[6].startswith("0 of 160;") and told[8].startswith("1.00%;")
    assert bad.verdicts[6].measured == "80 of 160; the worst +100.0 ms, 2.00 of its limit"
    for section in (good, bad):
        for block in "\n".join(section.lines).split("\n\n"):
            rows = [line for line in block.split("\n") if line.startswith("|")]
            assert len({row.count("|") for row in rows}) == 1 or not rows
    assert any("1,000 datagrams" in line and "0.25 s with offload off, 0.25 s" in line for line in good.lines)
    alone = {f"offload {name}" for name in ("off", reports.KERNEL, "on")}
    assert set(good.figures["steps"]) == alone | {reports.QUIET, reports.CROWDED}


# ---- the plan ----


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--steps-link", "fast"], "rate such as"),
        (["--steps-rounds", "0"], "at least one"),
        (["--steps-burst", "0.2"], "half a period"),
        (["--steps-trainings", "99"], "trainings"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, complaint):
    parser = argparse.ArgumentParser()
    averaging_steps.add_arguments(parser)
    for questions, told in (("steps", complaint), ("convergence", None)):
        wrong = averaging_steps.problem(argparse.Namespace(**vars(parser.parse_args(words)), questions=questions))
        assert wrong is None if told is None else told in (wrong or "")
    assert averaging_steps.plan_of(parser.parse_args([])) == Plan()
    assert averaging_steps in bench_averaging.QUESTIONS.values()


# ---- programs on the nodes ----


def test_ranks_meet_in_a_file(tmp_path):
    np.zeros([2, 3], np.int64).tofile(tmp_path / "meeting")

    def one_rank(grid):
        meet = Meeting(str(tmp_path / "meeting"), grid.world.rank, 3)
        return [meet.add(number * (grid.world.rank + 1)) for number in range(20)]

    assert threads.run(3, 1, one_rank) == [[6 * number for number in range(20)]] * 3


def test_a_wrong_result_is_not_passed_over():
    vectors, ranks, segment = Vectors(10, 0, 2), 2, 4
    every, none = np.ones([ranks, 2], bool), np.zeros([ranks, 2], bool)
    other = Vectors(10, 1, 2).own
    mean = (vectors.own + other) / np.float32(2)
    vectors.require_mean(mean + np.float32(1e-6))
    vectors.require_averaged(mean, 0, every, segment)
    vectors.require_averaged(np.where(np.arange(10) < 4, vectors.own, other), 1, every, segment)
    vectors.require_averaged(vectors.own, 1, none, segment)
    next_to_it = np.nextafter(mean, np.float32(9))
    for wrong in (
        lambda: vectors.require_mean(other),
        lambda: vectors.require_averaged(next_to_it, 0, every, segment),
        lambda: vectors.require_averaged(mean + np.float32(9), 1, every, segment),
        lambda: vectors.require_averaged(mean, 1, none, segment),
    ):
        with pytest.raises(AssertionError):
            wrong()


def test_bursts_begin_at_drawn_times_and_fill_their_share():
    first = list(itertools.islice(neighbour.beginnings(0.2, 3), 2_000))
    assert first == list(itertools.islice(neighbour.beginnings(0.2, 3), 2_000)) and first[0] == 0.0
    gaps = np.diff(first)
    assert 0.1 <= gaps.min() and gaps.max() <= 0.3 and gaps.mean() == pytest.approx(0.2, rel=0.02)


@needs.namespaces
def test_a_burst_sends_datagrams_at_its_rate_and_no_faster():
    with neighbour.listen("127.0.0.1") as sender, neighbour.listen("127.0.0.2") as receiver:
        begin = time.monotonic()
        neighbour.fill(sender, "127.0.0.2", 10e6, begin, begin + 0.05)
        came = [receiver.recv(2_000) for _ in range(16)]
        receiver.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                came.append(receiver.recv(2_000))
    assert set(map(len, came)) == {1472} and len(came) % 16 == 0
    assert len(came) * 1514 * 8 <= 10e6 * 0.05 + 16 * 1514 * 8


@needs.namespaces
@pytest.mark.thorough
def test_queues_and_offload_are_as_they_were_told():
    with Cluster(2, 1, "100mbit") as cluster:
        for on in (False, True):
            links.set_offload(cluster, on)  # this checks that the interfaces accepted it
        links.set_queue(cluster, 0.005)
        for where, device in [(cluster.prefix(1), "eth0"), ([], cluster.outer(0))]:
            shown = subprocess.run(
                [*where, "tc", "qdisc", "show", "dev", device], capture_output=True, text=True
            ).stdout
            assert "tbf" in shown and "rate 100Mbit" in shown and "lat 5ms" in shown
    with Cluster(1, 1) as cluster, pytest.raises(ValueError, match="shaped by tbf"):
        links.set_queue(cluster, 0.005)


@needs.namespaces
@pytest.mark.thorough
def test_a_small_run_answers_the_question(tmp_path):
    """Every result is checked on the ranks; the time does not matter here."""
    parts = [Steps("steps", TINY.elements, TINY.rounds), Training("training", TINY.trainings, TINY.epochs)]
    with Cluster(TINY.nodes, 1, TINY.link) as cluster:
        links.set_queue(cluster, TINY.queue)
        with neighbour.beside(cluster, TINY.flood * TINY.rate, TINY.burst, TINY.period):
            told = averaging_steps.run(cluster, parts, TINY.rate, True)
        program, count = datagram_floor.build(tmp_path), reports.datagrams_of(TINY.elements, TINY.nodes)
        floors = [datagram_floor.measure(program, cluster, TINY.rate / 4, count, cut) for cut in (False, True)]
    assert min(floors) > 0
    assert {len(rank[arm]) for rank in told["steps"] for arm in ARMS} == {TINY.rounds}
    assert [len(rank["scores"]) for rank in told["training"]] == [TINY.trainings] * TINY.nodes
    sent = np.median(reports.steps_of(told["steps"], HOROVOD).sent)
    assert 1.0 < sent / reports.vector_bytes(TINY.elements, TINY.nodes)
    settings = {name: told for name in (reports.QUIET, reports.CROWDED)}
    alone = {**told, reports.FLOOR: [{"datagrams": count, "processor": floors[0]}]}
    lone = dict.fromkeys(("off", reports.KERNEL, "on"), alone)
    section = reports.summarise({**TINY._asdict(), "rate": TINY.rate}, lone, settings)
    assert len(section.verdicts) == 10

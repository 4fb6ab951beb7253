"""The report of steps by datagrams and by Horovod's all-reduce, and of the training beside a neighbour."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.averaging.rank import ARMS, DATAGRAMS, HOROVOD
from benchmarks.reporting import timing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies.paired import Difference, difference, spread

Told = dict[str, list[dict[str, Any]]]  # by part, each rank's report

KERNEL, FLOOR = "of interfaces off", "floor"  # an offload setting; a part of its report
QUIET, CROWDED = "without the neighbour", "beside the neighbour"
WANTED_RATIO, WANTED_SHARE, WANTED_PROCESSOR = 1.10, 0.80, 1.5
WANTED_TAIL, WANTED_LOST, WANTED_POINTS = 0.5, 0.05, 0.5
EXCESS, GRACE = 1.10, 0.020  # a phase may last its limit times EXCESS, plus GRACE seconds
_DRAWS = 2_000
_TAIL = 99  # percentile
_SEGMENT = (1472 - 56) // 4  # elements per datagram


@dataclasses.dataclass(frozen=True)
class ArmSteps:
    """The steps of one arm, in order.

    Attributes:
        seconds: [rounds], seconds of the slowest rank.
        processor: [rounds], processor seconds, averaged over ranks.
        sent: [rounds], bytes sent, headers included, averaged over nodes.
        lost: [rounds], share of segments lost over all ranks and both phases; 0 for Horovod.
        phases: [rounds, ranks, 2, 2], seconds and limit of the reduce-scatter and the all-gather; empty for Horovod.
    """

    seconds: np.ndarray
    processor: np.ndarray
    sent: np.ndarray
    lost: np.ndarray
    phases: np.ndarray


def steps_of(ranks: Sequence[Mapping[str, Any]], arm: str) -> ArmSteps:
    """The steps of an arm, from every rank's report."""
    rounds = list(zip(*(rank[arm] for rank in ranks), strict=True))

    def every(what: str) -> np.ndarray:
        return np.array([[step[what] for step in steps] for steps in rounds], float)

    counted = arm == DATAGRAMS
    lost = 1.0 - every("arrived").sum(1) / every("expected").sum(1) if counted else np.zeros(len(rounds))
    phases = every("phases") if counted else np.zeros([len(rounds), 0, 2, 2])
    return ArmSteps(every("seconds").max(1), every("processor").mean(1), every("sent").mean(1), lost, phases)


def excesses(phases: np.ndarray) -> np.ndarray:
    """Seconds by which each phase exceeded its maximum, limit + 10% + 20 ms; negative if it did not.

    Args:
        phases: [..., 2], seconds and limit.
    """
    return phases[..., 0] - (EXCESS * phases[..., 1] + GRACE)


def vector_bytes(elements: int, ranks: int) -> float:
    """Bytes that a rank must send per step, 2 (P - 1) / P of the vector, without headers."""
    return 2 * (ranks - 1) / ranks * 4 * elements


def datagrams_of(elements: int, ranks: int) -> int:
    """Datagrams that a rank sends per step, in packets of 1,500 bytes: a block to each other rank, in two phases."""
    return 2 * (ranks - 1) * math.ceil(math.ceil(elements / ranks) / _SEGMENT)


def tail_ratio(ones: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """The ratio of two arms' 99th percentiles, and its 95% interval by the bootstrap (2,000 draws of each)."""
    random = np.random.default_rng(0)
    drawn = [np.percentile(random.choice(each, [_DRAWS, len(each)]), _TAIL, axis=1) for each in (ones, others)]
    low, high = np.percentile(drawn[0] / drawn[1], [2.5, 97.5])
    return float(np.percentile(ones, _TAIL) / np.percentile(others, _TAIL)), float(low), float(high)


def summarise(plan: Mapping[str, Any], alone: Mapping[str, Told], crowded: Mapping[str, Told]) -> Section:
    """The section on the question of steps.

    Args:
        plan: the fields of `averaging_steps.Plan`, by name.
        alone: reports by offload setting, "off", KERNEL and "on".
        crowded: reports under QUIET and CROWDED.
    """
    lone = {f"offload {name}": _arms(told) for name, told in alone.items()}
    shared = {name: _arms(told) for name, told in crowded.items()}
    training = {name: told["training"] for name, told in crowded.items()}
    gap = difference(training[CROWDED][0]["scores"], training[QUIET][0]["scores"])
    phases = [arms[DATAGRAMS].phases for arms in (*lone.values(), *shared.values())]
    verdicts = [
        *(verdict for name in ("off", KERNEL) for verdict in _of_speed(plan, lone, f"offload {name}")),
        _of_phases(phases),
        *_of_neighbour(shared[CROWDED]),
        _of_training(gap),
    ]
    lines = [
        *_lines_alone(plan, lone),
        *_lines_floor({name: told[FLOOR][0] for name, told in alone.items()}),
        "",
        *_lines_crowded(plan, shared),
        "",
        *_lines_training(plan, training, gap),
    ]
    figures = {
        "plan": dict(plan),
        "steps": {
            name: {arm: _figures(steps) for arm, steps in arms.items()} for name, arms in (lone | shared).items()
        },
        "floor": {name: dict(told[FLOOR][0]) for name, told in alone.items()},
        "training": {name: {**told[0], "lost": _lost_in(told)} for name, told in training.items()},
    }
    return Section("Steps by datagrams", lines, figures, verdicts)


def _arms(told: Told) -> dict[str, ArmSteps]:
    return {arm: steps_of(told["steps"], arm) for arm in ARMS}


# ---- targets ----


def _of_speed(plan: Mapping[str, Any], settings: Mapping[str, Mapping[str, ArmSteps]], name: str) -> Iterator[Verdict]:
    where, arms = f"{plan['elements']:,} elements, {plan['nodes']}x1, {plan['link']}, {name}", settings[name]
    ratio = timing.paired_ratio(arms[DATAGRAMS].seconds, arms[HOROVOD].seconds)
    yield Verdict(f"{where}: a step, over Horovod's", f"<= {WANTED_RATIO:.2f}", _told(ratio), ratio[0] <= WANTED_RATIO)
    shares = _shares(plan, arms[DATAGRAMS])
    middle, least, most = float(np.median(shares)), shares.min(), shares.max()
    told = f"{middle:.2f}, of steps {least:.2f} to {most:.2f}"
    yield Verdict(f"{where}: bytes over rate, of a step", f">= {WANTED_SHARE:.2f}", told, middle >= WANTED_SHARE)
    ratio = timing.paired_ratio(arms[DATAGRAMS].processor, arms[HOROVOD].processor)
    what = f"{where}: processor time of a rank, over Horovod's"
    yield Verdict(what, f"<= {WANTED_PROCESSOR}", _told(ratio), ratio[0] <= WANTED_PROCESSOR)


def _of_phases(phases: Sequence[np.ndarray]) -> Verdict:
    over = np.concatenate([excesses(each).ravel() for each in phases])
    beyond = np.concatenate([(each[..., 0] - each[..., 1]).ravel() for each in phases])
    share = np.concatenate([(each[..., 0] / each[..., 1]).ravel() for each in phases])
    count, worst = int((over > 0).sum()), int(np.argmax(over))
    told = f"{count} of {len(over):,}; the worst {beyond[worst] * 1e3:+.1f} ms, {share[worst]:.2f} of its limit"
    return Verdict("phases longer than their limit + 10% + 20 ms, any setting", "0", told, count == 0)


def _of_neighbour(arms: Mapping[str, ArmSteps]) -> Iterator[Verdict]:
    steps = arms[DATAGRAMS]
    ratio = tail_ratio(steps.seconds, arms[HOROVOD].seconds)
    what = f"{CROWDED}: 99th percentile of {len(steps.seconds)} steps, over Horovod's"
    yield Verdict(what, f"<= {WANTED_TAIL}", _told(ratio), ratio[0] <= WANTED_TAIL)
    mean = float(steps.lost.mean())
    told = f"{mean:.2%}; of steps {_lost_told(steps)}"
    yield Verdict(f"{CROWDED}: segments lost", f"<= {WANTED_LOST:.0%}", told, mean <= WANTED_LOST)


def _of_training(gap: Difference) -> Verdict:
    what = f"training {CROWDED} - without, points of top-1, 95%"
    told = gap.told(2) + ("" if gap.pairs > 1 else ", one seed")
    return Verdict(what, f"within {WANTED_POINTS}", told, gap.low >= -WANTED_POINTS)


def _shares(plan: Mapping[str, Any], steps: ArmSteps) -> np.ndarray:
    """The rate of a rank's payload in each step, as a share of the link's rate."""
    return 8 * vector_bytes(plan["elements"], plan["nodes"]) / plan["rate"] / steps.seconds


def _told(interval: tuple[float, float, float]) -> str:
    middle, low, high = interval
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _lost_told(steps: ArmSteps) -> str:
    middle, tail, most = np.percentile(steps.lost, [50, _TAIL, 100])
    return f"median {middle:.2%}, 99th percentile {tail:.2%}, most {most:.2%}"


# ---- tables ----


def _lines_alone(plan: Mapping[str, Any], settings: Mapping[str, Mapping[str, ArmSteps]]) -> list[str]:
    wanted = vector_bytes(plan["elements"], plan["nodes"])
    lines = [
        f"{plan['elements']:,} elements, {plan['nodes']} nodes of one rank, {plan['link']}, {plan['rounds']} steps of "
        "each arm in turn; medians, of seconds with the quartiles. Bytes over rate are those of the vector, headers "
        f"not counted, of {plan['link']}; sent are those of the interface, times the vector's.",
        "",
        "| | step, s | over Horovod's, 95% | bytes over rate | sent | processor of a rank, s | over Horovod's, 95% "
        "| segments lost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, arms), arm in itertools.product(settings.items(), ARMS):
        steps, rival = arms[arm], arms[HOROVOD]
        ratios = ["", ""]
        if arm != HOROVOD:
            ratios = [
                _told(timing.paired_ratio(steps.seconds, rival.seconds)),
                _told(timing.paired_ratio(steps.processor, rival.processor)),
            ]
        lines.append(
            f"| {arm}, {name} | {_quartiles(steps.seconds, 1, 3)} | {ratios[0]} | "
            f"{np.median(_shares(plan, steps)):.2f} | {np.median(steps.sent) / wanted:.3f} | "
            f"{np.median(steps.processor):.2f} | {ratios[1]} | {_lost(arm, steps)} |"
        )
    return lines


def _lines_floor(floors: Mapping[str, Mapping[str, float]]) -> list[str]:
    told = ", ".join(f"{each['processor']:.2f} s with offload {name}" for name, each in floors.items())
    count = next(iter(floors.values()))["datagrams"]
    return [
        "",
        f"The floor: {count:,} datagrams, as many as a rank sends in a step, handed to the system and as many taken "
        f"from it, paced as those, with no tag, no copy and no look at them, take of a rank's processor {told}.",
    ]


def _lines_crowded(plan: Mapping[str, Any], settings: Mapping[str, Mapping[str, ArmSteps]]) -> list[str]:
    lines = [
        f"A neighbour sends from node 1 to node 0 at {plan['flood']:g} times the link's rate for "
        f"{1e3 * plan['burst']:g} ms, {1e3 * plan['period'] / 2:g} to {1.5e3 * plan['period']:g} ms from one beginning "
        f"to the next, {plan['burst'] / plan['period']:.0%} of the time. {plan['crowded_elements']:,} elements; queues "
        f"that hold {1e3 * plan['queue']:g} ms; offload on. Milliseconds.",
        "",
        "| | steps | median (quartiles) | 95th percentile | 99th percentile | longest | segments lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, arms), arm in itertools.product(settings.items(), ARMS):
        steps = arms[arm]
        far = " | ".join(f"{1e3 * each:.0f}" for each in np.percentile(steps.seconds, [95, _TAIL, 100]))
        lines.append(
            f"| {arm}, {name} | {len(steps.seconds)} | {_quartiles(steps.seconds, 1e3, 0)} | {far} | "
            f"{_lost(arm, steps)} |"
        )
    return lines


def _lines_training(plan: Mapping[str, Any], training: Mapping[str, list[Any]], gap: Difference) -> list[str]:
    lines = [
        f"A network of 38,282 parameters trains on the digits over datagrams, on the same links, {plan['epochs']} "
        f"epochs, {plan['trainings']} seeds. Points of the test at the mean of all models, with the deviation from "
        "seed to seed.",
        "",
        "| | points | - without, 95% | segments lost, reduce-scatter | all-gather | seconds of a training |",
        "|---|---|---|---|---|---|",
    ]
    for name, told in training.items():
        lost = " | ".join(f"{each:.2%}" for each in _lost_in(told).values())
        apart = str(gap) if name == CROWDED else ""
        seconds = np.median([each["seconds"] for each in told])
        lines.append(f"| {name} | {spread(told[0]['scores'])} | {apart} | {lost} | {seconds:.1f} |")
    return lines


def _quartiles(values: np.ndarray, unit: float, digits: int) -> str:
    low, middle, high = (f"{unit * each:.{digits}f}" for each in np.percentile(values, [25, 50, 75]))
    return f"{middle} ({low} to {high})"


def _lost(arm: str, steps: ArmSteps) -> str:
    return "" if arm == HOROVOD else f"{steps.lost.mean():.2%}: {_lost_told(steps)}"


def _lost_in(training: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The share lost by phase, averaged over ranks."""
    return {phase: float(np.mean([rank["lost"][phase] for rank in training])) for phase in training[0]["lost"]}


def _figures(steps: ArmSteps) -> dict[str, Any]:
    at = [1, 5, 25, 50, 75, 95, 99, 100]
    percentiles = {
        what: dict(zip(map(str, at), np.percentile(getattr(steps, what), at).tolist(), strict=True))
        for what in ("seconds", "processor", "lost")
    }
    longest = float(excesses(steps.phases).max()) if steps.phases.size else None
    return {"rounds": len(steps.seconds), **percentiles, "sent": float(np.median(steps.sent)), "longest": longest}

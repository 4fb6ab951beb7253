"""The report of training beside a service: a table for each load, targets, and a picture."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.averaging.service_arms import ALONE, DATAGRAMS_ALIKE, DATAGRAMS_SECOND, TCP_ALIKE, TCP_SECOND, slower
from benchmarks.averaging.service_node import REPLY, REQUEST
from benchmarks.reporting import timing, writing
from benchmarks.reporting.report import Section, Verdict

TITLE = "A service on the same links"
FASTER, KEPT = 1.3, 0.95  # targets
_COLOURS = {
    TCP_ALIKE.name: "tab:red",
    TCP_SECOND.name: "tab:orange",
    DATAGRAMS_ALIKE.name: "tab:purple",
    DATAGRAMS_SECOND.name: "tab:blue",
    ALONE.name: "tab:gray",
}
_MARKERS = "vo^s"  # by load
_EXPLAINED = (
    "Medians over the rounds, and the least and the greatest. The completion time of a message runs from its arrival "
    "to the last byte of its reply. Lost are segments of training's vectors, in both phases; sent again are TCP "
    "segments of training and service together; busy are the nodes' links, upwards, as their interfaces have counted; "
    "and of those bytes a share went first."
)


class Used(NamedTuple):
    """Use of the links.

    Attributes:
        busy: share of the uplink rate of all nodes.
        first: share of these bytes that had priority.
        again: share of TCP segments that were retransmitted.
    """

    busy: float
    first: float
    again: float

    @classmethod
    def of(cls, counted: Sequence[int], most: float) -> Used:
        """Computes the shares from counts.

        Args:
            counted: bytes sent by the nodes, those of them with priority, TCP segments, and retransmitted ones.
            most: bytes that the links could have carried.
        """
        sent, first, segments, again = map(float, counted)
        return cls(sent / most, first / max(1.0, sent), again / max(1.0, segments))


class Row(NamedTuple):
    """The result of an arm in a round.

    Attributes:
        arm: its name.
        load: messages per second offered, over all nodes; 0 without the service.
        carried: messages per second that were carried.
        mean, median, p99: milliseconds until a message's reply; NaN without the service.
        held_back: share of messages that had to wait because too many were in flight.
        steps: training steps per second.
        averaging: milliseconds of averaging per step, the median over all ranks and steps; NaN without training.
        lost: share of the vectors' segments that were lost.
        busy, first, again: as of `Used`.
    """

    arm: str
    load: int
    carried: float
    mean: float
    median: float
    p99: float
    held_back: float
    steps: float
    averaging: float
    lost: float
    busy: float
    first: float
    again: float


Rows = Mapping[tuple[str, int], Sequence[Row]]


def row_of(
    arm: str,
    load: int,
    trained: Sequence[Mapping[str, Any]],
    served: Sequence[Mapping[str, Any]],
    seconds: float,
    used: Used,
) -> Row:
    """Combines the reports of ranks and nodes.

    Args:
        arm: its name.
        load: messages per second.
        trained: reports of all ranks, from `service_rank.Trainer.train`; empty without training.
        served: reports of all nodes, from `service_node.Node.ask`; empty without the service.
        seconds: for which messages arrived.
        used: use of the links.
    """
    times = 1e3 * np.concatenate([[], *(each["times"] for each in served)])
    mean, (median, p99) = np.nan, (np.nan, np.nan)
    if len(times):
        mean, (median, p99) = times.mean(), np.percentile(times, [50, 99])
    expected, arrived = (sum(each[what] for each in trained) for what in ("expected", "arrived"))
    averaging = [taken for each in trained for taken in each["averaging"]]
    return Row(
        arm,
        load,
        len(times) / seconds,
        float(mean),
        float(median),
        float(p99),
        sum(each["held_back"] for each in served) / max(1, len(times)),
        min((each["steps"] / max(each["seconds"], 1e-9) for each in trained), default=0.0),
        1e3 * float(np.median(averaging)) if averaging else np.nan,
        1.0 - arrived / expected if expected else 0.0,
        *used,
    )


def told(row: Row) -> str:
    """A line of progress."""
    served = f"{row.mean:.2f} ms (p99 {row.p99:.1f}) at {row.carried:.0f}/s" if row.load else "no service"
    trained = f"{row.steps:.2f} steps/s, {row.lost:.2%} lost" if row.steps else "nobody trains"
    return f"{served}; {trained}; links {row.busy:.0%} busy, {row.again:.2%} sent again"


def summarise(measured: Sequence[Row], plan: Mapping[str, Any], load: int) -> Section:
    """The question of the service, answered.

    Args:
        measured: rows of all rounds, in order.
        plan: the plan of the measurement.
        load: the targets' load.
    """
    rows: dict[tuple[str, int], list[Row]] = {}
    for row in measured:
        rows.setdefault((row.arm, row.load), []).append(row)
    samples = plan["nodes"] * plan["batch"]
    target = _middle(rows[TCP_ALIKE.name, load], "mean")
    settings = ", ".join(f"{name} {value}" for name, value in plan.items())
    lines = [_EXPLAINED, "", f"A request has {REQUEST} bytes and a reply {REPLY:,}; {settings}."]
    for each in sorted({each for _, each in rows}):
        title = f"{each} messages a second" if each else "Training alone"
        lines += ["", f"### {title}", "", *_table([key for key in rows if key[1] == each], rows, samples)]
    lines += ["", "### Messages a second at the same mean completion time", "", *_carried(rows, target)]
    figures = {
        "plan": dict(plan),
        "load": load,
        "target": target,
        "arms": {arm: _curve_figures(arm, rows) for arm in dict.fromkeys(arm for arm, _ in rows)},
    }
    return Section(TITLE, lines, figures, _verdicts(rows, load, plan["shares"]))


def _table(keys: Sequence[tuple[str, int]], rows: Rows, samples: int) -> list[str]:
    order = [ALONE.name, *(name for name in _COLOURS if name != ALONE.name)]
    keys = sorted(keys, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key[0]))
    head = [
        "| training | mean ms | p50 | p99 | steps a second | samples a second | ms an average | lost | sent again "
        "| busy | went first | held back |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return head + [_line(key[0], rows[key], samples) for key in keys]


def _line(arm: str, found: Sequence[Row], samples: int) -> str:
    served, trained = found[0].load > 0, found[0].steps > 0
    cells = [
        *(_spread(found, what, ".2f") if served else "" for what in ("mean", "median", "p99")),
        _spread(found, "steps", ".2f") if trained else "",
        f"{samples * _middle(found, 'steps'):.0f}" if trained else "",
        _spread(found, "averaging", ".0f") if trained else "",
        f"{_middle(found, 'lost'):.2%}" if trained else "",
        f"{_middle(found, 'again'):.2%}",
        f"{_middle(found, 'busy'):.0%}",
        f"{_middle(found, 'first'):.0%}",
        f"{_middle(found, 'held_back'):.2%}" if served else "",
    ]
    return f"| {arm} | {' | '.join(cells)} |"


def _spread(found: Sequence[Row], what: str, digits: str) -> str:
    values = [getattr(row, what) for row in found]
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def _middle(found: Sequence[Row], what: str) -> float:
    return float(statistics.median(getattr(row, what) for row in found))


def curve_of(arm: str, rows: Rows) -> list[tuple[int, float]]:
    """An arm's mean completion times by load."""
    return [(load, _middle(rows[name, load], "mean")) for name, load in sorted(rows) if name == arm and load]


def carried_at(curve: Sequence[tuple[int, float]], target: float) -> tuple[str, float]:
    """The lowest load at which an arm's mean completion time reaches the target.

    Between two loads the time is interpolated linearly.

    Args:
        curve: loads and mean times, ascending by load.
        target: mean time.

    Returns:
        "" and the messages per second; or "<" or ">" and the lowest or highest load, if it lies beyond them.
    """
    if curve[0][1] >= target:
        return ("<" if curve[0][1] > target else ""), float(curve[0][0])
    for (low, former), (high, time) in zip(curve, curve[1:], strict=False):
        if time >= target:
            return "", low + (high - low) * (target - former) / (time - former)
    return ">", float(curve[-1][0])


def _carried(rows: Rows, target: float) -> list[str]:
    lines = [
        f"At {target:.2f} ms, which messages take beside {TCP_ALIKE.name} at the load of the targets; the curves are "
        "straight between loads.",
        "",
        "| training | messages a second | mean ms by load |",
        "|---|---|---|",
    ]
    for arm in (arm for arm in _COLOURS if len(curve_of(arm, rows)) > 1):
        curve = curve_of(arm, rows)
        beyond, messages = carried_at(curve, target)
        listed = ", ".join(f"{load}: {time:.2f}" for load, time in curve)
        lines.append(f"| {arm} | {f'{beyond} {messages:.0f}'.strip()} | {listed} |")
    return lines


def _curve_figures(arm: str, rows: Rows) -> dict[str, Any]:
    kept = [field for field in Row._fields if field not in ("arm", "load")]
    return {
        str(load): {
            what: values for what in kept if not np.isnan(values := [getattr(row, what) for row in found]).any()
        }
        for (name, load), found in sorted(rows.items())
        if name == arm
    }


class Ratio(NamedTuple):
    """The ratio of one arm's figure to another's, round by round: the median and its 95% interval.

    With fewer than six rounds there is no interval: it is all of the real line.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}" + (f" ({self.low:.2f} to {self.high:.2f})" if math.isfinite(self.low) else "")


def ratio_of(one: Sequence[Row], other: Sequence[Row], what: str) -> Ratio:
    """The ratio of an arm's figure to the other's, over the rounds, in all of which both took part."""
    return Ratio(*timing.paired_ratio([getattr(row, what) for row in one], [getattr(row, what) for row in other]))


def steps_at(curve: Sequence[tuple[float, float]], time: float) -> float:
    """Training steps per second at a given mean time of the service, where datagrams have several rates.

    Between two rates steps are interpolated linearly. Beyond the curve's greatest time they are those of the greatest
    time, as a lower service time than allowed costs nothing; below its least time there are none.

    Args:
        curve: mean time and steps of each rate.
        time: the service's mean time.
    """
    times, steps = zip(*sorted(curve), strict=True)
    return float(np.interp(time, times, steps, left=0.0))


def _at_equal_time(rows: Rows, load: int, shares: Sequence[float]) -> Ratio:
    """Steps by datagrams over TCP's, both with the service first, at TCP's time of the service."""
    arms = [DATAGRAMS_SECOND, *map(slower, shares[1:])]
    curves = zip(*([(row.mean, row.steps) for row in rows[arm.name, load]] for arm in arms), strict=True)
    rivals = rows[TCP_SECOND.name, load]
    equal = [steps_at(curve, rival.mean) for curve, rival in zip(curves, rivals, strict=True)]
    return Ratio(*timing.paired_ratio(equal, [rival.steps for rival in rivals]))


def _verdicts(rows: Rows, load: int, shares: Sequence[float]) -> list[Verdict]:
    at = lambda arm: rows[arm.name, load]  # noqa: E731
    ahead = _at_equal_time(rows, load, shares)
    steps = ratio_of(at(DATAGRAMS_SECOND), at(TCP_SECOND), "steps")
    time = ratio_of(at(DATAGRAMS_SECOND), at(TCP_SECOND), "mean")
    faster = ratio_of(at(TCP_ALIKE), at(DATAGRAMS_SECOND), "mean")
    kept = ratio_of(at(DATAGRAMS_SECOND), at(TCP_ALIKE), "steps")
    rounds = f"{len(at(TCP_ALIKE))} rounds"
    return [
        Verdict(
            f"training's steps a second by {DATAGRAMS_SECOND.name}, over {TCP_SECOND.name}, at the rate with an equal "
            f"service time, {load}/s, {rounds}",
            "> 1, the interval too",
            f"{ahead}; at the full rate {steps}, at {time} of the time",
            ahead.low > 1,
        ),
        Verdict(
            f"service's mean time beside {TCP_ALIKE.name}, over {DATAGRAMS_SECOND.name}, {load}/s, {rounds}",
            f">= {FASTER} at >= {KEPT} of its training",
            f"{faster}, at {kept}",
            faster.median >= FASTER and kept.median >= KEPT,
        ),
    ]


def draw(figures: Mapping[str, Any], path: str) -> None:
    """Completion times against the training rate, and against the load.

    Args:
        figures: those of the section that `summarise` returns.
        path: where the picture is written.
    """
    figure = Figure(figsize=(12.0, 5.2), layout="constrained")
    against_training, against_load = figure.subplots(1, 2)
    _draw_against_training(against_training, figures)
    _draw_against_load(against_load, figures)
    figure.legend(*against_training.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    writing.save_picture(figure, path)


def _draw_against_training(axis: Axes, figures: Mapping[str, Any]) -> None:
    plan, load = figures["plan"], str(figures["load"])
    samples = plan["nodes"] * plan["batch"]
    alone = statistics.median(figures["arms"][ALONE.name][load]["mean"])
    axis.axhline(alone, color=_COLOURS[ALONE.name], linestyle=":", label=f"{ALONE.name}, {load} a second")
    for arm, colour in _COLOURS.items():
        if arm == ALONE.name:
            continue
        steps, mean = (_by_load(figures["arms"][arm], what) for what in ("steps", "mean"))
        axis.plot([samples * each for each in steps.values()], list(mean.values()), color=colour, label=arm)
        for each, marker in zip(steps, itertools.cycle(_MARKERS), strict=False):
            axis.scatter(samples * steps[each], mean[each], 60, marker=marker, color=colour, zorder=3)
    for each, marker in zip(_by_load(figures["arms"][ALONE.name], "mean"), itertools.cycle(_MARKERS), strict=False):
        axis.scatter([], [], 40, marker=marker, color="black", label=f"{each} messages a second")
    _draw_lower_rates(axis, figures["arms"], load, samples)
    axis.margins(0.12)
    axis.set(xlabel="training samples a second", ylabel="mean completion time, ms")
    axis.set_title("What service and training get", fontsize="medium")
    _finish(axis)


def _draw_lower_rates(axis: Axes, arms: Mapping[str, Any], load: str, samples: int) -> None:
    """Draws datagrams at lower rates, at the targets' load."""
    for arm, by_load in arms.items():
        if arm in _COLOURS:
            continue
        steps, mean = (statistics.median(by_load[load][what]) for what in ("steps", "mean"))
        axis.scatter(samples * steps, mean, 50, marker="D", color=_COLOURS[DATAGRAMS_SECOND.name], zorder=3)
        told = f"at {arm.rpartition(' at ')[2]} of the rate"
        axis.annotate(told, (samples * steps, mean), (0, -13), textcoords="offset points", fontsize=7, ha="center")


def _draw_against_load(axis: Axes, figures: Mapping[str, Any]) -> None:
    loads: list[int] = []
    for arm, colour in _COLOURS.items():
        for what, style in (("mean", "o-"), ("p99", "s--")):
            found = _by_load(figures["arms"][arm], what)
            loads = [int(load) for load in found]
            axis.plot(loads, list(found.values()), style, color=colour)
    axis.axhline(figures["target"], color="black", linestyle=":", linewidth=0.8)
    axis.set(xlabel="messages a second, all nodes", ylabel="completion time, ms", xscale="log")
    axis.set_xticks(loads, [str(load) for load in loads])
    axis.set_xticks([], minor=True)
    axis.set_title("By load: means, and dashed the 99th percentiles", fontsize="medium")
    _finish(axis)


def _by_load(told: Mapping[str, Mapping[str, Sequence[float]]], what: str) -> dict[str, float]:
    """Medians at each load of the service, in order."""
    return {load: statistics.median(told[load][what]) for load in sorted(told, key=int) if int(load)}


def _finish(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.3)

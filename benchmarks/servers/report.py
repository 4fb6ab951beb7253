"""The report of bench_servers.py: a section for each question, with its table and its targets, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.reporting import timing, writing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.servers.apply import DENSE as APPLY
from benchmarks.servers.apply import FLOOR, LAZY, LAZY_PUSH, LINES
from benchmarks.servers.apply import SPARSE as APPLY_PUSH

DENSE, SPARSE = "asynchronous, all values", "asynchronous, 99% dropped"
UNEVEN, UNEVEN_TOGETHER = "asynchronous, one rank at half speed", "synchronous, one rank at half speed"
RIVAL = "ParameterServerStrategy"
DENSITY = 0.01
UNSHAPED = "no limit"
_HEAD = "| link | arm | steps a second | communication | MB claimed | MB counted | processor ms | oldest gradient |"
_COLUMNS = (
    "Steps a second are of all ranks, medians of rounds (least to most); bytes and processor time are of one rank's "
    "step."
)
_BOUND = 0.75  # share of a step in dense communication from which a network counts as slow


class Row(NamedTuple):
    """The results of an arm on a link.

    Attributes:
        rates: steps per second over all ranks, for each round.
        counted: bytes per step that interfaces have sent.
        claimed: bytes per step that crossed the network according to telemetry.
        processor: seconds of processor time per step.
        staleness: the oldest gradient, in updates.
    """

    rates: list[float]
    counted: float
    claimed: float
    processor: float
    staleness: int

    @property
    def median(self) -> float:
        """The median of steps per second."""
        return statistics.median(self.rates)


def named(rate: str | None) -> str:
    """A link as the report calls it."""
    return rate or UNSHAPED


def rows_of(results: Sequence[dict[str, Any]]) -> dict[str, Row]:
    """Rows by arm, from the results of `bench_servers.measure`."""
    return {name: _row([each["ranks"] for each in results if each["arm"] == name]) for name in _names(results)}


def _names(results: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({each["arm"] for each in results})


def _row(rounds: Sequence[Sequence[dict[str, Any]]]) -> Row:
    steps = sum(rank["steps"] for ranks in rounds for rank in ranks)

    def a_step(what: str) -> float:
        return sum(rank[what] for ranks in rounds for rank in ranks) / steps

    across = 1 - 1 / len(rounds[0])  # a rank's own server is on its node
    return Row(
        [sum(rank["steps"] / rank["seconds"] for rank in ranks) for ranks in rounds],
        a_step("counted"),
        across * a_step("claimed"),
        a_step("processor"),
        max(rank["staleness"] for ranks in rounds for rank in ranks),
    )


def communication(row: Row, wait: float, ranks: int) -> float:
    """The share of a step that is not computation."""
    return 1 - wait * row.median / ranks


def of_links(measured: Mapping[str, Any], ranks: int) -> Section:
    """What servers do on each link, beside TensorFlow's.

    Args:
        measured: "plan", "links": results of `bench_servers.measure` by link, and "rival": those of `measure_rival`.
        ranks: number of ranks.
    """
    plan = measured["plan"]
    links = {link: rows_of(results) for link, results in measured["links"].items()}
    lines = [
        f"{_settings(plan)}, {1e3 * plan['wait']:.0f} ms of computation a step. {_COLUMNS}",
        "",
        _HEAD,
        "|---" * 8 + "|",
    ]
    for link, rows in links.items():
        lines += [_line(link, arm, row, plan["wait"], ranks) for arm, row in rows.items()]
        if rivals := measured["rival"].get(link):
            told = f"{statistics.median(rivals):.1f} ({min(rivals):.1f} to {max(rivals):.1f})"
            share = 1 - plan["wait"] * statistics.median(rivals) / ranks
            lines.append(f"| {link} | {RIVAL} | {told} | {share:.0%} | | | | |")
    figures = {"plan": plan, "links": _told(links), "rival": measured["rival"]}
    return Section("Updates on each link", lines, figures, _of_links(links, measured["rival"], plan, ranks))


def _of_links(
    links: Mapping[str, Mapping[str, Row]], rival: Mapping[str, Sequence[float]], plan: Mapping[str, Any], ranks: int
) -> list[Verdict]:
    found: list[Verdict] = []
    for link, rows in links.items():
        if link == UNSHAPED:
            continue
        share = communication(rows[DENSE], plan["wait"], ranks)
        if share >= _BOUND:
            what = f"{link}: updates a second at 99%, over those of all values (communication is {share:.0%} of these)"
            found.append(_at_least(what, 3.0, rows[SPARSE].rates, rows[DENSE].rates))
        if UNSHAPED in links:
            what = f"{link}: updates a second at 99%, over those without a limit"
            found.append(_at_least(what, 0.9, rows[SPARSE].rates, links[UNSHAPED][SPARSE].rates))
        if rivals := rival.get(link):
            most = ranks / plan["wait"] / statistics.median(rivals)  # a rank computes all the same
            what = f"{link}: updates a second at 99%, over {RIVAL}, of {most:.1f} possible"
            found.append(_at_least(what, 5.0, rows[SPARSE].rates, rivals))
        found += _of_bytes(link, rows)
    return found


def of_uneven(results: Sequence[dict[str, Any]], plan: Mapping[str, Any], ranks: int) -> Section:
    """What servers do if one rank takes twice as long, from the results of `bench_servers.measure`."""
    rows, link = rows_of(results), plan["uneven_rate"]
    settings = f"{_settings(plan)}, {1e3 * plan['uneven_wait']:.0f} ms of computation a step, twice that on one rank"
    lines = [f"{settings}. {_COLUMNS}", "", _HEAD, "|---" * 8 + "|"]
    lines += [_line(link, arm, row, None, ranks) for arm, row in rows.items()]
    what = f"{link}: samples a second with one rank at half speed, over synchronous"
    verdict = _at_least(what, 1.6, rows[UNEVEN].rates, rows[UNEVEN_TOGETHER].rates)
    return Section("One rank at half speed", lines, {"plan": plan, "arms": _told({link: rows})[link]}, [verdict])


def of_applying(measured: Mapping[str, Mapping[str, Sequence[float]]], plan: Mapping[str, Any]) -> Section:
    """How long a server takes to apply a push, from the results of `bench_servers.measure_applying` by threads."""
    arms = (FLOOR, APPLY, APPLY_PUSH, LINES, LAZY, LAZY_PUSH)
    lines = [f"Adam on {plan['applied']:,} parameters. Milliseconds, medians (quartiles).", ""]
    lines += ["| threads | " + " | ".join(arms) + " |", "|---" * (1 + len(arms)) + "|"]
    found: list[Verdict] = []
    for threads, taken in measured.items():
        lines.append(f"| {threads} | " + " | ".join(_milliseconds(taken[arm]) for arm in arms) + " |")
        ratio, low, high = timing.paired_ratio(taken[APPLY], taken[FLOOR])
        what = f"Adam on {plan['applied']:,}, {threads} threads: over a pass of the same traffic"
        found.append(Verdict(what, "<= 1.15", f"{ratio:.2f} ({low:.2f} to {high:.2f})", ratio <= 1.15))
        ratio, low, high = timing.paired_ratio(taken[LAZY], taken[LINES])
        what = f"1% of it lazily, {threads} threads: over a pass of the touched cache lines"
        found.append(Verdict(what, "<= 2.5", f"{ratio:.2f} ({low:.2f} to {high:.2f})", ratio <= 2.5))
    return Section("Applying a push", lines, {"seconds": writing.medians(dict(measured))}, found)


def _settings(plan: Mapping[str, Any]) -> str:
    return f"{plan['size']:,} parameters, Adam, {plan['rounds']} rounds of {plan['window']:g} s"


def _of_bytes(link: str, rows: dict[str, Row]) -> list[Verdict]:
    found = []
    for arm in (DENSE, SPARSE):
        ratio = rows[arm].counted / rows[arm].claimed
        what = f"{link}, {arm}: bytes counted, over those of telemetry"
        found.append(Verdict(what, "0.95 to 1.05", f"{ratio:.3f}", abs(ratio - 1) <= 0.05))
    times = rows[DENSE].counted / rows[SPARSE].counted
    return [*found, Verdict(f"{link}: bytes of all values, over those at 99%", ">= 45", f"{times:.1f}", times >= 45)]


def _at_least(what: str, wanted: float, ones: Sequence[float], others: Sequence[float]) -> Verdict:
    """A verdict on the ratio of medians, with the spread between rounds."""
    ratio = statistics.median(ones) / statistics.median(others)
    told = f"{ratio:.2f} ({min(ones) / max(others):.2f} to {max(ones) / min(others):.2f})"
    return Verdict(what, f">= {wanted}", told, ratio >= wanted)


def _line(link: str, arm: str, row: Row, wait: float | None, ranks: int) -> str:
    share = "" if wait is None else f"{communication(row, wait, ranks):.0%}"
    return (
        f"| {link} | {arm} | {row.median:.1f} ({min(row.rates):.1f} to {max(row.rates):.1f}) | {share} | "
        f"{row.claimed / 1e6:.3f} | {row.counted / 1e6:.3f} | {1e3 * row.processor:.1f} | {row.staleness} |"
    )


def _milliseconds(taken: Sequence[float]) -> str:
    middle, low, high = 1e3 * np.percentile(taken, [50, 25, 75])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _told(links: Mapping[str, Mapping[str, Row]]) -> dict[str, Any]:
    return {link: {arm: row._asdict() for arm, row in rows.items()} for link, rows in links.items()}


def draw(section: Section, path: str) -> None:
    """Bars of steps per second by link, from the figures of `of_links`."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    links, rival = section.figures["links"], section.figures["rival"]
    heights = {
        arm: {number: statistics.median(rows[arm]["rates"]) for number, rows in enumerate(links.values())}
        for arm in (SPARSE, DENSE)
    }
    heights[RIVAL] = {number: statistics.median(rival[link]) for number, link in enumerate(links) if rival.get(link)}
    for number, (arm, of_links) in enumerate(heights.items()):
        places = np.array(list(of_links)) + 0.27 * (number - 1)
        axes.bar_label(axes.bar(places, of_links.values(), 0.27, label=arm), fmt="%.1f", fontsize="small")
    axes.set_xticks(range(len(links)), list(links))
    axes.set_ylabel("updates a second of all ranks")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    writing.save_picture(figure, path)

"""The report of bench_servers.py: a table, targets met or missed, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks import servers_score, timing, writing
from benchmarks.dropping_report import NEAR
from benchmarks.dropping_settings import ARMS as STUDIED
from benchmarks.report import Verdict, table
from benchmarks.servers_apply import DENSE as APPLY
from benchmarks.servers_apply import FLOOR, LAZY, LAZY_PUSH, LINES
from benchmarks.servers_apply import SPARSE as APPLY_PUSH

DENSE, SPARSE = "asynchronous, all values", "asynchronous, 99% dropped"
UNEVEN, UNEVEN_TOGETHER = "asynchronous, one rank at half speed", "synchronous, one rank at half speed"
RIVAL = "ParameterServerStrategy"
DENSITY = 0.01
UNSHAPED = "no limit"
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


def verdicts_of(measured: dict[str, Any], ranks: int) -> list[Verdict]:
    """The targets, met or missed."""
    links = {link: rows_of(results) for link, results in measured["links"].items()}
    shaped = {link: rows for link, rows in links.items() if link != UNSHAPED}
    found: list[Verdict] = []
    for link, rows in shaped.items():
        share = communication(rows[DENSE], measured["plan"]["wait"], ranks)
        if share >= _BOUND:
            what = f"{link}: updates a second at 99%, over those of all values (communication is {share:.0%} of these)"
            found.append(_at_least(what, 3.0, rows[SPARSE].rates, rows[DENSE].rates))
        if UNSHAPED in links:
            what = f"{link}: updates a second at 99%, over those without a limit"
            found.append(_at_least(what, 0.9, rows[SPARSE].rates, links[UNSHAPED][SPARSE].rates))
        if rivals := measured["rival"].get(link):
            most = ranks / measured["plan"]["wait"] / statistics.median(rivals)  # a rank computes all the same
            what = f"{link}: updates a second at 99%, over {RIVAL}, of {most:.1f} possible"
            found.append(_at_least(what, 5.0, rows[SPARSE].rates, rivals))
        found += _of_bytes(link, rows)
    uneven = rows_of(measured["uneven"])
    what = f"{measured['plan']['uneven_rate']}: samples a second with one rank at half speed, over synchronous"
    found.append(_at_least(what, 1.6, uneven[UNEVEN].rates, uneven[UNEVEN_TOGETHER].rates))
    for threads, taken in measured["applying"].items():
        ratio, low, high = timing.paired_ratio(taken[APPLY], taken[FLOOR])
        told = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        what = f"Adam on {measured['plan']['applied']:,}, {threads} threads: over a pass of the same traffic"
        found.append(Verdict(what, "<= 1.15", told, ratio <= 1.15))
        ratio, low, high = timing.paired_ratio(taken[LAZY], taken[LINES])
        what = f"1% of it lazily, {threads} threads: over a pass of the touched cache lines"
        found.append(Verdict(what, "<= 2.5", f"{ratio:.2f} ({low:.2f} to {high:.2f})", ratio <= 2.5))
    return found


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


def render(measured: dict[str, Any], seconds: float, ranks: int = 4) -> str:
    """The report as Markdown."""
    about, plan = timing.machine(), measured["plan"]
    lines = [
        f"# Sharded servers, {about['date']}",
        "",
        f"`make bench-servers` on {about['processor']} for all {ranks} ranks together; TensorFlow {tf.__version__}; "
        f"commit {about['commit']}; {about['stolen']} of the cores' time stolen by the host. {plan['size']:,} "
        f"parameters, Adam, {1e3 * plan['wait']:.0f} ms of computation a step ({1e3 * plan['uneven_wait']:.0f} where "
        f"one rank is slower); {plan['rounds']} rounds of {plan['window']:g} s; {seconds / 60:.0f} minutes. "
        "benchmarks/bench_servers.py describes what is measured, and how.",
        "",
        "## Targets",
        "",
        *table(verdicts_of(measured, ranks)),
        "",
        "## Steps",
        "",
        "Of all ranks, medians of rounds (least to most); bytes and processor time are of one rank's step.",
        "",
        "| link | arm | steps a second | communication | MB claimed | MB counted | processor ms | oldest gradient |",
        "|---" * 8 + "|",
    ]
    for link, results in measured["links"].items():
        lines += [_line(link, arm, row, plan["wait"], ranks) for arm, row in rows_of(results).items()]
        if rivals := measured["rival"].get(link):
            told = f"{statistics.median(rivals):.1f} ({min(rivals):.1f} to {max(rivals):.1f})"
            share = 1 - plan["wait"] * statistics.median(rivals) / ranks
            lines.append(f"| {link} | {RIVAL} | {told} | {share:.0%} | | | | |")
    uneven = rows_of(measured["uneven"])
    lines += [_line(plan["uneven_rate"], arm, row, None, ranks) for arm, row in uneven.items()]
    lines += [
        "",
        "## Time to a score",
        "",
        "The LSTM of the study of gradient dropping, real gradients; batches are in pieces. Steps a second are of all "
        "ranks (least to most), which share the cores; a step is computing and the rest, which is waiting for servers, "
        f"selection and applying. Steps to {NEAR:.0%} of what `{STUDIED['dense'].name}` ends at with the same batches "
        "come from the study, on validation data.",
        "",
        *servers_score.lines_of(measured["translation"], ranks),
    ]
    lines += ["", "## Applying a push", "", "Milliseconds, medians (quartiles).", ""]
    arms = (FLOOR, APPLY, APPLY_PUSH, LINES, LAZY, LAZY_PUSH)
    lines += ["| threads | " + " | ".join(arms) + " |", "|---" * (1 + len(arms)) + "|"]
    for threads, taken in measured["applying"].items():
        lines.append(f"| {threads} | " + " | ".join(_told(taken[arm]) for arm in arms) + " |")
    return "\n".join([*lines, ""])


def _line(link: str, arm: str, row: Row, wait: float | None, ranks: int) -> str:
    share = "" if wait is None else f"{communication(row, wait, ranks):.0%}"
    return (
        f"| {link} | {arm} | {row.median:.1f} ({min(row.rates):.1f} to {max(row.rates):.1f}) | {share} | "
        f"{row.claimed / 1e6:.3f} | {row.counted / 1e6:.3f} | {1e3 * row.processor:.1f} | {row.staleness} |"
    )


def _told(taken: Sequence[float]) -> str:
    middle, low, high = 1e3 * np.percentile(taken, [50, 25, 75])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def summary(measured: dict[str, Any]) -> dict[str, Any]:
    """Settings and medians, for JSON."""
    rows = {link: rows_of(results) for link, results in {**measured["links"], "uneven": measured["uneven"]}.items()}
    told = {link: {arm: row._asdict() for arm, row in of_link.items()} for link, of_link in rows.items()}
    applying = writing.medians(measured["applying"])
    translation = servers_score.summary(measured["translation"])
    return {
        "plan": measured["plan"],
        "links": told,
        "rival": measured["rival"],
        "translation": translation,
        "applying": applying,
    }


def draw(measured: dict[str, Any], path: str) -> None:
    """Bars of steps per second, by link."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    links = list(measured["links"])
    rows = [rows_of(measured["links"][link]) for link in links]
    heights = {arm: dict(enumerate(each[arm].median for each in rows)) for arm in (SPARSE, DENSE)}
    rivals = {number: measured["rival"].get(link) for number, link in enumerate(links)}
    heights[RIVAL] = {number: statistics.median(rates) for number, rates in rivals.items() if rates}
    for number, (arm, of_links) in enumerate(heights.items()):
        places = np.array(list(of_links)) + 0.27 * (number - 1)
        axes.bar_label(axes.bar(places, of_links.values(), 0.27, label=arm), fmt="%.1f", fontsize="small")
    axes.set_xticks(range(len(links)), links)
    axes.set_ylabel("updates a second of all ranks")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    writing.save_picture(figure, path)

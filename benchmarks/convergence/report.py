"""The report of the convergence study: paired differences, tables, targets, and two pictures in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from benchmarks.convergence.runs import Outcomes
from benchmarks.convergence.settings import ARMS, DENSE, MEASURES, TRAINED, WANTED, WITHIN, Wanted
from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies import paired
from benchmarks.studies.paired import Difference, by_seed, gap_of, spread

LAST = 3  # epochs whose mean decides on a learning rate
_TELLING = 3  # pairs: the interval of two spans the picture
_COLOURS = colormaps["tab20"].colors[::2] + colormaps["tab20"].colors[1::2]


# ---- learning rates ----


def best_rate(outcomes: Outcomes, model: str, arm: str) -> float:
    """The learning rate that validates best, over the seeds that were trained at all of the rates."""
    return paired.best_rate(outcomes, model, arm, lambda outcome: _error(model, outcome))


def _error(model: str, outcome: Mapping[str, Any]) -> float:
    """The validation error that the best learning rate minimises.

    For translation the loss, which differs less between seeds than BLEU does; for images the top-1 error of the last
    epochs, as at high rates the loss may fall along with top-1.
    """
    return outcome["error"] if MEASURES[model] == "BLEU" else 100.0 - float(np.mean(outcome["curve"][-LAST:]))


# ---- a model ----


def arms_of(outcomes: Outcomes, model: str) -> list[str]:
    """The model's arms that were trained, in order."""
    return [arm for arm in TRAINED[model] if any((run.model, run.arm) == (model, arm) for run in outcomes)]


def summarise(
    outcomes: Outcomes,
    model: str,
    tried: Mapping[str, Sequence[float]] | None = None,
    wanted: Sequence[Wanted] | None = None,
) -> Section:
    """A model's results, differences and verdicts.

    Args:
        outcomes: outcomes of each arm at one learning rate.
        model: a key of `MODELS`.
        tried: for each arm the learning rates from which its own was chosen, if there were others.
        wanted: how close to dense some arm must end, as in `WANTED`.
    """
    arms = arms_of(outcomes, model)
    figures: dict[str, Any] = {
        what: {arm: list(by_seed(outcomes, model, arm, what).values()) for arm in arms}
        for what in ("final", "top5", "loss", "curve", "across")
    }
    figures["seeds"] = {arm: list(by_seed(outcomes, model, arm)) for arm in arms}
    figures["rate"] = {run.arm: run.rate for run in outcomes if run.model == model}
    figures["tried"] = {arm: list((tried or {}).get(arm, ())) for arm in arms}
    figures["share"] = _shares(figures["across"])
    gaps, losses = (_gaps(outcomes, model, arms, what) for what in ("final", "loss"))
    figures["differences"], figures["differences of loss"] = (
        {arm: {**dataclasses.asdict(gap), "low": gap.low, "high": gap.high} for arm, gap in each.items()}
        for each in (gaps, losses)
    )
    wanted = WANTED[model] if wanted is None else wanted
    verdicts = [*_frontier(model, wanted, gaps, figures["share"]), *_within(outcomes, model)]
    if MEASURES[model] == "top-1" and DENSE in arms:
        dense = float(np.mean(figures["final"][DENSE]))
        verdicts.append(Verdict(f"{model}: dense top-1, points", "60 to 90", f"{dense:.2f}", 60 <= dense <= 90))
    return Section(model, _table(model, arms, figures, gaps, losses), figures, verdicts)


def _gaps(outcomes: Outcomes, model: str, arms: Sequence[str], what: str) -> dict[str, Difference]:
    """The differences from dense of the arms that share seeds with it."""
    found = {arm: gap_of(outcomes, model, arm, DENSE, what) for arm in arms}
    return {arm: gap for arm, gap in found.items() if gap is not None}


def _shares(across: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Bytes between nodes over the whole training, in units of the dense arm's; {} without one."""
    if not across.get(DENSE):
        return {}
    return {arm: float(np.mean(sent)) / float(np.mean(across[DENSE])) for arm, sent in across.items()}


def _table(
    model: str,
    arms: Sequence[str],
    figures: Mapping[str, Any],
    gaps: Mapping[str, Difference],
    losses: Mapping[str, Difference],
) -> list[str]:
    lines = [
        f"| | learning rate | seeds | bytes between nodes | {MEASURES[model]} | - dense, 95% | loss | - dense, 95% |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        share, tried = figures["share"].get(arm), figures["tried"][arm]
        told = "" if share is None else f"{share:.2g}" if share > 0.99 else f"1/{1 / share:.0f}"
        rate = f"x {figures['rate'][arm]:g}" + (f" of {_listed(tried)}" if len(tried) > 1 else "")
        gap, of_loss = ("", "") if arm == DENSE or arm not in gaps else (str(gaps[arm]), losses[arm].told(3))
        lines.append(
            f"| {ARMS[arm].name} | {rate} | {len(figures['seeds'][arm])} | {told} | {spread(figures['final'][arm])} | "
            f"{gap} | {np.mean(figures['loss'][arm]):.3f} | {of_loss} |"
        )
    return lines


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _frontier(
    model: str, targets: Sequence[Wanted], gaps: Mapping[str, Difference], shares: Mapping[str, float]
) -> list[Verdict]:
    """Whether some arm is close enough to dense for the bytes it sends."""
    verdicts = []
    for wanted in targets if shares else ():
        arms = [arm for arm in gaps if arm != DENSE and shares[arm] <= wanted.share]
        if arms:
            pairs = max(gaps[arm].pairs for arm in arms)  # the mean of few may be high by chance
            best = max((arm for arm in arms if gaps[arm].pairs == pairs), key=lambda arm: gaps[arm].mean)
            verdicts.append(_verdict(model, wanted, ARMS[best].name, gaps[best]))
    return verdicts


def _verdict(model: str, wanted: Wanted, best: str, gap: Difference) -> Verdict:
    return Verdict(
        f"{model}: the best arm at 1/{1 / wanted.share:.0f} of the bytes - dense, points of {MEASURES[model]}",
        f">= -{wanted.points:g}",
        f"{best}: {gap}",
        gap.mean >= -wanted.points,
    )


def _within(outcomes: Outcomes, model: str) -> list[Verdict]:
    """Whether arms that should be equal are."""
    found = []
    for one, (other, points) in WITHIN.items():
        gap = gap_of(outcomes, model, one, other)
        if gap is not None:
            what = f"{model}: {ARMS[one].name} - {ARMS[other].name}, points of {MEASURES[model]}, 95%"
            met = -points <= gap.low and gap.high <= points
            found.append(Verdict(what, f"within {points:g}", str(gap), met))
    return found


# ---- all of them ----


def render(sections: Sequence[Section], about: Mapping[str, Any], others: Sequence[Section] = ()) -> str:
    """The report as Markdown; `others` are longer trainings, or on other nodes."""
    machine = timing.machine()
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    verdicts += [verdict._replace(what=_named(verdict.what, each)) for each in others for verdict in each.verdicts]
    cluster = about["cluster"]
    lines = [
        f"# Convergence, {machine['date']}",
        "",
        f"`{about['command']}` on {machine['processor']}; commit {machine['commit']}; {cluster.ranks} ranks as "
        f"{cluster.nodes} nodes of {cluster.local}, density {cluster.density}; {about['minutes']:.0f} minutes of "
        "training. The files in benchmarks/convergence describe what is trained, and how.",
        "",
        "Means over the seeds, and the deviation from seed to seed; differences are over the seeds that both arms "
        "have. Each arm is at the learning rate, in units of the model's, that validated best. "
        "Dense-SGD differs from 2DTAR-SGD, with which all are compared, "
        "by rounding alone, and tells how far equal arms part. Bytes are those that all ranks send to other nodes over "
        "the whole training.",
        *(["", "## Targets", "", *report.table(verdicts)] if verdicts else []),
    ]
    for section in sections:
        settings = ", ".join(f"{name} {value}" for name, value in about["settings"][section.title].items())
        lines += ["", f"## {section.title}", "", *section.lines, "", f"Settings, the same for all arms: {settings}."]
    for section in others:
        lines += ["", f"## {section.title}", "", *section.lines]
    return "\n".join([*lines, ""])


def _named(what: str, section: Section) -> str:
    """The subject of a verdict, with its section's full title in place of the model's name."""
    return what.replace(section.title.partition(",")[0], section.title, 1)


def draw(sections: Sequence[Section], path: str) -> None:
    """Draws the score after each epoch, as in CommLib's Fig. 10, and below the final score against the bytes sent."""
    figure = Figure(figsize=(5.5 * len(sections), 10.0), layout="constrained")
    axes = figure.subplots(2, len(sections), squeeze=False)
    for section, curves, frontier in zip(sections, *axes, strict=True):
        colours = _draw_curves(curves, section)
        _draw_frontier(frontier, section, colours)
    writing.save_picture(figure, path)


def _draw_curves(axis: Any, section: Section) -> dict[str, Any]:
    """Draws the curves; returns the colour of each arm. The legend is below the curves, as there are many."""
    colours = {}
    axis.set_prop_cycle(color=_COLOURS)
    for arm, values in section.figures["curve"].items():
        curves = np.array(values)
        epochs = np.arange(1, curves.shape[1] + 1)
        (line,) = axis.plot(epochs, curves.mean(axis=0), label=ARMS[arm].name)
        axis.fill_between(epochs, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.15)
        colours[arm] = line.get_color()
    axis.set(title=section.title, xlabel="epoch", ylabel=f"{MEASURES[section.title]}, validation, points")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return colours


def _draw_frontier(axis: Any, section: Section, colours: Mapping[str, Any]) -> None:
    """Draws a point for each arm, hollow and without an interval if it has fewer than three pairs."""
    gaps = section.figures["differences"]
    for arm, share in section.figures["share"].items():
        gap, told = gaps[arm], gaps[arm]["pairs"] >= _TELLING or arm == DENSE
        half, inside = (gap["half"], colours[arm]) if told else (None, "none")
        axis.errorbar(share, gap["mean"], yerr=half, fmt="o", color=colours[arm], markerfacecolor=inside, capsize=3)
    axis.axhline(0.0, color="grey", linewidth=0.8)
    axis.set(
        xscale="log",
        xlabel="bytes between nodes over the whole training, dense = 1",
        ylabel=f"{MEASURES[section.title]}, test, minus dense",
    )
    axis.grid(alpha=0.3)

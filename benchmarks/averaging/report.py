"""The report of the study of model averaging: a table for each model and number of ranks, verdicts, and pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.averaging.runs import Outcomes
from benchmarks.averaging.settings import ARMS, ARRIVALS, BASE, MEASURES, METHODS, WANTED, Wanted
from benchmarks.reporting import writing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies.paired import Difference, by_seed, gap_of, spread

COMPARED = {"final": 2, "fitted": 3, "trained": 3}  # and the number of decimals
_LISTED = ("final", "fitted")  # listed for each seed; for the others means
_MEANS = ("trained", "loss", "own", "lost", "distance")
_PICTURES = {"by arrival": ARRIVALS, "gradients and models": METHODS}
_EXPLAINED = (
    "Means over the seeds, and the deviation from seed to seed; differences from 100% are over the seeds that both "
    "arms have, with Student's 95% interval. The training loss is that of the exact mean of the models on all "
    "training samples; `in training` is the mean over the last epoch's batches, each at the model of the rank that "
    "took it. Scores are of the test, at the mean of the models; a rank's own is that of rank 0. The distance is "
    "that of a rank's weights from their mean, in units of the norm of the mean, on average over ranks and over the "
    "ends of epochs. `Ranks in another order` adds up the same numbers in another order and tells, as averaging "
    "gradients without loss does, how far equal arms part."
)


@dataclasses.dataclass(frozen=True)
class Group:
    """The runs of one model with one number of ranks."""

    model: str
    ranks: int
    outcomes: Outcomes

    @property
    def arms(self) -> list[str]:
        """The arms that were trained, in order."""
        there = {run.arm for run in self.outcomes}
        return [arm for arm in ARMS if arm in there]

    @property
    def title(self) -> str:
        """The title of its table and its picture."""
        return f"{self.model}, {self.ranks} ranks"

    def values(self, arm: str, what: str) -> list[Any]:
        """The results of an arm's runs, by seed."""
        return list(by_seed(self.outcomes, self.model, arm, what).values())

    def gap(self, arm: str, what: str) -> Difference | None:
        """An arm's difference from `BASE`; None for `BASE` itself, or if the two have no seed in common."""
        return None if arm == BASE else gap_of(self.outcomes, self.model, arm, BASE, what)


def groups_of(outcomes: Outcomes) -> list[Group]:
    """The runs, sorted."""
    kinds = sorted({(list(MEASURES).index(run.model), run.model, run.ranks) for run in outcomes})
    return [
        Group(model, ranks, {run: each for run, each in outcomes.items() if (run.model, run.ranks) == (model, ranks)})
        for _, model, ranks in kinds
    ]


def summarise(outcomes: Outcomes, about: Mapping[str, Sequence[str]]) -> Section:
    """The section on the question of convergence.

    Args:
        outcomes: outcomes of each arm at one learning rate.
        about: sentences on each model.
    """
    groups = groups_of(outcomes)
    lines = [_EXPLAINED]
    for group in groups:
        first = group is next(each for each in groups if each.model == group.model)
        told = about.get(group.model, ()) if first else ()
        lines += ["", f"### {group.title}", "", *([" ".join(told), ""] if told else []), *_table(group)]
    figures: dict[str, Any] = {group.title: {arm: _figures(group, arm) for arm in group.arms} for group in groups}
    verdicts = [_verdict(group, wanted, gap) for group in groups for wanted, gap in _judged(group)]
    return Section(
        "Convergence", lines, {"about": {name: list(told) for name, told in about.items()}, **figures}, verdicts
    )


def _figures(group: Group, arm: str) -> dict[str, Any]:
    gaps = {what: group.gap(arm, what) for what in COMPARED}
    return {
        "seeds": list(by_seed(group.outcomes, group.model, arm)),
        "rate": next(run.rate for run in group.outcomes if run.arm == arm),
        **{what: group.values(arm, what) for what in _LISTED},
        **_means(group, arm),
        "losses": np.mean(group.values(arm, "losses"), 0).tolist(),
        "differences": {what: dataclasses.asdict(gap) for what, gap in gaps.items() if gap is not None},
    }


def _means(group: Group, arm: str) -> dict[str, float]:
    return {what: float(np.mean(group.values(arm, what))) for what in _MEANS}


def _table(group: Group) -> list[str]:
    lines = [
        f"| arrival | rate | seeds | blocks lost | training loss | - 100%, 95% | in training | - 100%, 95% "
        f"| {MEASURES[group.model]} | - 100%, 95% | a rank's own | distance |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in group.arms:
        means, fitted = _means(group, arm), float(np.mean(group.values(arm, "fitted")))
        gaps = {what: _told(group.gap(arm, what), digits) for what, digits in COMPARED.items()}
        rate = next(run.rate for run in group.outcomes if run.arm == arm)
        lines.append(
            f"| {ARMS[arm].name} | x {rate:g} | {len(group.values(arm, 'final'))} | {means['lost']:.2%} | "
            f"{fitted:.3f} | {gaps['fitted']} | {means['trained']:.3f} | {gaps['trained']} | "
            f"{spread(group.values(arm, 'final'))} | {gaps['final']} | {means['own']:.2f} | {means['distance']:.2g} |"
        )
    return lines


def _told(gap: Difference | None, digits: int) -> str:
    return "" if gap is None else gap.told(digits)


def _judged(group: Group) -> list[tuple[Wanted, Difference]]:
    """The targets of a group, and the differences that were found."""
    found = [(each, group.gap(each.arm, each.what)) for each in WANTED if group.model in each.models]
    return [(wanted, gap) for wanted, gap in found if gap is not None]


def _verdict(group: Group, wanted: Wanted, gap: Difference) -> Verdict:
    unit = f"points of {MEASURES[group.model]}" if wanted.what == "final" else "training loss"
    return Verdict(
        f"{group.title}: {ARMS[wanted.arm].name} - {ARMS[BASE].name}, {unit}, 95%",
        str(wanted),
        gap.told(COMPARED[wanted.what]) + ("" if gap.pairs > 1 else ", one seed"),
        (wanted.least is None or gap.low >= wanted.least) and (wanted.most is None or gap.high <= wanted.most),
    )


def draw(figures: Mapping[str, Any], path: str) -> None:
    """Draws the training loss after each epoch, averaged over seeds, as in Figures 2 and 3 of the paper.

    The upper row compares arrival rates, the lower one averaging of gradients with averaging of models.

    Args:
        figures: figures of the section that `summarise` returns.
        path: path of the picture.
    """
    groups = {title: arms for title, arms in figures.items() if title != "about"}
    figure = Figure(figsize=(4.6 * len(groups), 8.0), layout="constrained")
    axes = figure.subplots(len(_PICTURES), len(groups), squeeze=False)
    for row, (name, arms) in zip(axes, _PICTURES.items(), strict=True):
        for axis, (title, told) in zip(row, groups.items(), strict=True):
            for arm in (arm for arm in arms if arm in told):
                losses = told[arm]["losses"]
                axis.plot(range(1, len(losses) + 1), losses, label=ARMS[arm].name)
            axis.set(title=f"{title}: {name}", xlabel="epoch", ylabel="training loss", yscale="log")
            axis.grid(alpha=0.3, which="both")
            axis.legend(fontsize="small")
    writing.save_picture(figure, path)

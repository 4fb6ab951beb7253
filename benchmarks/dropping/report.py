"""The report of the study of gradient dropping: a table, verdicts and a picture for each of its questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.dropping.runs import Outcomes
from benchmarks.dropping.settings import ARMS, LONGER, MEASURES, QUESTIONS, WANTED, Question, Wanted
from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies import paired
from benchmarks.studies.paired import Difference, by_seed, gap_of, spread

LAST = 4  # evaluations whose mean decides on a learning rate
NEAR = 0.95  # share of another arm's final score, as the paper's 33 BLEU of 34.5 (Table 2)
_AXES = {
    "samples": "samples seen, thousands",
    "time": "simulated seconds",
}


def best_rate(outcomes: Outcomes, model: str, arm: str) -> float:
    """The learning rate that validates best, over the seeds that were trained at all of the rates.

    The criterion is the mean score of the last evaluations: the best rate is the one at which training is furthest.
    """
    return paired.best_rate(outcomes, model, arm, lambda outcome: -float(np.mean(outcome["curve"][-LAST:])))


def near(curve: Sequence[float]) -> float:
    """The score at which another arm counts as near the end of this curve on validation data."""
    return NEAR * float(np.mean(curve[-LAST:]))


# ---- a question ----


def answered(outcomes: Outcomes, model: str) -> list[Question]:
    """The questions that at least one trained arm answers."""
    there = {run.arm for run in outcomes if run.model == model}
    return [each for each in QUESTIONS if each.base in there and there & set(each.arms)]


def summarise(
    outcomes: Outcomes,
    model: str,
    question: Question,
    tried: Mapping[str, Sequence[float]] | None = None,
    epochs: int = 0,
) -> Section:
    """A question's answer for one model.

    Args:
        outcomes: outcomes of each arm at one learning rate.
        model: a key of `MODELS`.
        question: as returned by `answered`.
        tried: for each arm the learning rates from which its own was chosen, if there were others.
        epochs: of a longer training, as in `LONGER`; 0 is the model's own number.
    """
    name = f"{model}, {epochs} epochs" if epochs else model
    arms = [arm for arm in (question.base, *question.arms) if by_seed(outcomes, model, arm)]
    gaps = {
        arm: {what: gap_of(outcomes, model, arm, question.base_of(arm), what) for what in ("final", "loss")}
        for arm in arms
        if arm != question.base
    }
    figures = {arm: _figures(outcomes, model, arm, (tried or {}).get(arm, ()), gaps.get(arm, {})) for arm in arms}
    verdicts = [
        _verdict(name, MEASURES[model], wanted, gap)
        for wanted in (LONGER[model].get(epochs, ()) if epochs else WANTED[model])
        if {wanted.one, wanted.other} <= set(arms)
        for gap in [gap_of(outcomes, model, wanted.one, wanted.other)]
        if gap is not None
    ]
    lines = _table(model, question, figures, gaps)
    return Section(f"{name}: {question.title}", lines, {"model": model, "arms": figures}, verdicts)


def _figures(
    outcomes: Outcomes, model: str, arm: str, tried: Sequence[float], gaps: Mapping[str, Difference | None]
) -> dict[str, Any]:
    """The figures of an arm."""

    def values(what: str) -> list[Any]:
        return list(by_seed(outcomes, model, arm, what).values())

    looks = {what: np.mean(values(what), 0).tolist() for what in ("curve", "losses", "times")}
    seen = values("samples")[0]
    messages = np.add(values("pushed"), values("pulled")) / np.multiply(8, values("size"))
    return {
        "seeds": list(by_seed(outcomes, model, arm)),
        "rate": next(run.rate for run in outcomes if (run.model, run.arm) == (model, arm)),
        "tried": list(tried),
        **{what: values(what) for what in ("final", "last", "copy", "loss")},
        **{what: float(np.mean(values(what))) for what in ("waited", "stale", "stalest")},
        "samples a second": seen / looks["times"][-1],
        "share": float(np.mean(messages)),
        **looks,
        "samples": [seen * (look + 1) / len(looks["curve"]) for look in range(len(looks["curve"]))],
        "differences": {what: dataclasses.asdict(gap) for what, gap in gaps.items() if gap is not None},
    }


def _table(
    model: str,
    question: Question,
    figures: Mapping[str, Mapping[str, Any]],
    gaps: Mapping[str, Mapping[str, Difference | None]],
) -> list[str]:
    measure = MEASURES[model]
    lines = [
        f"| | rate | seeds | bytes | samples / s | s to 95% | staleness | {measure} | a client's copy | compared with "
        "| difference, 95% | loss | difference, 95% |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, told in figures.items():
        rate = f"x {told['rate']:g}" + (f" of {', '.join(map('{:g}'.format, told['tried']))}" if told["tried"] else "")
        gap, of_loss = (gaps.get(arm, {}).get(what) for what in ("final", "loss"))
        base = "" if gap is None else ARMS[question.base_of(arm)].name
        lines.append(
            f"| {ARMS[arm].name} | {rate} | {len(told['seeds'])} | {_share(told['share'])} | "
            f"{told['samples a second']:.0f} | {_reached(told, figures[question.base])} | "
            f"{told['stale']:.1f}, at most {told['stalest']:.0f} | "
            f"{spread(told['final'])} | {np.mean(told['copy']):.2f} | {base} | {'' if gap is None else gap} | "
            f"{np.mean(told['loss']):.3f} | {'' if of_loss is None else of_loss.told(3)} |"
        )
    return lines


def _reached(told: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """When the mean over an arm's seeds first came near the base's final score, on validation data."""
    times = [time for time, score in zip(told["times"], told["curve"], strict=True) if score >= near(base["curve"])]
    return f"{times[0]:.1f}" if times else "never"


def _share(share: float) -> str:
    return f"{share:.2g}" if share > 0.5 else f"1/{1 / share:.0f}"


def _verdict(name: str, measure: str, wanted: Wanted, gap: Difference) -> Verdict:
    return Verdict(
        f"{name}: {ARMS[wanted.one].name} - {ARMS[wanted.other].name}, points of {measure}, 95%",
        f"within {wanted.points:g}",
        str(gap),
        -wanted.points <= gap.low and gap.high <= wanted.points,
    )


# ---- all of them ----


def render(sections: Sequence[Section], about: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    machine = timing.machine()
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    lines = [
        f"# Gradient dropping, {machine['date']}",
        "",
        f"`{about['command']}` on {machine['processor']}; commit {machine['commit']}; 4 simulated clients and servers; "
        f"{about['minutes']:.0f} minutes of training. The files in benchmarks/dropping describe "
        "what is trained, and how.",
        "",
        "Means over the seeds, and the deviation from seed to seed; differences are over the seeds that both arms "
        "have. Scores are on test data, with the servers' parameters averaged over the last evaluations, and with a "
        "client's copy at the end. Each arm is at the learning rate, in units of the model's, that validated best. "
        "Bytes are of messages both ways, all values being 1. Samples a second are simulated, and so are the seconds "
        f"until the score on validation data is {NEAR:.0%} of what the first arm of the table ends at. Staleness is in "
        "updates. Two arms that drop nothing differ by the times of arrivals alone, and tell how far equal arms part.",
        *(["", "## Targets", "", *report.table(verdicts)] if verdicts else []),
    ]
    for section in sections:
        lines += ["", f"## {section.title}", "", *section.lines]
    for model, settings in about["settings"].items():
        told = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines += ["", f"Settings of {model}, the same for all arms: {told}."]
    return "\n".join([*lines, ""])


def draw(sections: Sequence[Section], path: str) -> None:
    """Draws one or two pictures per question, as Figures 3 to 8 of the paper: means over seeds at each evaluation."""
    questions = {question.title: question for question in QUESTIONS}
    asked = [(section, questions[section.title.partition(": ")[2]]) for section in sections]
    drawn = [(section, question, across) for section, question in asked for across in question.across]
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(5.5 * columns, 4.5 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, one in zip(axes, drawn, strict=False):
        _draw(axis, *one)
    for axis in axes[len(drawn) :]:
        axis.set_axis_off()
    writing.save_picture(figure, path)


def _draw(axis: Any, section: Section, question: Question, across: str) -> None:
    measure = MEASURES[section.figures["model"]] if question.curve == "score" else "loss"
    for arm, told in section.figures["arms"].items():
        places = told["times"] if across == "time" else np.divide(told["samples"], 1000)
        axis.plot(places, told["curve" if question.curve == "score" else "losses"], label=ARMS[arm].name)
    axis.set(title=section.title, xlabel=_AXES[across], ylabel=f"{measure}, validation")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")

"""What the parts of a benchmark pass to its report: Markdown tables, figures for JSON, and targets met or missed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_LOCAL = ("--store", "--folder")  # options with paths of this machine


class Verdict(NamedTuple):
    """A target and what was measured.

    Attributes:
        what: the measured quantity, with its unit.
        wanted: the target as text, ">= 0.9".
        measured: the result as text, with its spread if there is one.
        met: whether the target is met.
    """

    what: str
    wanted: str
    measured: str
    met: bool


class Section(NamedTuple):
    """The answer to one question of a benchmark.

    Attributes:
        title: title of the section.
        lines: lines of Markdown.
        figures: all measured values; JSON-serialisable.
        verdicts: verdicts on the targets of this question.
    """

    title: str
    lines: list[str]
    figures: dict[str, Any]
    verdicts: list[Verdict]


class Answer(NamedTuple):
    """The answer to a question, and how it was obtained.

    Attributes:
        section: section of the report.
        made: a sentence with command, machine and time, as formatted by `made`.
    """

    section: Section
    made: str


def table(verdicts: list[Verdict]) -> list[str]:
    """The targets as a Markdown table."""
    rows = [
        f"| {verdict.what} | {verdict.wanted} | {verdict.measured} | {'met' if verdict.met else '**missed**'} |"
        for verdict in verdicts
    ]
    return ["| what | target | measured | |", "|---|---|---|---|", *rows]


def of_questions(title: str, answers: Sequence[Answer]) -> str:
    """The report of a benchmark of several questions, as Markdown.

    Args:
        title: title of the report.
        answers: one per question.
    """
    text = [
        f"# {title}",
        "",
        "The module of each section, in benchmarks/, describes what is measured, and how.",
        "",
        "## Targets",
        "",
        *table([verdict for section, _ in answers for verdict in section.verdicts]),
    ]
    for section, how in answers:
        text += ["", f"## {section.title}", "", how, "", *section.lines]
    return "\n".join([*text, ""])


def made(machine: Mapping[str, str], seconds: float, command: str) -> str:
    """A sentence that says when and by which command a section was made.

    Args:
        machine: result of `timing.machine`.
        seconds: duration.
        command: the command that made it.
    """
    return (
        f"`{command}`, {machine['date']}, on {machine['processor']}; commit {machine['commit']}; "
        f"{machine['stolen']} of the cores' time stolen by the host; {seconds / 60:.0f} minutes."
    )


def command(benchmark: str, words: Sequence[str]) -> str:
    """The command that reproduces the results anywhere, without the path of a local store or folder.

    Args:
        benchmark: name of the benchmark, "topk".
        words: arguments of the command line.
    """
    asked = [
        word
        for before, word in itertools.pairwise(["", *words])
        if before not in _LOCAL and not word.startswith(_LOCAL)
    ]
    return f"bench_{benchmark} {' '.join(asked)}" if asked else f"make bench-{benchmark}"

"""Benchmarks of several questions: each can be run alone, and the report keeps the earlier answers to the others.

benchmarks/results/BENCHMARK.md has a section for each question answered so far, with its own command, date and commit;
BENCHMARK.json has its figures and its verdicts.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Answer, Section, Verdict

Measure = Callable[[Callable[[str], None]], Section]  # takes a function that prints a line of progress


def add_arguments(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds the options for the questions to run and for writing the report."""
    parser.add_argument("--questions", default=",".join(names), help=f"from {','.join(names)} (default: all)")
    parser.add_argument("--dry", action="store_true", help="write no report")


def asked(parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """The questions on the command line, in the order of `names`; unknown ones end the program."""
    chosen = options.questions.split(",")
    if not set(chosen) <= set(names):
        parser.error(f"expected questions from {', '.join(names)}, got {options.questions}")
    return [name for name in names if name in chosen]


def ask(
    benchmark: str,
    title: str,
    names: Sequence[str],
    measures: Mapping[str, Measure],
    words: Sequence[str],
    keeps: bool = True,
    draw: Callable[[str, Section], None] | None = None,
    summarise: Callable[[Any], Any] | None = None,
) -> None:
    """Runs questions one after the other, and prints their results.

    Args:
        benchmark: name of the benchmark, "averaging".
        title: title of the report.
        names: all its questions, in the order of the report.
        measures: the questions to run.
        words: arguments of the command line.
        keeps: whether the report is written.
        draw: draws the picture of an answered question, if questions do not draw their own.
        summarise: makes what the report has of a question's figures, if not all; all then stay on the machine.
    """
    answers, command = kept(benchmark, names), report.command(benchmark, words)
    for name, measure in measures.items():
        print(f"{name} ...", flush=True)
        began = time.perf_counter()
        section = measure(lambda line: print(f"  {line}", flush=True))
        told = section if summarise is None else section._replace(figures=summarise(section.figures))
        answers[name] = Answer(told, report.made(timing.machine(), time.perf_counter() - began, command))
        if keeps:  # after each question, so that a later failure loses nothing
            write(benchmark, title, {each: answers[each] for each in names if each in answers})
        if keeps and summarise is not None:
            writing.write_samples(f"{benchmark}-{name}", section.figures)
        if keeps and draw is not None:
            draw(name, section)
    fresh = {name: answers[name] for name in measures}
    print(report.of_questions(title, list(fresh.values())))


def write(benchmark: str, title: str, answers: Mapping[str, Answer]) -> None:
    """Writes BENCHMARK.md and .json."""
    data: dict[str, Any] = {}
    for name, (section, made) in answers.items():
        verdicts = [verdict._asdict() for verdict in section.verdicts]
        data[name] = {"title": section.title, "made": made, "verdicts": verdicts, "figures": section.figures}
    stem = writing.write_results(benchmark, data, report.of_questions(title, list(answers.values())))
    print(f"Written to {stem}.md and .json", flush=True)


def kept(benchmark: str, names: Sequence[str]) -> dict[str, Answer]:
    """The answers that the report already has."""
    stem = writing.RESULTS / benchmark
    if not stem.with_suffix(".json").exists():
        return {}
    told = json.loads(stem.with_suffix(".json").read_text())
    texts = _sections(stem.with_suffix(".md").read_text())
    return {name: _answer(told[name], texts) for name in names if told.get(name, {}).get("title") in texts}


def _sections(text: str) -> dict[str, str]:
    """The text below each second-level heading."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _answer(told: Mapping[str, Any], texts: Mapping[str, str]) -> Answer:
    text = texts[told["title"]].strip("\n").removeprefix(told["made"]).strip("\n")
    verdicts = [Verdict(**each) for each in told["verdicts"]]
    return Answer(Section(told["title"], text.split("\n"), told["figures"], verdicts), told["made"])

"""What the input cache gains and what it costs, one section for each question: `make bench-datacache`.

Each module of QUESTIONS answers one question. It also runs alone, with options of its own: `python -m
benchmarks.datacache_files --help`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from benchmarks import (
    datacache_files,
    datacache_files_report,
    datacache_memory,
    datacache_peers,
    questions,
    report,
    slow_files,
    timing,
    writing,
)
from benchmarks.report import Section

TITLE = "The cache of the input"
QUESTIONS: tuple[ModuleType, ...] = (datacache_files, datacache_memory, datacache_peers)
PICTURES = {datacache_files: datacache_files_report.draw}  # those that have one


def name_of(question: ModuleType) -> str:
    """The name by which a question is asked for: "files" for benchmarks.datacache_files."""
    return question.__name__.rpartition("datacache_")[2]


def write(sections: dict[ModuleType, Section], text: str) -> pathlib.Path:
    """Writes the report, the figures as JSON and a picture; returns their path without its ending."""
    data: dict[str, Any] = {"machine": timing.machine()}
    for question, section in sections.items():
        verdicts = [verdict._asdict() for verdict in section.verdicts]
        data[name_of(question)] = {"title": section.title, "verdicts": verdicts, "figures": section.figures}
    stem = writing.write_results("datacache", writing.medians(data), text, data)
    drawn = [question for question in sections if question in PICTURES]
    if drawn:
        figure = Figure(figsize=(6 * len(drawn), 4), layout="constrained")
        for question, axis in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
            PICTURES[question](sections[question].figures, axis)
        writing.save_picture(figure, f"{stem}.png")
    return stem


def main() -> None:
    names = [name_of(question) for question in QUESTIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions.add_arguments(parser, names)
    parser.add_argument("--folder", type=pathlib.Path, help="for caches, on a local disk (default: a temporary one)")
    options = parser.parse_args()
    asked = questions.asked(parser, options, names)
    reason = slow_files.unavailable()
    if reason is not None and "files" in asked:
        sys.exit(reason)
    sections: dict[ModuleType, Section] = {}
    made, text = [], ""
    for question in QUESTIONS:
        if name_of(question) not in asked:
            continue
        print(f"{name_of(question)} ...", flush=True)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            sections[question] = question.measure(pathlib.Path(folder), lambda line: print(f"  {line}", flush=True))
        command = "make bench-datacache" if asked == names else f"bench_datacache --questions {options.questions}"
        made.append(report.made(timing.machine(), time.perf_counter() - began, command))
        text = report.of_questions(TITLE, list(sections.values()), made)
        if not options.dry:  # after each, so that a later failure loses nothing
            print(f"Written to {write(sections, text)}.json, .md and .png", flush=True)
    print(text)


if __name__ == "__main__":
    main()

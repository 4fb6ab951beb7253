"""What the input cache gains and what it costs, one section for each question: `make bench-datacache`.

Each module of QUESTIONS answers one question. It also runs alone, with options of its own: `python -m
benchmarks.datacache.files --help`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import tempfile
from collections.abc import Callable
from types import ModuleType

from matplotlib.figure import Figure

from benchmarks.datacache import files as datacache_files
from benchmarks.datacache import files_report as datacache_files_report
from benchmarks.datacache import memory as datacache_memory
from benchmarks.datacache import peers as datacache_peers
from benchmarks.datacache import slow_files
from benchmarks.reporting import questions, writing
from benchmarks.reporting.report import Section

TITLE = "The cache of the input"
QUESTIONS: dict[str, ModuleType] = {"files": datacache_files, "memory": datacache_memory, "peers": datacache_peers}


def answer(question: ModuleType, parent: pathlib.Path | None, tell: Callable[[str], None]) -> Section:
    """What a question's module measures, with its caches in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        return question.measure(pathlib.Path(folder), tell)


def draw(name: str, section: Section) -> None:
    """Draws the picture of the files."""
    if name == "files":
        figure = Figure(figsize=(6, 4), layout="constrained")
        datacache_files_report.draw(section.figures, figure.subplots())
        writing.save_picture(figure, writing.RESULTS / "datacache.png")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions.add_arguments(parser, [*QUESTIONS])
    parser.add_argument("--folder", type=pathlib.Path, help="for caches, on a local disk (default: a temporary one)")
    options = parser.parse_args()
    asked = questions.asked(parser, options, [*QUESTIONS])
    reason = slow_files.unavailable()
    if reason is not None and "files" in asked:
        sys.exit(reason)
    measures = {name: functools.partial(answer, QUESTIONS[name], options.folder) for name in asked}
    questions.ask("datacache", TITLE, [*QUESTIONS], measures, sys.argv[1:], not options.dry, draw, writing.medians)


if __name__ == "__main__":
    main()

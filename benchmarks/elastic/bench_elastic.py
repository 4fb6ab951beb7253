"""What do changes of the ranks cost an elastic job, and what does it cost that they may come?

    make bench-elastic                                 (20 minutes on two cores)
    python -m benchmarks elastic --questions small --launches 5

Each module of QUESTIONS answers one question; its docstring says how. All jobs are real ones, under horovodrun, whose
hosts are loopback addresses of this machine; with other programs on its cores, times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import sys
from types import ModuleType

from benchmarks.elastic import costs, goodput, recovery, small
from benchmarks.reporting import questions, writing
from benchmarks.reporting.report import Section

TITLE = "Elastic training"
QUESTIONS: dict[str, ModuleType] = {"recovery": recovery, "goodput": goodput, "small": small, "costs": costs}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions.add_arguments(parser, [*QUESTIONS])
    for question in QUESTIONS.values():
        question.add_arguments(parser)
    options = parser.parse_args()
    asked = questions.asked(parser, options, [*QUESTIONS])
    measures = {name: functools.partial(QUESTIONS[name].measure, options) for name in asked}
    questions.ask("elastic", TITLE, [*QUESTIONS], measures, sys.argv[1:], not options.dry, draw)


def draw(name: str, section: Section) -> None:
    """Draws the picture, which is that of the first question."""
    if name == "recovery":
        recovery.draw(section.figures, str(writing.RESULTS / "elastic.png"))


if __name__ == "__main__":
    main()

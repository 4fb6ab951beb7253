"""Model averaging over a network that may lose messages (RPS, Yu et al. 2019): `make bench-averaging`.

Each module of QUESTIONS answers one question; its docstring says how.
"""

from __future__ import annotations

import argparse
import functools
import sys
from types import ModuleType

from benchmarks.averaging import convergence as averaging_convergence
from benchmarks.averaging import service as averaging_service
from benchmarks.averaging import steps as averaging_steps
from benchmarks.reporting import questions, writing
from benchmarks.reporting.report import Section

TITLE = "Averaging over a network that may lose messages"
QUESTIONS: dict[str, ModuleType] = {
    "convergence": averaging_convergence,
    "steps": averaging_steps,
    "service": averaging_service,
}
PICTURES = {"convergence": "averaging.png", "service": "averaging.service.png"}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions.add_arguments(parser, [*QUESTIONS])
    for question in QUESTIONS.values():
        question.add_arguments(parser)
    options = parser.parse_args()
    asked = questions.asked(parser, options, [*QUESTIONS])
    for wrong in (question.problem(options) for question in QUESTIONS.values()):
        if wrong is not None:
            parser.error(wrong)
    measures = {name: functools.partial(QUESTIONS[name].measure, options) for name in asked}
    questions.ask("averaging", TITLE, [*QUESTIONS], measures, sys.argv[1:], not options.dry, draw)


def draw(name: str, section: Section) -> None:
    """Draws the picture of a question, if it has one and there are figures."""
    if name in PICTURES and section.figures:
        QUESTIONS[name].draw(section.figures, str(writing.RESULTS / PICTURES[name]))


if __name__ == "__main__":
    main()

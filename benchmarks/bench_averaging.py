"""Model averaging over a network that may lose messages (RPS, Yu et al. 2019): `make bench-averaging`.

Each module of QUESTIONS answers one question; how stands at its head.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from benchmarks import averaging_convergence, averaging_service, averaging_steps, report, timing, writing
from benchmarks.report import Section

QUESTIONS: tuple[ModuleType, ...] = (averaging_convergence, averaging_steps, averaging_service)
PICTURES = {averaging_convergence: ".png", averaging_service: ".service.png"}  # and how their names end


def name_of(question: ModuleType) -> str:
    """The name by which a question is asked for: "convergence" for benchmarks.averaging_convergence."""
    return question.__name__.rpartition("averaging_")[2]


def main() -> None:
    """The command."""
    names = [name_of(question) for question in QUESTIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", default=",".join(names), help=f"some of {','.join(names)} (all)")
    parser.add_argument("--dry", action="store_true", help="write no report")
    for question in QUESTIONS:
        question.add_arguments(parser)
    options = parser.parse_args()
    asked = options.questions.split(",")
    if not set(asked) <= set(names):
        parser.error(f"expected some of the questions {', '.join(names)}, got {options.questions}")
    for wrong in (question.problem(options) for question in QUESTIONS):
        if wrong is not None:
            parser.error(wrong)
    sections: dict[ModuleType, Section] = {}
    began, text = time.perf_counter(), ""
    for question in (each for each in QUESTIONS if name_of(each) in asked):
        print(f"{name_of(question)} ...", flush=True)
        sections[question] = question.measure(options, lambda line: print(f"  {line}", flush=True))
        text = report.of_questions(
            "Averaging over a network that may lose messages",
            timing.machine(),
            list(sections.values()),
            time.perf_counter() - began,
            report.command("averaging", sys.argv[1:]),
        )
        if not options.dry:  # after each, so that what fails later loses nothing
            write(sections, text)
    print(text)


def write(sections: Mapping[ModuleType, Section], text: str) -> None:
    """Writes the report, the figures as JSON and the pictures."""
    data: dict[str, Any] = {"machine": timing.machine()}
    for question, section in sections.items():
        verdicts = [verdict._asdict() for verdict in section.verdicts]
        data[name_of(question)] = {"verdicts": verdicts, "figures": section.figures}
    stem = writing.write_results("averaging", data, text)
    drawn = {question: end for question, end in PICTURES.items() if question in sections and sections[question].figures}
    for question, end in drawn.items():
        question.draw(sections[question].figures, f"{stem}{end}")
    print(f"Written to {stem} with {', '.join(['.json', '.md', *drawn.values()])}", flush=True)


if __name__ == "__main__":
    main()

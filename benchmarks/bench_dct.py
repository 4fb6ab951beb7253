"""What DCT reaches and what it costs (Gupta et al. 2021), each question in a section: `make bench-dct`.

Each module of QUESTIONS answers one; how, and how long it takes, stands at its head. Two are studies of hours and days,
`quality` and `translation`, which go on where they were stopped; with `--finished` they make no more trainings. The
report is written after each question.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from types import ModuleType

import tensorflow as tf

from benchmarks import (
    dct_appendix,
    dct_bytes,
    dct_life,
    dct_quality,
    dct_theorem,
    dct_threshold,
    dct_thresholds,
    dct_training,
    dct_translation,
    report,
    timing,
    writing,
)
from benchmarks.report import Section

QUESTIONS: tuple[ModuleType, ...] = (
    dct_threshold,
    dct_bytes,
    dct_training,
    dct_quality,
    dct_translation,
    dct_thresholds,
    dct_life,
    dct_appendix,
    dct_theorem,
)


def name_of(question: ModuleType) -> str:
    """The name by which a question is asked for: "threshold" for benchmarks.dct_threshold."""
    return question.__name__.rpartition("dct_")[2]


def render(sections: Sequence[Section], seconds: float, command: str) -> str:
    """The report as Markdown."""
    return report.of_questions(
        "DCT: thresholded activations and gradients", timing.machine(), sections, seconds, command
    )


def main() -> None:
    names = [name_of(question) for question in QUESTIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", default=",".join(names), help=f"some of {','.join(names)} (all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds; writes no results")
    parser.add_argument("--finished", action="store_true", help="make no more trainings, and tell of those there are")
    parser.add_argument("--dry", action="store_true", help="write no results")
    parser.add_argument("--seeds", type=int, help="of trainings whose quality is told, in place of each question's own")
    dct_translation.add_arguments(parser)
    options = parser.parse_args()
    wrong = dct_translation.problem(options)
    if wrong is not None:
        parser.error(wrong)
    asked = options.questions.split(",")
    if not set(asked) <= set(names):
        parser.error(f"expected some of the questions {', '.join(names)}, got {options.questions}")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sections: dict[str, Section] = {}
    began, text = time.perf_counter(), ""
    for question in (each for each in QUESTIONS if name_of(each) in asked):
        print(f"{name_of(question)} ...", flush=True)
        sections[name_of(question)] = question.measure(options, lambda line: print(f"  {line}", flush=True))
        command = report.command("dct", sys.argv[1:])
        text = render(list(sections.values()), time.perf_counter() - began, command)
        if not (options.dry or options.quick):  # after each, so that what fails later loses nothing
            data = {name: {"title": section.title, **section.figures} for name, section in sections.items()}
            stem = writing.write_results("dct", {"machine": timing.machine(), **data}, text)
            print(f"Written to {stem}.json and .md", flush=True)
    print(text)


if __name__ == "__main__":
    main()

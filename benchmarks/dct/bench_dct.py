"""What DCT gains and what it costs (Gupta et al. 2021), one section for each question: `make bench-dct`.

Each module of QUESTIONS answers one question; its docstring says how, and how long it takes. Two of them, `quality` and
`translation`, are studies of hours and days, which resume where they were interrupted; with `--finished` they start no
new trainings. The report is written after each question.
"""

from __future__ import annotations

import argparse
import functools
import sys
from types import ModuleType

import tensorflow as tf

from benchmarks.dct import appendix as dct_appendix
from benchmarks.dct import bytes as dct_bytes
from benchmarks.dct import life as dct_life
from benchmarks.dct import quality as dct_quality
from benchmarks.dct import theorem as dct_theorem
from benchmarks.dct import threshold as dct_threshold
from benchmarks.dct import thresholds as dct_thresholds
from benchmarks.dct import training as dct_training
from benchmarks.dct import translation as dct_translation
from benchmarks.reporting import questions

TITLE = "DCT: thresholded activations and gradients"
QUESTIONS: dict[str, ModuleType] = {
    "threshold": dct_threshold,
    "bytes": dct_bytes,
    "training": dct_training,
    "quality": dct_quality,
    "translation": dct_translation,
    "thresholds": dct_thresholds,
    "life": dct_life,
    "appendix": dct_appendix,
    "theorem": dct_theorem,
}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions.add_arguments(parser, [*QUESTIONS])
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds; writes no report")
    parser.add_argument(
        "--finished", action="store_true", help="report on the finished trainings without making new ones"
    )
    parser.add_argument(
        "--seeds", type=int, help="of trainings whose quality is reported (default: each question's own)"
    )
    dct_translation.add_arguments(parser)
    options = parser.parse_args()
    wrong = dct_translation.problem(options)
    if wrong is not None:
        parser.error(wrong)
    asked = questions.asked(parser, options, [*QUESTIONS])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    measures = {name: functools.partial(QUESTIONS[name].measure, options) for name in asked}
    questions.ask("dct", TITLE, [*QUESTIONS], measures, sys.argv[1:], keeps=not (options.dry or options.quick))


if __name__ == "__main__":
    main()

"""Runs a benchmark, or lists them all: which question each answers, how long it takes, and where its results go.

    python -m benchmarks                           the list (`make benchmarks`)
    python -m benchmarks exchange --sizes 1M       runs benchmarks/exchange/bench_exchange.py (`make bench-exchange`)

The times are those on two cores, to the order of magnitude; each module's `--help` says more. What takes days is kept
run by run, and goes on where it stopped. Results are benchmarks/results/NAME.md, .json and, of most, .png.
"""

from __future__ import annotations

import pathlib
import runpy
import sys
from typing import NamedTuple

ROOMS = pathlib.Path(__file__).parent


class Benchmark(NamedTuple):
    """What a benchmark is for, and how long it takes."""

    question: str
    takes: str


BENCHMARKS = {
    "accuracy": Benchmark("How much sooner is a model as accurate as with dense training?", "hours"),
    "averaging": Benchmark("Can training lose messages, and what does that gain?", "days"),
    "convergence": Benchmark("How accurate does a model become, by recipe?", "days"),
    "datacache": Benchmark("Does the cache of the input pay?", "minutes"),
    "dct": Benchmark("Does a model in stages train faster with few activations?", "hours"),
    "dropping": Benchmark("What does gradient dropping on servers cost in accuracy?", "days"),
    "elastic": Benchmark("How soon do ranks train again when others go or come?", "minutes"),
    "exchange": Benchmark("How long does an exchange take, beside rivals and the floor?", "an hour"),
    "lars": Benchmark("How fast are LARS and LAMB?", "minutes"),
    "linear": Benchmark("How much sooner are sparse linear models trained (SparCML, Table 2)?", "an hour"),
    "merge": Benchmark("How fast are sorted streams merged?", "minutes"),
    "nodes": Benchmark("How accurate is a training on many nodes?", "hours"),
    "optimizer": Benchmark("What does a step cost if the exchange runs the optimizer?", "minutes"),
    "paper": Benchmark("Does the cost model fit CommLib's cluster, and what of larger ones?", "seconds"),
    "passes_gpu": Benchmark("How fast are the GPU passes of momentum, LARS and LAMB?", "minutes"),
    "scale": Benchmark("What does it cost a rank that there are more nodes?", "minutes"),
    "servers": Benchmark("Do servers help slow links and ranks of unequal speed?", "an hour"),
    "sparcml": Benchmark("When are sparse sums faster than dense ones?", "minutes"),
    "topk": Benchmark("What does selection cost?", "minutes"),
    "topk_gpu": Benchmark("What does selection cost on a GPU?", "minutes"),
    "train": Benchmark("How many samples a second does a training take?", "an hour"),
}


def module_of(name: str) -> str:
    """The module of a benchmark."""
    (path,) = ROOMS.glob(f"*/bench_{name}.py")
    return f"benchmarks.{path.parent.name}.{path.stem}"


def listed() -> str:
    """A line for each benchmark."""
    rows = [(f"make bench-{name}", each.takes, each.question) for name, each in BENCHMARKS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:{widths[0]}}  {takes:{widths[1]}}  {question}" for name, takes, question in rows)


def main() -> None:
    """Runs the command."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"{listed()}\n\nResults: benchmarks/results/. `python -m benchmarks NAME --help` says more.")
        return
    name = sys.argv.pop(1)
    if name not in BENCHMARKS:
        sys.exit(f"There is no benchmark {name!r}: expected one of {', '.join(BENCHMARKS)}.")
    runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

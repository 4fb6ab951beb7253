"""How well the recommender trains with thresholded activations and gradients (Tables 1 to 3): `--questions quality`.

The DLRM of examples/recommender.py is trained on the machine's package index for one epoch, with the same seeds for all
arms. Splits are `Threshold` layers in one process, which compute what stages compute, to the bit. Arms with two
trainers are two ranks with half of the batch each. They exchange the gradients of the 8 layers by a recipe, as in the
paper, and those of the embeddings as the rows in the batch; dense training has the same bits whether these are sent as
rows or whole. A training has 727 steps, in which the learning rate rises and falls, so that a threshold held for
`dct`'s default of 1,000 steps is wrong most of the time. 50 steps are as large a share of it as 1,000 are of 15,000.
With batches of 128 rows it has 1,454 steps.

Differences in test loss from dense training with as many trainers are paired by seed, with Student's 95% interval;
"A/A" is dense training with a learning rate 1% larger.

Each finished run is a line of benchmarks/results/dct_runs.jsonl, and is not repeated as long as arm, rows and sources
are the same. A study uses one snapshot of the index, whose digest is reported. 12 seeds of 20 arms are 240 runs of at
least half a minute each, which takes hours; `--seeds` takes fewer, and `--finished` reports the runs there are.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies import paired
from benchmarks.studies.sources import ROOT, fingerprint_of
from benchmarks.studies.store import append
from examples import recommender
from examples.recommenders import index

STORE = ROOT / "benchmarks" / "results" / "dct_runs.jsonl"
SEEDS = 12
TITLE = "Test loss of the recommender"
ROWS, FEWER = 256, 128  # rows of a batch of all trainers
WANTED = 0.003  # of the loss
_SOURCES = ["examples/recommender.py", *(f"examples/recommenders/{name}.py" for name in ("dlrm", "packages", "tables"))]
_OF_RECIPES = ["hvd_sparse/compression/held.py"]
_RATE = recommender.PRESETS["packages"]["learning_rate"]
_SMALL_RATE = 0.007  # the rate times the root of 1/2, as the batch is half as large
Make = Callable[["Arm", int, str, pathlib.Path], str]  # of arm, seed, digest of the index and store; a line to tell
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """How the model is trained.

    Attributes:
        name: of the arm.
        words: of the command line, beside seed and batch size.
        trainers: ranks that exchange gradients.
        rows: of a batch of all trainers.
    """

    name: str
    words: tuple[str, ...] = ()
    trainers: int = 1
    rows: int = ROWS

    @property
    def reference(self) -> str:
        """The arm that it is compared with."""
        if self.rows != ROWS:
            return DENSE_SMALL
        return DENSE if self.trainers == 1 else DENSE_OF_TWO

    def fingerprint(self, rows: str, seed: int) -> str:
        """Changes with whatever makes a run of it another one."""
        sources = [*_SOURCES, *(_OF_RECIPES if "--recipe" in self.words else [])]
        return fingerprint_of([self.words, self.trainers, self.rows, rows, seed], sources)


def _split(sparsity: float, *after: str) -> tuple[str, ...]:
    return ("--sparsity", str(sparsity), "--split-after", *after)


_ONE, _TWO = ("bottom_2",), ("bottom_2", "top_2")
DENSE, AGAIN, DENSE_OF_TWO = "dense", "dense, A/A", "dense, two trainers"
_RECIPES = ("dct(0.99)", "dct(0.99, life=50)", "updates(dct(0.99, life=50), ahead=True)")
_PUBLISHED, _SHORT, _BEST = _RECIPES
_WARM = f"warmup({_SHORT}, steps=727)"


def _exchanged(recipe: str) -> tuple[str, ...]:
    return ("--in-rows", "--recipe", recipe.replace("dct(", "dct(sparsity="))


ONE_SPLIT, TWO_SPLITS = f"90%, one split, and {_BEST}", f"90%, two splits, and {_BEST}"
_SMALL = f", batches of {FEWER}"
DENSE_SMALL, AGAIN_SMALL, ONE_SMALL = DENSE_OF_TWO + _SMALL, f"{DENSE_OF_TWO}, A/A{_SMALL}", ONE_SPLIT + _SMALL


def _small(name: str, *words: str, rate: float = _SMALL_RATE) -> Arm:
    return Arm(name, ("--learning-rate", str(rate), *words), 2, FEWER)


HYBRIDS = ONE_SPLIT, TWO_SPLITS, ONE_SMALL
AGAIN_OF = {DENSE: AGAIN, DENSE_SMALL: AGAIN_SMALL}  # the A/A arm of a reference
ARMS = (
    Arm(DENSE),
    Arm(AGAIN, ("--learning-rate", str(1.01 * _RATE))),
    *(Arm(f"{each:.0%}, one split", _split(each, *_ONE)) for each in (0.75, 0.9, 0.95, 0.98)),
    *(Arm(f"{each:.0%}, two splits", _split(each, *_TWO)) for each in (0.75, 0.9, 0.95)),
    Arm(DENSE_OF_TWO, trainers=2),
    *(Arm(recipe, _exchanged(recipe), trainers=2) for recipe in _RECIPES),
    Arm(ONE_SPLIT, (*_exchanged(_BEST), *_split(0.9, *_ONE)), trainers=2),
    Arm(TWO_SPLITS, (*_exchanged(_BEST), *_split(0.9, *_TWO)), trainers=2),
    Arm(f"90%, one split, and {_WARM}", (*_exchanged(_WARM), *_split(0.9, *_ONE)), trainers=2),
    Arm(f"90%, two splits, and {_PUBLISHED}", (*_exchanged(_PUBLISHED), *_split(0.9, *_TWO)), trainers=2),
    _small(DENSE_SMALL),
    _small(AGAIN_SMALL, rate=1.01 * _SMALL_RATE),
    _small(ONE_SMALL, *_exchanged(_BEST), *_split(0.9, *_ONE)),
)
QUICK = tuple(dataclasses.replace(arm, words=(*arm.words, "--width", "0.125")) for arm in ARMS[:2])
"""Small models, which show that all goes through; their runs are not kept."""


def measure(options: argparse.Namespace, say: Callable[[str], None], store: pathlib.Path = STORE) -> Section:
    """Makes the runs that are missing in the store, seed by seed, and reports on all in it."""
    try:
        rows = index.read().digest
    except RuntimeError as problem:
        return Section(TITLE, [f"Not measured: {problem}"], {}, [])
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / store.name
            return told(trained(QUICK, 1, rows, kept, make, say), QUICK, rows)
    one = None if options.finished else make
    return told(trained(ARMS, options.seeds or SEEDS, rows, store, one, say), ARMS, rows)


def trained(
    arms: Sequence[Arm], seeds: int, rows: str, store: pathlib.Path, one: Make | None, say: Callable[[str], None]
) -> dict[str, dict[int, float]]:
    """Test losses by arm and seed.

    Args:
        arms: to be trained.
        seeds: of each.
        rows: digest of the index.
        store: file of finished runs.
        one: makes a run and adds it to the store; None leaves out what it does not have.
        say: gets a line for each.
    """
    kept = load(store)
    missing = [[each for each in arms if each.fingerprint(rows, seed) not in kept] for seed in range(seeds)]
    say(f"{seeds * len(arms)} runs, {sum(map(len, missing))} of them to be made")
    for seed, of_seed in enumerate(missing if one else []):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            alone = [each for each in of_seed if each.trainers == 1]
            for each in pool.map(lambda arm, seed=seed: one(arm, seed, rows, store), alone):
                say(each)
        for arm in (each for each in of_seed if each.trainers > 1):
            say(one(arm, seed, rows, store))
    kept = load(store)
    return {
        arm.name: {seed: kept[key]["loss"] for seed in range(seeds) if (key := arm.fingerprint(rows, seed)) in kept}
        for arm in arms
    }


def make(arm: Arm, seed: int, rows: str, store: pathlib.Path) -> str:
    """One run, in processes of its own."""
    words = [*arm.words, "--seed", str(seed), "--batch-size", str(arm.rows // arm.trainers)]
    script = [sys.executable, "-m", "benchmarks.dct.quality", *words]
    launcher = [sys.executable, "-m", "benchmarks.launcher", "-np", str(arm.trainers), "--gloo", "--disable-cache"]
    command = [*launcher, *script] if arm.trainers > 1 else script
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **_QUIET}, capture_output=True, text=True)
    lines = [line.partition("outcome ")[2] for line in ended.stdout.splitlines() if "outcome {" in line]
    if ended.returncode or len(lines) != 1:
        raise RuntimeError(f"{arm.name}, seed {seed} ended with status {ended.returncode}: {ended.stderr[-2000:]}")
    outcome = {**json.loads(lines[0]), "arm": arm.name, "seed": seed, "fingerprint": arm.fingerprint(rows, seed)}
    append(store, outcome)
    return f"{arm.name}, seed {seed}: {outcome['loss']:.5f}"


def load(store: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Finished runs, by their fingerprints."""
    lines = store.read_text().splitlines() if store.exists() else []
    return {each["fingerprint"]: each for each in map(json.loads, lines)}


def told(losses: dict[str, dict[int, float]], arms: Sequence[Arm], rows: str) -> Section:
    """The table and the verdicts, of the seeds that an arm and what it is compared with both have."""
    lines = [
        f"Index {rows[:16]}.",
        "",
        "| | test loss | against dense, in % of its loss | seeds |",
        "|---|---|---|---|",
    ]
    figures: dict[str, Any] = {"index": rows, "losses": losses, "differences": {}}
    for arm in (each for each in arms if losses[each.name]):
        own, reference = losses[arm.name], losses[arm.reference]
        seeds = sorted(set(own) & set(reference))
        mean, half = difference([own[seed] for seed in seeds], [reference[seed] for seed in seeds])
        figures["differences"][arm.name] = [mean, half]
        compared = "" if arm.name == arm.reference else _shown(mean, half)
        lines.append(f"| {arm.name} | {np.mean([*own.values()]):.5f} | {compared} | {len(seeds)} |")
    judged = [each for each in arms if each.name in HYBRIDS and each.name in figures["differences"]]
    verdicts = [_verdict(each, figures["differences"]) for each in judged]
    return Section(TITLE, lines, figures, verdicts)


def _verdict(arm: Arm, differences: dict[str, list[float]]) -> Verdict:
    """Within `WANTED` of dense training, or within what as many seeds resolve: half of the interval of equal arms."""
    mean, half = differences[arm.name]
    _, resolved = differences.get(AGAIN_OF.get(arm.reference, ""), (0.0, math.inf))
    allowed, target = WANTED, f"<= +{WANTED:.1%}"
    if WANTED < resolved < math.inf:
        allowed, target = resolved, f"{target}, or +{resolved:.2%} that equal arms may differ by"
    what = f"test loss, {arm.name}, against dense with two trainers"
    return Verdict(what, target, _shown(mean, half), mean <= allowed)


def _shown(mean: float, half: float) -> str:
    """With its interval, which a single seed has none of."""
    return f"{mean:+.2%} ({mean - half:+.2%} to {mean + half:+.2%})" if math.isfinite(half) else f"{mean:+.2%}"


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The mean paired difference, and half of its 95% interval, as shares of the other's mean."""
    found = paired.difference(np.divide(one, np.mean(other)), np.divide(other, np.mean(other)))
    return found.mean, found.half


def main() -> None:
    """One run: trains, and prints the test's figures."""
    outcome = recommender.train(recommender.parse())
    if recommender.hvd.rank() == 0:
        print("outcome", json.dumps(outcome.test), flush=True)


if __name__ == "__main__":
    main()

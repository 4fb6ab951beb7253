"""How well translation trains with thresholded activations (Tables 4 and 5, Remark 1): `--questions translation`.

The Transformer of examples/split_translation.py is trained in one process on one core, for ten epochs of the machine's
message catalogues with a cosine learning rate, and is judged by the BLEU of greedy translations of the test set. A step
has as many tokens as the four ranks of the convergence study together, and the rate is dense training's best there, 1.5
times the script's. That model has one feed-forward layer in the encoder and one in the decoder, so that it can have two
splits. Four and eight splits use a deeper model, of four layers each. Its rate is 1/4, 1/2 or 1 times the script's,
whichever validates best in its dense training with the first seed.

Splits are `Threshold` layers, which compute what stages compute, to the bit. With the same seed all arms of a model
start from the same weights and see the same batches. Differences are paired by seed, with Student's 95% interval; "A/A"
is dense training with a learning rate 1% larger.

The study is a queue. Each finished run is a line of benchmarks/results/dct_translation_runs.jsonl, and is not repeated
as long as its options, sources and messages are the same. 8 seeds of 15 arms, and the choice of a rate, are some 120
runs of ten epochs, which takes a day or more; `--seeds`, `--arms` and `--epochs` take fewer, and `--finished` reports
the runs there are.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.convergence.rank import rounded
from benchmarks.convergence.settings import TranslationSettings
from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies.jobs import on_cores
from benchmarks.studies.paired import STUDENT, Difference, difference, spread
from benchmarks.studies.sources import ROOT, fingerprint_of
from benchmarks.studies.store import Make, finished
from benchmarks.studies.worker import work_off
from examples import split_translation, translation
from examples.text import corpus

STORE = ROOT / "benchmarks" / "results" / "dct_translation_runs.jsonl"
SEEDS = 8
TITLE = "BLEU of the Transformer"
WANTED = 0.5  # points of BLEU
FEWEST = 3  # epochs: one more than the longest warm-up
_SOURCES = [
    *(f"examples/{name}.py" for name in ("split_translation", "translation", "models/splits", "models/transformer")),
    *(f"examples/text/{name}.py" for name in ("batches", "catalogues", "corpus", "decoding", "vocabulary")),
]

_USUAL = ("--reduced", "--schedule", "cosine", "--batch-size", "2048", "--every", "1000")  # only evaluated at the end
_DEEPER = (*_USUAL, "--layers", "4", "--warmup-epochs", "2")
MODELS = {"small": TranslationSettings(_USUAL), "deep": TranslationSettings(_DEEPER)}
RATES = {"small": (1.5,), "deep": (0.25, 0.5, 1.0)}  # in units of the script's


@dataclasses.dataclass(frozen=True)
class Arm:
    """How a Transformer is trained.

    Attributes:
        name: in tables.
        model: a key of `MODELS`.
        words: command-line options beside those of the model.
        against: the arm that it is compared with.
        rate: learning rate, in units of that of the model's dense training.
    """

    name: str
    model: str
    words: tuple[str, ...]
    against: str
    rate: float = 1.0


def _split(sparsity: float, splits: int, *others: str) -> tuple[str, ...]:
    return ("--sparsity", str(sparsity), "--splits", str(splits), *others)


_DENSE, _DROPOUT = ("--sparsity", "0"), ("--dropout", "0.1")
ARMS = {
    "dense": Arm("dense", "small", _DENSE, "dense"),
    "again": Arm("dense, A/A", "small", _DENSE, "dense", 1.01),
    "one90": Arm("90%, one split", "small", _split(0.9, 1), "dense"),
    "one95": Arm("95%, one split", "small", _split(0.95, 1), "dense"),
    "one98": Arm("98%, one split", "small", _split(0.98, 1), "dense"),
    "two90": Arm("90%, two splits", "small", _split(0.9, 2), "dense"),
    "before90": Arm("90%, one split, before the ReLU", "small", _split(0.9, 1, "--before-relu"), "one90"),
    "dropout": Arm("dense, dropout .1", "small", (*_DENSE, *_DROPOUT), "dense"),
    "dropout90": Arm("90%, one split, dropout .1", "small", _split(0.9, 1, *_DROPOUT), "dropout"),
    "deep": Arm("four layers, dense", "deep", _DENSE, "deep"),
    "deep_again": Arm("four layers, dense, A/A", "deep", _DENSE, "deep", 1.01),
    "deep_one": Arm("four layers, 90%, one split", "deep", _split(0.9, 1), "deep"),
    "deep_two": Arm("four layers, 90%, two splits", "deep", _split(0.9, 2), "deep"),
    "deep_four": Arm("four layers, 90%, four splits", "deep", _split(0.9, 4), "deep"),
    "deep_eight": Arm("four layers, 90%, eight splits", "deep", _split(0.9, 8), "deep"),
}
DENSE = {"small": "dense", "deep": "deep"}
JUDGED = ("one90", "two90", "deep_eight")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of the study.

    Attributes:
        arm: a key of `ARMS`.
        seed: seed of weights and order.
        rate: learning rate of the model's dense training, in units of the script's.
        epochs: replaces the model's own number; 0 keeps it.
    """

    arm: str
    seed: int
    rate: float
    epochs: int = 0

    def settings(self) -> TranslationSettings:
        """The arm's settings, with this run's rate and epochs."""
        arm = ARMS[self.arm]
        own = MODELS[arm.model].at(arm.rate * self.rate, self.epochs)
        return dataclasses.replace(own, options=(*own.options, *arm.words))

    def fingerprint(self) -> str:
        """A hash of everything that determines the run's outcome; what the arm does counts, not its name."""
        settings = self.settings()
        told = [dataclasses.asdict(settings), self.seed, data_of(ARMS[self.arm].model)]
        return fingerprint_of(told, _SOURCES)


def data_of(model: str) -> str:
    """A digest of the machine's sentence pairs; RuntimeError if it has too few."""
    options = split_translation.parse(MODELS[model].options)
    return _digest(options.catalogues, options.least_words, options.most_words)


@functools.cache
def _digest(*given: Any) -> str:
    return corpus.digest(corpus.of_catalogues(*given))


# ---- the queue ----


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    group = parser.add_argument_group("translation")
    group.add_argument("--arms", default=",".join(ARMS), help=f"from {','.join(ARMS)} (default: all)")
    group.add_argument("--epochs", type=int, default=0, help="number of epochs (default: 10)")


def problem(options: argparse.Namespace) -> str | None:
    """Why the options are invalid; None if they are valid."""
    if not set(options.arms.split(",")) <= set(ARMS):
        return f"expected arms from {', '.join(ARMS)}, got {options.arms}"
    if 0 < options.epochs < FEWEST:
        return f"expected at least {FEWEST} epochs, got {options.epochs}"
    if options.seeds is not None and not 1 <= options.seeds <= len(STUDENT):
        return f"expected 1 to {len(STUDENT)} seeds, got {options.seeds}"
    return None


def measure(options: argparse.Namespace, say: Callable[[str], None], store: pathlib.Path = STORE) -> Section:
    """Makes the runs that are missing in the store, seed by seed, and reports on all in it."""
    arms = [arm for arm in ARMS if arm in options.arms.split(",")]
    try:
        for model in {ARMS[arm].model for arm in arms}:
            data_of(model)
    except RuntimeError as without:
        return Section(TITLE, [f"Not measured: {without}"], {}, [])
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = trained(arms[:2], range(1), FEWEST, pathlib.Path(folder) / STORE.name, make)
    else:
        seeds = range(options.seeds or SEEDS)
        outcomes = trained(arms, seeds, options.epochs, store, None if options.finished else make)
    say(f"{sum(outcome['seconds'] for outcome in outcomes.values()) / 60:.0f} minutes of training")
    return told(outcomes, arms)


def trained(
    arms: Sequence[str], seeds: Sequence[int], epochs: int, store: pathlib.Path, make: Make | None
) -> dict[Run, dict[str, Any]]:
    """The outcomes of all arms, each at its model's rate, seed by seed.

    Args:
        arms: keys of `ARMS`.
        seeds: seeds of each arm.
        epochs: replaces the models' own numbers; 0 keeps them.
        store: file of finished runs.
        make: makes runs and adds them to the store; None uses only those in the store.
    """
    models = {ARMS[arm].model for arm in arms}
    grid = [Run(DENSE[model], seeds[0], rate, epochs) for model in sorted(models) for rate in RATES[model]]
    tried = finished([run for run in grid if len(RATES[ARMS[run.arm].model]) > 1], store, make)
    rates = {model: best_rate(tried, model) for model in models}
    wanted = [Run(arm, seed, rates[ARMS[arm].model], epochs) for seed in seeds for arm in arms]
    return finished(wanted, store, make)


def best_rate(tried: Mapping[Run, Mapping[str, Any]], model: str) -> float:
    """The rate at which a model's dense training validates best; the first one if none was tried."""
    errors = {run.rate: outcome["error"] for run, outcome in tried.items() if ARMS[run.arm].model == model}
    return min(errors, key=lambda rate: errors[rate]) if errors else RATES[model][0]


def make(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs, with one process per core; RuntimeError if one fails."""
    on_cores(wanted, store, "benchmarks.dct.translation")


def train(run: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a run of a job; final: BLEU on test data; loss and top1: on test data, with teacher forcing;
    error: validation loss; fitted: loss of the last epoch of training."""
    given = TranslationSettings(**{**run["settings"], "options": tuple(run["settings"]["options"])})
    words = [*given.options, "--epochs", str(given.epochs), "--seed", str(run["seed"])]
    usual = split_translation.parse(words)
    options = split_translation.parse([*words, "--learning-rate", str(given.rate * usual.learning_rate)])
    keras.utils.clear_session()
    outcome = split_translation.train(options, _task(MODELS[ARMS[run["arm"]].model].options))
    last, test = outcome.lines[-1], outcome.test
    ends = {"error": last["loss"], "fitted": last["train_loss"], "weights": outcome.weights[:16]}
    return {"final": test["bleu"], "loss": test["loss"], "top1": 100.0 * test["top1"], **ends}


@functools.cache
def _task(words: tuple[str, ...]) -> translation.Task:
    return translation.prepare(split_translation.parse(words))


def line(outcome: dict[str, Any]) -> str:
    """A line of progress."""
    return (
        f"{ARMS[outcome['arm']].name}, seed {outcome['seed']}: BLEU {outcome['final']:.2f}, loss "
        f"{outcome['loss']:.3f}, {outcome['seconds']:.0f} s"
    )


# ---- results ----


def told(outcomes: Mapping[Run, Mapping[str, Any]], arms: Sequence[str]) -> Section:
    """The table and the verdicts, of the seeds that an arm and what it is compared with both have."""
    lines = [
        "| | test BLEU | compared with | BLEU, difference | test loss | loss, difference | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    figures: dict[str, Any] = {"final": {}, "loss": {}, "differences": {}}
    verdicts = []
    for arm in (each for each in arms if _by_seed(outcomes, each, "final")):
        scores, losses = _by_seed(outcomes, arm, "final"), _by_seed(outcomes, arm, "loss")
        figures["final"][arm], figures["loss"][arm] = scores, losses
        gaps = [_gap(outcomes, arm, what) for what in ("final", "loss")]
        more = ["" if gap is None else gap.told(digits) for gap, digits in zip(gaps, (2, 3), strict=True)]
        against = "" if gaps[0] is None else ARMS[ARMS[arm].against].name
        shown = [spread([*scores.values()]), against, more[0], f"{np.mean([*losses.values()]):.3f}", more[1]]
        lines.append(f"| {ARMS[arm].name} | {' | '.join(shown)} | {len(scores)} |")
        if gaps[0] is not None:
            figures["differences"][arm] = {**dataclasses.asdict(gaps[0]), "against": ARMS[arm].against}
            verdicts += [_verdict(arm, gaps[0])] if arm in JUDGED else []
    rates = {ARMS[run.arm].model: run.rate for run in outcomes}
    told_of = ", ".join(f"{rate:g} ({model})" for model, rate in sorted(rates.items()))
    if rates:
        lines += ["", f"Learning rates in units of the script's, the same for all arms of a model: {told_of}."]
    return Section(TITLE, lines, {**figures, "rates": rates}, verdicts)


def _verdict(arm: str, gap: Difference) -> Verdict:
    seeds = "1 seed" if gap.pairs == 1 else f"{gap.pairs} seeds"
    what = f"BLEU, {ARMS[arm].name} - {ARMS[ARMS[arm].against].name}, {seeds}"
    return Verdict(what, f">= -{WANTED}", str(gap), gap.mean >= -WANTED)


def _by_seed(outcomes: Mapping[Run, Mapping[str, Any]], arm: str, what: str) -> dict[int, float]:
    return {run.seed: outcome[what] for run, outcome in outcomes.items() if run.arm == arm}


def _gap(outcomes: Mapping[Run, Mapping[str, Any]], arm: str, what: str) -> Difference | None:
    """An arm's difference from its reference; None if it is its own, or they have no seed in common."""
    one, other = (_by_seed(outcomes, each, what) for each in (arm, ARMS[arm].against))
    seeds = sorted(set(one) & set(other))
    if ARMS[arm].against == arm or not seeds:
        return None
    return difference([one[seed] for seed in seeds], [other[seed] for seed in seeds])


if __name__ == "__main__":
    work_off(__doc__, train, rounded, line)

"""How long a translation model takes to a score on sharded servers (Aji and Heafield 2017, Tables 1 and 2).

The study of gradient dropping says after how many steps each arm reaches the score, in simulated time; bench_servers.py
measures how many steps a second its ranks make on a link, and how much of a step is computation.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.dropping.report import NEAR, best_rate, near
from benchmarks.dropping.runs import STORE, Run, options_of
from benchmarks.dropping.settings import ARMS as STUDIED
from benchmarks.dropping.settings import MODELS
from benchmarks.reporting.report import Section
from benchmarks.studies.store import load

_RATES, _SEEDS = (0.35, 0.5, 0.7, 1.0, 1.5), range(8)  # where the store may have runs


class Arm(NamedTuple):
    """A way to train.

    Attributes:
        name: in results.
        model: a key of the study's models, which differ by their batches.
        arm: a key of the study's arms.
    """

    name: str
    model: str
    arm: str


_MODELS = ("lstm", "lstm1280")
_COMPARED = ("dense", "updates_ahead")
ARMS = [Arm(f"{model} {arm}", model, arm) for model in _MODELS for arm in _COMPARED]


def curve_of(model: str, arm: str) -> list[float]:
    """The score on validation data at each evaluation, a mean over the seeds at the rate that validated best; empty if
    the study has no such run on this machine's data."""
    runs = load(STORE, [Run(model, arm, rate, seed) for rate in _RATES for seed in _SEEDS])
    if not runs:
        return []
    best = best_rate(runs, model, arm)
    return np.mean([outcome["curve"] for run, outcome in runs.items() if run.rate == best], 0).tolist()


def reached(curve: Sequence[float], score: float) -> float:
    """The share of a training after which a curve has reached a score, between evaluations linearly; inf if never."""
    scores = [0.0, *curve]
    for number, (before, after) in enumerate(zip(scores, scores[1:], strict=False)):
        if after >= score:
            return (number + (score - before) / (after - before)) / len(curve)
    return np.inf


def section_of(measured: Mapping[str, Any], ranks: int) -> Section:
    """The answer, from the results of `bench_servers.measure_translation` by link."""
    lines = [
        "The LSTM of the study of gradient dropping, real gradients; batches are in pieces. Steps a second are of all "
        "ranks (least to most), which share the cores; a step is computing and the rest, which is waiting for servers, "
        f"selection and applying. Steps to {NEAR:.0%} of what `{STUDIED['dense'].name}` ends at with the same batches "
        "come from the study, on validation data.",
        "",
        *lines_of(measured, ranks),
    ]
    return Section("Time to a score", lines, _figures(measured), [])


def _figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Steps a second and seconds of computation per step, by link and arm."""
    told = {}
    for link, results in measured.items():
        rows = {arm.name: _row(arm, results, [], np.inf) for arm in ARMS}
        told[link] = {name: {"rates": row.rates, "computing": row.computing} for name, row in rows.items()}
    return told


def lines_of(measured: Mapping[str, Any], ranks: int) -> list[str]:
    """The table, from the results of `bench_servers.measure_translation` by link."""
    curves = {arm.name: curve_of(arm.model, arm.arm) for arm in ARMS}
    lines = [
        f"| link | batch | arm | steps a second | computing ms | other ms | steps to {NEAR:.0%} | seconds | gain |",
        "|---" * 9 + "|",
    ]
    for link, results in measured.items():
        for model in _MODELS:
            of_model = [arm for arm in ARMS if arm.model == model]
            base = curves[of_model[0].name]
            score = near(base) if base else np.inf
            rows = [_row(arm, results, curves[arm.name], score) for arm in of_model]
            lines += [f"| {link} | {options_of(model).batch_size} | {_told(row, rows[0], ranks)} |" for row in rows]
    return lines


class _Row(NamedTuple):
    arm: str
    rates: list[float]
    computing: float
    steps: float


def _row(arm: Arm, results: Mapping[str, Any], curve: Sequence[float], score: float) -> _Row:
    windows = [window["ranks"] for window in results["windows"] if window["arm"] == arm.name]
    rates = [sum(rank["steps"] / rank["seconds"] for rank in told) for told in windows]
    every = [rank for told in windows for rank in told]
    computing = sum(rank["computed"] for rank in every) / sum(rank["steps"] for rank in every)
    batches = MODELS[arm.model].epochs * results["batches"][arm.name]
    return _Row(STUDIED[arm.arm].name, rates, computing, batches * reached(curve, score))


def _told(row: _Row, base: _Row, ranks: int) -> str:
    rate = statistics.median(row.rates)
    step, seconds = ranks / rate, row.steps / rate
    gain = base.steps / statistics.median(base.rates) / seconds
    told = f"{row.steps:.0f} | {seconds:.0f} | {gain:.2f}" if np.isfinite(gain) else "no runs | | "
    spread = f"{rate:.1f} ({min(row.rates):.1f} to {max(row.rates):.1f})"
    return f"{row.arm} | {spread} | {1e3 * row.computing:.0f} | {1e3 * (step - row.computing):.0f} | {told}"

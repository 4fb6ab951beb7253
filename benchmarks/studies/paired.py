"""Differences of arms that are paired by seed, and the learning rate at which each arm is trained.

A run has a model, an arm, a rate and a seed. Differences have Student's 95% interval.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.studies import store

Outcomes = Mapping[Any, Mapping[str, Any]]  # of runs

# Two-sided 95% quantiles of Student's distribution, by degrees of freedom.
STUDENT = (
    *(math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262),
    *(2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two arms over paired seeds.

    Attributes:
        mean: mean difference, in points.
        half: half-width of the 95% interval, in points; infinite for a single pair.
        pairs: number of pairs.
    """

    mean: float
    half: float
    pairs: int

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + self.half

    def __str__(self) -> str:
        return self.told(2)

    def told(self, digits: int) -> str:
        """As text with `digits` decimals; a single pair has no interval."""
        mean, low, high = (f"{each:+.{digits}f}" for each in (self.mean, self.low, self.high))
        return f"{mean} ({low} to {high})" if self.pairs > 1 else mean


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """The mean of one - other with Student's interval; ValueError if they do not pair."""
    if len(one) != len(other) or not 1 <= len(one) <= len(STUDENT):
        raise ValueError(f"Expected 1 to {len(STUDENT)} pairs, got {len(one)} and {len(other)} values.")
    gaps = np.subtract(one, other)
    count = len(gaps)
    half = STUDENT[count - 1] * float(np.std(gaps, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    return Difference(float(np.mean(gaps)), half, count)


def by_seed(outcomes: Outcomes, model: str, arm: str, what: str = "final") -> dict[int, Any]:
    """The results of an arm's runs, in the order of their seeds."""
    own = {run.seed: outcome[what] for run, outcome in outcomes.items() if (run.model, run.arm) == (model, arm)}
    return dict(sorted(own.items()))


def gap_of(outcomes: Outcomes, model: str, one: str, other: str, what: str = "final") -> Difference | None:
    """One arm less the other, over the seeds that both have finished; None if there is none."""
    ones, others = (by_seed(outcomes, model, arm, what) for arm in (one, other))
    both = [seed for seed in ones if seed in others]
    return difference([ones[seed] for seed in both], [others[seed] for seed in both]) if both else None


def spread(values: Sequence[float]) -> str:
    """The mean and the standard deviation over seeds, as text."""
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def rates_of(outcomes: Outcomes, model: str, arm: str) -> list[float]:
    """The learning rates that an arm was trained at."""
    return sorted({run.rate for run in outcomes if (run.model, run.arm) == (model, arm)})


def best_rate(outcomes: Outcomes, model: str, arm: str, error: Callable[[Any], float]) -> float:
    """The learning rate with the least mean error over the seeds that were trained at all rates; of equals the lowest.

    Args:
        outcomes: by run.
        model: of the runs.
        arm: of the runs.
        error: of an outcome.
    """
    errors: dict[float, dict[int, float]] = {}
    for run, outcome in outcomes.items():
        if (run.model, run.arm) == (model, arm):
            errors.setdefault(run.rate, {})[run.seed] = error(outcome)
    seeds = set.intersection(*(set(each) for each in errors.values()))
    if not seeds:
        raise ValueError(f"Expected a seed of {model} {arm} that was trained at all of {sorted(errors)}, got none.")
    means = {
        rate: float(np.mean([each for seed, each in found.items() if seed in seeds])) for rate, found in errors.items()
    }
    return min(means, key=lambda rate: (means[rate], rate))


class Search(NamedTuple):
    """Trainings of arms, each at its own best learning rate.

    Attributes:
        store: of finished runs.
        make: makes runs; None uses only those in the store.
        rates: the grid of learning rates.
        searched: the number of seeds that try all rates.
        seeds: the number of seeds of an arm.
        follows: arms that train at the best rate of another one.
        run: makes a run of (model, arm, rate, seed).
        best: the best rate of (outcomes, model, arm).
    """

    store: pathlib.Path
    make: store.Make | None
    rates: Sequence[float]
    searched: int
    seeds: Callable[[str], int]
    follows: Mapping[str, str]
    run: Callable[[str, str, float, int], Any]
    best: Callable[[Outcomes, str, str], float]

    def outcomes(self, asked: Mapping[str, Sequence[str]]) -> tuple[Outcomes, dict[str, dict[str, list[float]]]]:
        """The outcomes of each model's arms at their best learning rates, and the rates tried by model and arm.

        Makes the runs that are missing in the store.
        """
        pairs = [(model, arm) for model, arms in asked.items() for arm in arms]
        grid = [
            self.run(model, arm, rate, seed)
            for model, arm in pairs
            for rate in (self.rates if arm not in self.follows else ())
            for seed in range(self.searched)
        ]
        tried = store.finished(grid, self.store, self.make)
        rates = {model: {arm: rates_of(tried, model, arm) for arm in arms} for model, arms in asked.items()}
        best = {(model, arm): self.best(tried, model, arm) for model, arm in pairs if rates[model][arm]}
        followed = {
            (model, arm): best.get((model, self.follows[arm]), 1.0) for model, arm in pairs if arm in self.follows
        }
        wanted = [
            self.run(model, arm, rate, seed)
            for (model, arm), rate in {**best, **followed}.items()
            for seed in range(self.seeds(arm))
        ]
        return store.finished(wanted, self.store, self.make), rates

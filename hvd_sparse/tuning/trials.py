"""Times recipes on random vectors like the one that the best of them is to exchange."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import commit
from hvd_sparse.spec import Spec
from hvd_sparse.transport import timing

# A recipe whose trial takes more than its part of the budget is skipped if it would have to be this many times as fast
# as predicted to win. The model knows neither how the ranks disturb each other nor how the transport handles small
# messages; a larger factor costs seconds at start-up, a smaller one may cost time in the whole training.
HOPELESS = 3.0
WARM = 5  # rounds before any counts, if they take milliseconds
ROUNDS = 60  # if the budget allows: with 20 ms each, two cores shared by four ranks, the median of 15 is off by 5%
LEAST = 3  # rounds that are always made
ENOUGH = 8  # rounds before a slightly slower candidate is dropped: fewer do not show the noise
FAR = 2.0  # a candidate is dropped if its best round takes more than this many times the fastest one's
TIE = 0.03  # relative difference in time below which two candidates count as equally fast
# Share of dense's time that a candidate which sends only a part must save: it costs accuracy or steps for certain, and
# the medians of two trials of the same candidates have differed by 7%, so less than this may be nothing at all.
SAVED = 0.1
ROUND_SHARE = 0.1  # share of the budget that a round of the fastest candidate may take with several vectors in flight
AT_ONCE = 4  # most vectors in flight: these fill the links, and each needs memory for its residuals
LARGE = 1 << 18  # elements of a vector from which trials end with a garbage collection, to free the residuals


class TrialTimes(NamedTuple):
    """The times of the recipes that were tried, and the bytes that they sent.

    Attributes:
        seconds: by name, the slowest rank's time of each round that counts; a round exchanges several vectors
            (`at_once`). For candidates that fell far behind, the rounds until then, or the best round before any
            counted.
        sent: by name, payload bytes that a node sends to other nodes for one vector.
    """

    seconds: dict[str, list[float]]
    sent: dict[str, float]

    @classmethod
    def of(cls, figures: Mapping[str, Any], names: Sequence[str]) -> TrialTimes:
        """From the result of `_asdict`; raises KeyError, TypeError or ValueError if it is not of these recipes."""
        seconds, sent = figures["seconds"], figures["sent"]
        if not seconds or set(seconds) - set(names) or not all(seconds.values()):
            raise ValueError(f"rounds of {list(seconds)}")
        return cls(
            {name: [_positive(each) for each in rounds] for name, rounds in seconds.items()},
            {name: float(sent[name]) for name in seconds},
        )


def at_once(spec: Spec, fastest: float, budget: float) -> int:
    """The number of vectors in flight in trials: as many as in training, up to `AT_ONCE`, fewer if that takes long.

    A recipe that sends less gains more if several vectors share the links; alone, much of an exchange is latency and
    selection. If one vector takes long, the links are the limit, and one shows as much as several.

    Args:
        spec: the spec of each vector.
        fastest: predicted seconds of the fastest candidate for one vector.
        budget: seconds for all rounds.
    """
    affordable = int(ROUND_SHARE * budget / fastest) if fastest > 0 else AT_ONCE
    return max(1, min(spec.in_flight, AT_ONCE, affordable))


def run_trials(
    candidates: Sequence[tuple[str, Aggregator]],
    spec: Spec,
    predicted: Mapping[str, float],
    together: int,
    budget: float,
    tell: Callable[[str], None],
) -> TrialTimes:
    """Exchanges random vectors with each candidate in turn, as many at once as in training; a collective.

    All decisions on the way are made from figures that all ranks share.

    Args:
        candidates: (name, aggregator) of each candidate.
        spec: the spec of each vector.
        predicted: predicted seconds of a round of each; the same on every rank. The most promising is tried first; one
            is skipped if its prediction exceeds `HOPELESS` times the fastest time so far and it takes long to try.
        together: vectors in a round; see `at_once`.
        budget: seconds of rounds, of candidates that may still win, after which no further round begins; `LEAST` are
            always made.
        tell: called with a line that says what is being done.
    """
    times = _run_trials(dict(candidates), spec, predicted, together, budget, tell)
    if spec.size >= LARGE:
        gc.collect()  # a function and its graph refer to each other and to residuals of the vector's size
    return times


def _run_trials(
    aggregators: Mapping[str, Aggregator],
    spec: Spec,
    predicted: Mapping[str, float],
    together: int,
    budget: float,
    tell: Callable[[str], None],
) -> TrialTimes:
    vectors = [_drawn(spec, spec.number + each) for each in range(together)]
    affordable = budget / (2 * len(aggregators))  # seconds per candidate for the rounds with which all begin
    trials: dict[str, _Trial] = {}
    for name in sorted(aggregators, key=predicted.__getitem__):
        least = min((trial.best for trial in trials.values()), default=math.inf)
        if predicted[name] > max(HOPELESS * least, affordable):
            continue
        tell(f"trying {name} ...")
        trials[name] = _Trial(aggregators[name], spec._replace(name=f"{spec.name}.trial.{name}"), vectors)
        trials[name].begin(min(WARM, 1 + int(affordable / predicted[name])) if predicted[name] > 0 else WARM)
    in_running = worth_rounds({name: trial.best for name, trial in trials.items()}, predicted)
    if len(in_running) > 1:
        for name in in_running:
            trials[name].seconds = []
    for number in range(ROUNDS):
        in_running = still_in_running({name: trials[name].seconds for name in in_running})
        if len(in_running) == 1 or (number >= LEAST and sum(trials[name].spent for name in in_running) > budget):
            break
        # Each round begins with another candidate; otherwise the same one would always run after the same other one.
        first = number % len(in_running)
        for name in in_running[first:] + in_running[:first]:
            trials[name].exchange()
    seconds = {name: trial.seconds for name, trial in trials.items()}
    return TrialTimes(seconds, {name: trial.sent for name, trial in trials.items()})


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The first candidate that was in the running to the end and is within `TIE` of the smallest median.

    Args:
        seconds: the seconds of each round by name, in order of preference.
    """
    last = max(len(rounds) for rounds in seconds.values())
    final = {name: rounds for name, rounds in seconds.items() if len(rounds) == last}
    medians = timing.medians({name: final[name] for name in still_in_running(final)})
    least = min(medians.values())
    return next(name for name, median in medians.items() if median <= (1 + TIE) * least)


def chosen(seconds: Mapping[str, Sequence[float]], whole: Collection[str]) -> str:
    """The `fastest` candidate; one that sends only a part must clearly beat the fastest of those that send everything.

    Args:
        seconds: the seconds of each round by name, in order of preference.
        whole: the names of the candidates that send everything.
    """
    first = fastest(seconds)
    of_whole = {name: rounds for name, rounds in seconds.items() if name in whole}
    if first in whole or not of_whole:
        return first
    instead = fastest(of_whole)
    return first if clearly_beats(seconds[first], seconds[instead]) else instead


def still_in_running(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """The candidates that may still win, by their best round while rounds are too few to show the noise, then by all.

    Args:
        seconds: the seconds of each round by name, equally many for each.
    """
    rounds = min(len(each) for each in seconds.values())
    if rounds < 2:
        return list(seconds)
    if rounds < ENOUGH:
        least = min(min(each) for each in seconds.values())
        return [name for name, each in seconds.items() if min(each) <= FAR * least]
    medians = timing.medians(seconds)
    best = min(medians, key=medians.__getitem__)
    return [name for name, each in seconds.items() if not beats(seconds[best], each)]


def worth_rounds(best: Mapping[str, float], predicted: Mapping[str, float]) -> list[str]:
    """The candidates that may still win after their first rounds: not far behind, or not predicted to be.

    Args:
        best: seconds of the best round of each.
        predicted: predicted seconds of a round of each.
    """
    far = FAR * min(best.values())
    return [name for name in best if min(best[name], predicted[name]) <= far]


def beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` is faster by more than the noise: twice the standard error of the median difference.

    Rounds with the same number are compared, as they met the same disturbances.
    """
    gained = _gained(one, other)
    return _beyond_noise(gained) and float(np.median(gained)) > TIE * float(np.median(one))


def clearly_beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` saves more than the noise and `SAVED` of the other's time, and is faster in 3 of 4 rounds."""
    gained = _gained(one, other)
    enough = SAVED * float(np.median(other[: len(gained)]))
    return _beyond_noise(gained) and float(np.median(gained)) > enough and float(np.quantile(gained, 0.25)) > 0.0


def _gained(one: Sequence[float], other: Sequence[float]) -> np.ndarray:
    """The seconds by which `one` was faster in each round of both."""
    count = min(len(one), len(other))
    return np.subtract(other[:count], one[:count])


def _beyond_noise(gained: np.ndarray) -> bool:
    typical = float(np.median(gained))
    deviation = float(np.median(np.abs(gained - typical)))
    error = 1.25 * 1.48 * deviation / math.sqrt(len(gained))  # standard error of a median, for a normal distribution
    return typical > 2 * error


class _Trial:
    """One candidate's states, its exchange as a graph, and its times so far."""

    def __init__(self, aggregator: Aggregator, spec: Spec, vectors: list[tf.Tensor]):
        self.seconds: list[float] = []
        self.spent = 0.0
        self.sent = 0.0
        self._sent = tf.constant(0, tf.int64)
        self._spec, self._vectors = spec, vectors
        specs = [spec._replace(name=f"{spec.name}.{each}", number=spec.number + each) for each in range(len(vectors))]
        # A partial, as TensorFlow would count the traces of separate functions and warn.
        run = functools.partial(_exchange, aggregator, [aggregator.create(each) for each in specs], spec)
        self._run = tf.function(run, autograph=False, jit_compile=False)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def begin(self, rounds: int) -> None:
        """Runs a round that builds the graph, and others of which the best is kept.

        If possible there are several of these: in the first, half of the memory is allocated, and it takes ten times as
        long as a later one.
        """
        world = self._spec.grid.world
        timing.slowest(world, self._wait, "trials")
        everyones = world.allreduce(self._sent, "sum", f"{self._spec.name}.sent")
        self.sent = float(everyones) / self._spec.grid.cross.size / len(self._vectors)
        for _ in range(rounds):
            self.exchange()
        self.seconds, self.spent = [self.best], 0.0

    def exchange(self) -> None:
        """Runs one more round."""
        self.seconds.append(timing.slowest(self._spec.grid.world, self._wait, "trials"))
        self.spent += self.seconds[-1]

    def _wait(self) -> None:
        """Exchanges and waits until the means are computed, even on a GPU."""
        means, self._sent = self._run(self._vectors)
        for mean in means:
            mean[:1].numpy()


def _positive(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"{value} seconds")
    return float(value)


def _exchange(
    aggregator: Aggregator, states: Sequence[AggregatorState], spec: Spec, vectors: list[tf.Tensor]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The means, and the bytes that this rank sent to other nodes."""
    exchanges = [aggregator.exchange(vector, state) for vector, state in zip(vectors, states, strict=True)]
    labels = [state.spec.name for state in states]
    with tf.control_dependencies(commit(exchanges, labels, spec.grid.world, f"{spec.name}.commit")):
        sent = [tf.cast(exchange.metrics["bytes_across"], tf.int64) for exchange in exchanges]
        return [tf.identity(exchange.mean) for exchange in exchanges], tf.add_n(sent)


def _drawn(spec: Spec, number: int) -> tf.Tensor:
    """A random vector, different on each rank like gradients; the user's random numbers are not affected."""
    seed = [spec.grid.world.rank, number]
    return tf.cast(tf.random.stateless_normal([spec.size], seed), spec.dtype)

"""Recipes tried on a vector like the one that one of them is to exchange, and timed."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import commit
from hvd_sparse.spec import Spec
from hvd_sparse.transport import timing

# How many times as fast as predicted a recipe would have to be to win, for it not to be tried where trying it takes
# more than its part of the budget. The model knows neither how the ranks get into each other's way nor what the
# transport does with small messages; a larger factor costs seconds at start-up, a smaller one the whole training.
HOPELESS = 3.0
WARM = 5  # rounds before any counts, where they take milliseconds
ROUNDS = 60  # where the budget allows: of 20 ms each, two cores shared by four ranks, the median of 15 is off by 5%
LEAST = 3  # rounds that are made whatever they take
ENOUGH = 8  # rounds before anybody is dropped for being a little slower: fewer do not tell the noise
FAR = 2.0  # times the best round of the fastest one, beyond which nobody's best round makes a further one worth while
TIE = 0.03  # share of the time below which nobody is the faster one
ROUND_SHARE = 0.1  # of the budget that the fastest candidate's round may take, for there to be several in flight
AT_ONCE = 4  # vectors in flight at most: these fill the links, and each has residuals to be held meanwhile
LARGE = 1 << 18  # elements of a vector whose residuals must not wait for Python to find that nobody wants them


class TrialTimes(NamedTuple):
    """How long the recipes took that were tried, and what they sent.

    Attributes:
        seconds: by name, of each round that counts, of the slowest rank; a round's exchanges follow one another. Of
            those that fell far behind, the rounds until then, or the best one before any counted. A round exchanges
            several vectors: `at_once`.
        sent: by name, payload bytes that a node sends to others for one vector.
    """

    seconds: dict[str, list[float]]
    sent: dict[str, float]

    @classmethod
    def of(cls, figures: Mapping[str, Any], names: Sequence[str]) -> TrialTimes:
        """Out of what `_asdict` gave; KeyError, TypeError or ValueError where it is not of these recipes."""
        seconds, sent = figures["seconds"], figures["sent"]
        if not seconds or set(seconds) - set(names) or not all(seconds.values()):
            raise ValueError(f"rounds of {list(seconds)}")
        return cls(
            {name: [_positive(each) for each in rounds] for name, rounds in seconds.items()},
            {name: float(sent[name]) for name in seconds},
        )


def at_once(spec: Spec, fastest: float, budget: float) -> int:
    """How many vectors trials have in flight: as many as training has, to a bound, and fewer where that takes long.

    What sends less gains more where several share the links: alone, much of an exchange is latency and selection. Where
    one takes long, it is the links that take it, and one tells as much as several.

    Args:
        spec: of each vector.
        fastest: seconds that the fastest candidate is predicted to need for one.
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
    """Exchanges random vectors by each candidate in turn, as many at once as in training; a collective.

    Whatever is decided on the way is decided from figures that all ranks have in common.

    Args:
        candidates: by name.
        spec: of each vector.
        predicted: seconds of a round of each; the same on every rank. Most promising first, each is tried unless it is
            predicted at more than `HOPELESS` times what the fastest so far has really taken, and takes long to try.
        together: vectors of a round; see `at_once`.
        budget: seconds of rounds, of those that may still win, after which no further one begins; `LEAST` are made in
            any case.
        tell: is told what is being done.
    """
    times = _run_trials(dict(candidates), spec, predicted, together, budget, tell)
    if spec.size >= LARGE:
        gc.collect()  # a function and its graph refer to each other, and to residuals of the vector's size
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
    affordable = budget / (2 * len(aggregators))  # seconds of a round of what all begin with
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
        # Each round begins with another one: what a candidate leaves behind would else always fall to the same.
        first = number % len(in_running)
        for name in in_running[first:] + in_running[:first]:
            trials[name].exchange()
    seconds = {name: trial.seconds for name, trial in trials.items()}
    return TrialTimes(seconds, {name: trial.sent for name, trial in trials.items()})


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The first of those that were in the running to the end and take no more than `TIE` above the least median.

    Args:
        seconds: by name, of each round, in the order of preference.
    """
    last = max(len(rounds) for rounds in seconds.values())
    final = {name: rounds for name, rounds in seconds.items() if len(rounds) == last}
    medians = timing.medians({name: final[name] for name in still_in_running(final)})
    least = min(medians.values())
    return next(name for name, median in medians.items() if median <= (1 + TIE) * least)


def still_in_running(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Those that may win yet: by their best round while there are too few to tell the noise, then by all.

    Args:
        seconds: by name, of each round; of all equally many.
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
    """Those that may win yet after rounds by themselves: that were not far behind or, if so, that nobody had foretold.

    Args:
        best: seconds of the best round of each.
        predicted: seconds of a round of each.
    """
    far = FAR * min(best.values())
    return [name for name in best if min(best[name], predicted[name]) <= far]


def beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` is the faster by more than the noise: twice the standard error of the median difference.

    Rounds of the same number are compared, as they met the same disturbances.
    """
    count = min(len(one), len(other))
    gained = np.subtract(other[:count], one[:count])
    typical = float(np.median(gained))
    deviation = float(np.median(np.abs(gained - typical)))
    error = 1.25 * 1.48 * deviation / math.sqrt(count)  # of a median, with the deviation of a normal distribution
    return typical > max(2 * error, TIE * float(np.median(one)))


class _Trial:
    """One candidate's states, its exchange as a graph, and what it has taken so far."""

    def __init__(self, aggregator: Aggregator, spec: Spec, vectors: list[tf.Tensor]):
        self.seconds: list[float] = []
        self.spent = 0.0
        self.sent = 0.0
        self._sent = tf.constant(0, tf.int64)
        self._spec, self._vectors = spec, vectors
        specs = [spec._replace(name=f"{spec.name}.{each}", number=spec.number + each) for each in range(len(vectors))]
        # As a partial: of functions with code of their own TensorFlow would count the traces, and warn.
        run = functools.partial(_exchange, aggregator, [aggregator.create(each) for each in specs], spec)
        self._run = tf.function(run, autograph=False, jit_compile=False)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def begin(self, rounds: int) -> None:
        """A round that makes the graph, and others of which the best is kept.

        One of these is not enough where it can be helped: it has half of the memory given, and takes ten times as long
        as a later one.
        """
        world = self._spec.grid.world
        timing.slowest(world, self._wait, "trials")
        everyones = world.allreduce(self._sent, "sum", f"{self._spec.name}.sent")
        self.sent = float(everyones) / self._spec.grid.cross.size / len(self._vectors)
        for _ in range(rounds):
            self.exchange()
        self.seconds, self.spent = [self.best], 0.0

    def exchange(self) -> None:
        """One more round."""
        self.seconds.append(timing.slowest(self._spec.grid.world, self._wait, "trials"))
        self.spent += self.seconds[-1]

    def _wait(self) -> None:
        """Exchanges and waits until the means are there, also where a GPU makes them."""
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
    """The means, and the bytes that this rank sent to other nodes for them."""
    exchanges = [aggregator.exchange(vector, state) for vector, state in zip(vectors, states, strict=True)]
    labels = [state.spec.name for state in states]
    with tf.control_dependencies(commit(exchanges, labels, spec.grid.world, f"{spec.name}.commit")):
        sent = [tf.cast(exchange.metrics["bytes_across"], tf.int64) for exchange in exchanges]
        return [tf.identity(exchange.mean) for exchange in exchanges], tf.add_n(sent)


def _drawn(spec: Spec, number: int) -> tf.Tensor:
    """A vector that is another one on each rank, as gradients are; the user's random numbers are not touched."""
    seed = [spec.grid.world.rank, number]
    return tf.cast(tf.random.stateless_normal([spec.size], seed), spec.dtype)

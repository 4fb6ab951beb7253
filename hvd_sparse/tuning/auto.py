"""Chooses the fastest of several aggregators by measurement."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from hvd_sparse import costs
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.delegating import Delegating
from hvd_sparse.compression.selection import check_density
from hvd_sparse.spec import Spec, describe
from hvd_sparse.transport import timing
from hvd_sparse.transport.communicator import Communicator
from hvd_sparse.tuning import links, trials
from hvd_sparse.tuning.cache import MeasurementCache
from hvd_sparse.tuning.trials import TIE, TrialTimes, at_once, run_trials

BUDGET = 4.0  # seconds
_log = logging.getLogger(__name__)


class _Chosen(AggregatorState):
    """The state of the chosen candidate, as `inner`, and the candidate's name."""

    def __init__(self, spec: Spec, communicator: Communicator, inner: AggregatorState, choice: str):
        super().__init__(spec, communicator, inner)
        self.choice = choice


@dataclasses.dataclass(frozen=True)
class Auto(Delegating):
    """Exchanges each vector with the aggregator that is fastest for it on this cluster.

    The choice is made when the state of a vector is created. The links and the memory of the cluster are measured once.
    The cost model (`costs`) rules out candidates that are not worth trying. The others exchange random vectors like
    this one, in turn, for a few seconds, as many at once as are in flight in training (at most four, and fewer if that
    takes long). The fastest by the median is chosen; among those within 3% of it, the first in the list. A candidate
    that sends only a part of the gradient must save a tenth of the time of the fastest that sends all of it, and more
    than the noise, and be faster in three of four rounds; otherwise that one is chosen. A printed line says which and
    why, with both times. The measurements are kept for vectors of the same size and, for a week, for runs on the same
    cluster (`tuning.cache`), which then choose the same without delay; `python -m hvd_sparse.planner` measures again.
    All ranks choose the same: they use the figures of the first rank, or of all.

    With a single rank, or a single candidate, the first candidate is chosen.

    Attributes:
        density: the density of the sparse candidates, for the cost model.
        candidates: (name in `costs.MODELS`, aggregator), the preferred ones first: those that send the whole gradient.
            Without a dense candidate the choice can be slower than dense.
        budget: seconds after which no further round of exchanges is begun for a vector.

    Steps and bytes sent per rank: those of the chosen aggregator.
    """

    disk_name = "Auto"
    goes_by_nodes = True
    density: float
    candidates: tuple[tuple[str, Aggregator], ...]
    budget: float = BUDGET

    def __post_init__(self):
        check_constant(self.density)
        names = [name for name, _ in self.candidates]
        unknown = [name for name in names if name not in costs.MODELS]
        if not names or unknown or len(set(names)) < len(names):
            raise ValueError(f"Expected distinct candidates from {', '.join(costs.MODELS)}, got {names}.")
        if not self.budget >= 0:
            raise ValueError(f"Expected a budget of at least 0 seconds, got {self.budget}.")

    @property
    def sends_all(self):
        """Whether every candidate sends everything, as this must not depend on the choice for a vector."""
        return all(aggregator.sends_all for _, aggregator in self.candidates)

    def at_density(self, density):
        """Every candidate at that density; the choice stays the same."""
        return Auto(density, tuple((name, part.at_density(density)) for name, part in self.candidates), self.budget)

    def serving(self, state):
        """The candidate that exchanges this vector."""
        return dict(self.candidates)[self.decided(state)]

    def decided(self, state):
        """The name of the candidate that exchanges this vector."""
        return state.choice

    def _create(self, spec, communicator):
        with tf.init_scope():  # candidates are tried immediately, even while a function is traced
            choice = self._choose(spec)
            return _Chosen(spec, communicator, dict(self.candidates)[choice]._create(spec, communicator), choice)

    def _choose(self, spec: Spec) -> str:
        """The name of the candidate for a vector; a collective."""
        if spec.grid.world.size == 1 or len(self.candidates) == 1:
            return self.candidates[0][0]
        cache = MeasurementCache(spec.grid)
        tell = _teller(spec)
        cluster = links.known(spec.grid, cache, tell)
        alone = {name: costs.seconds(name, cluster, spec.size, self.density) for name, _ in self.candidates}
        together = at_once(spec, min(alone.values()), self.budget)
        predicted = {name: together * seconds for name, seconds in alone.items()}
        subject = self._subject(spec, together)
        times = self._remembered(cache.read(subject), cache)
        if times is None:
            times = run_trials(self.candidates, spec, predicted, together, self.budget, tell)
            cache.write(subject, times._asdict())
        choice = self._fastest(times)
        if (cache.path, subject) not in _told:
            _told.add((cache.path, subject))
            tell(_reason(choice, times, predicted, together, spec.grid.cross.size))
        return choice

    def _subject(self, spec: Spec, together: int) -> str:
        """The key under which trial times are cached; they do not depend on the budget."""
        account = {
            "size": spec.size,
            "dtype": spec.dtype.name,
            "at once": together,
            "candidates": describe(self.candidates),
        }
        return json.dumps(account, sort_keys=True)

    def _fastest(self, times: TrialTimes) -> str:
        in_order = [name for name, _ in self.candidates if name in times.seconds]
        return trials.chosen({name: times.seconds[name] for name in in_order}, costs.DENSE)

    def _remembered(self, figures: Any, cache: MeasurementCache) -> TrialTimes | None:
        """The trial times in the cache; None if there are none, or they are invalid."""
        if figures is None:
            return None
        try:
            return TrialTimes.of(figures, [name for name, _ in self.candidates])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            cache.complain(f"is not used: expected the times of trials, got {error!r}")
            return None


_told: set[tuple[pathlib.Path | None, str]] = set()  # the lines that this process has printed, by cluster


def check_constant(density: Any) -> None:
    """Raises ValueError if a density is not a number in (0, 1]."""
    if callable(density):
        raise ValueError(
            "Auto tries its candidates at one density and chooses once; got a density that changes with the step. Use "
            "one Auto for each range of epochs: recipes.schedule([(0, recipes.auto(0.1)), (5, recipes.auto(0.01))])."
        )
    check_density(density)


def _teller(spec: Spec) -> Callable[[str], None]:
    """Returns a function that logs on the first rank what is being done for a vector."""
    if spec.grid.world.rank != 0:
        return lambda text: None
    return lambda text: _log.info("auto, %s elements of %s: %s", f"{spec.size:,}", spec.dtype.name, text)


def _reason(choice: str, times: TrialTimes, predicted: Mapping[str, float], together: int, nodes: int) -> str:
    """Explains a choice in a sentence: compared with which, by how much, and what crosses the network."""
    medians = timing.medians(times.seconds)
    sent = {name: _size(count) for name, count in times.sent.items()}
    parts = [f"{choice}, {_ms(medians[choice])}" + (f" for {together} at once" if together > 1 else "")]
    compared = _compared(choice, medians)
    parts += [_beside(medians[choice], name, medians[name]) for name in compared]
    if nodes > 1:
        sends = [f"a node sends {sent[choice]}", *(f"with {name} {sent[name]}" for name in compared)]
        parts.append(", ".join(sends))
    hopeless = [f"{name} ({_ms(seconds)} predicted)" for name, seconds in predicted.items() if name not in medians]
    if hopeless:
        parts.append(f"not tried: {', '.join(hopeless)}")
    return "; ".join(parts)


def _compared(choice: str, medians: Mapping[str, float]) -> list[str]:
    """The candidates to which a choice is compared: the fastest other, and the fastest that sends everything."""
    others = [name for name in medians if name != choice]
    second = sorted(others, key=medians.__getitem__)[:1]
    if choice in costs.DENSE:
        return second
    whole = [name for name in others if name in costs.DENSE]
    return list(dict.fromkeys([*second, *sorted(whole, key=medians.__getitem__)[:1]]))


def _beside(own: float, name: str, seconds: float) -> str:
    """How the choice's time compares with another one's."""
    if seconds > (1 + TIE) * own:
        return f"{seconds / own:.2f} times as fast as {name} ({_ms(seconds)})"
    if seconds >= own / (1 + TIE):
        return f"as fast as {name} to {TIE:.0%} ({_ms(seconds)})"
    return f"{name} ({_ms(seconds)}) saves {1 - seconds / own:.0%}, which is not clear enough"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} KB"

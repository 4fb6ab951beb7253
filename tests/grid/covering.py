"""Draws cells so that every pair of values of two axes is in one of them, unless a rule forbids the pair."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

Row = dict[str, str]
Forbids = Callable[[Mapping[str, str]], bool]
CANDIDATES = 6  # rows that are tried for each one that is kept


def pairwise(axes: Mapping[str, Sequence[str]], forbids: Forbids, seed: int, given: Sequence[Row] = ()) -> list[Row]:
    """Rows that together hold every allowed pair of values; greedy, and the same for the same seed.

    Args:
        axes: the values of each axis, the ones that cost least first: they fill what no pair needs.
        forbids: whether the values of some axes, or of all, cannot be in one row.
        seed: of the drawing.
        given: rows that there are already, to which others are added.
    """
    covering = _Covering(axes, forbids, random.Random(seed))
    for row in given:
        covering.strike(row)
    return [*given, *covering.rows()]


def drawn(axes: Mapping[str, Sequence[str]], forbids: Forbids, seed: int, count: int) -> list[Row]:
    """Rows of values that are drawn independently of each other."""
    generator, found = random.Random(seed), []
    while len(found) < count:
        row = {axis: generator.choice(values) for axis, values in axes.items()}
        if not forbids(row):
            found.append(row)
    return found


class _Covering:
    def __init__(self, axes: Mapping[str, Sequence[str]], forbids: Forbids, generator: random.Random):
        self._axes, self._forbids, self._random = axes, forbids, generator
        self._missing = {
            (one, other): np.ones([len(axes[one]), len(axes[other])], bool)
            for one, other in itertools.permutations(axes, 2)
        }
        self._numbers = {axis: {value: number for number, value in enumerate(axes[axis])} for axis in axes}

    def rows(self) -> list[Row]:
        found = []
        for pair in self._pairs():
            if not self._misses(pair):
                continue
            rows = [row for row in (self._around(pair) for _ in range(CANDIDATES)) if row is not None]
            if rows:
                found.append(max(rows, key=self._gain))
                self.strike(found[-1])
            else:
                self.strike(pair)
        return found

    def _pairs(self) -> Iterator[Row]:
        """All pairs, those of the longest axes first."""
        longest = sorted(self._axes, key=lambda axis: -len(self._axes[axis]))
        for one, other in itertools.combinations(longest, 2):
            values = list(itertools.product(self._axes[one], self._axes[other]))
            self._random.shuffle(values)
            yield from ({one: first, other: second} for first, second in values)

    def _around(self, pair: Row) -> Row | None:
        """A row with this pair and as many others that are missing as a greedy choice finds; None if there is none."""
        if self._forbids(pair):
            return None
        row, axes = dict(pair), [axis for axis in self._axes if axis not in pair]
        self._random.shuffle(axes)
        for axis in axes:
            missing = [self._missing[held, axis][self._numbers[held][value]] for held, value in row.items()]
            best_first = np.argsort(-np.sum(missing, axis=0), kind="stable")
            allowed = (self._axes[axis][number] for number in best_first)
            chosen = next((value for value in allowed if not self._forbids({**row, axis: value})), None)
            if chosen is None:
                return None
            row[axis] = chosen
        return row

    def _misses(self, row: Row) -> bool:
        return self._gain(row) > 0

    def _gain(self, row: Row) -> int:
        places = itertools.combinations(row, 2)
        return sum(bool(self._missing[pair][self._place(row, pair)]) for pair in places)

    def strike(self, row: Row) -> None:
        """Notes that the pairs of a row, or a pair, need no other."""
        for pair in itertools.permutations(row, 2):
            self._missing[pair][self._place(row, pair)] = False

    def _place(self, row: Row, pair: tuple[str, str]) -> tuple[int, int]:
        one, other = pair
        return self._numbers[one][row[one]], self._numbers[other][row[other]]

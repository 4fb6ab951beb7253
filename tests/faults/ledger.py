"""The sums that must hold after a training of `elastic_ledger.py`, whatever has happened to its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SIZE = 96


def gradient(rank: int, step: int) -> np.ndarray:
    """Integers, [SIZE] float32."""
    return np.random.default_rng([rank, step]).integers(-8, 9, SIZE).astype("f4") * 48


def check(events: Sequence[Mapping[str, Any]]) -> None:
    """Checks that all ranks are equal, and that all gradients were applied, wait, or were lost with a dead rank.

    Args:
        events: what all ranks have written, in order.
    """
    ends = [each for each in events if each["event"] == "trained"]
    assert ends and {each["size"] for each in ends} == {len(ends)}, ends
    for name in ("weights", "waiting", "sizes"):
        assert all(each[name] == ends[0][name] for each in ends), name
    end = ends[0]
    means = sum(
        np.mean([gradient(rank, step) for rank in range(size)], axis=0, dtype="f8")
        for step, size in enumerate(end["sizes"])
    )
    applied = np.array(end["weights"]) - np.array(end["waiting"]) / len(ends)
    missing = lost(events)
    if missing is None:
        return
    expected = np.array(end["begins"]) - means + missing
    np.testing.assert_allclose(applied, expected, atol=1e-3 * len(end["sizes"]) ** 0.5)


def lost(events: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """What was lost with ranks that died: what they had at the commit to which the others went back, as a mean.

    None if one died between the exchange of that step and writing down what it had.
    """
    total = np.zeros(SIZE)
    for met in changes(events):
        if met["handed"]:
            continue
        for rank in met["gone"]:
            trains = [
                each
                for each in events
                if each["event"] == "trains" and each["rank"] == rank and each["time"] < met["time"]
            ]
            of_rank = [
                each
                for each in events
                if each["event"] == "waiting" and each["pid"] == trains[-1]["pid"] and each["commit"] == met["commit"]
            ]
            if not of_rank:
                return None
            total += np.array(of_rank[-1]["values"]) / met["before"]
    return total


def changes(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One event for each change after which ranks trained: the meeting that all who stayed have completed."""
    found, trained = [], True
    for each in events:
        if each["event"] == "trains":
            trained = True
        elif each["event"] == "met":
            if not trained:  # told by another rank, or another change came before they trained
                before = found.pop()
                same = before["commit"] == each["commit"]
                each = {**each, "handed": each["handed"] and (before["handed"] or not same)}
            found.append(each)
            trained = False
    return found

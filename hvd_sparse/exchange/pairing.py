"""Compares the variables of all ranks, paired by their order.

Of their names only those that the user gave are compared: Keras numbers layers by what else a process has created, so a
rank that has loaded a model may have other names for the same variables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hvd_sparse.optimizers.variables import contradict
from hvd_sparse.transport.communicator import Communicator


class Label(NamedTuple):
    """One rank's description of one variable.

    Attributes:
        name: the name on this rank, for messages only.
        kind: what must be the same on all ranks, such as dtype and shape; JSON-serializable.
        given: the parts of the name that the user gave, see `optimizers.variables.given_names`; () compares none.
    """

    name: str
    kind: Any
    given: Sequence[str | None] = ()

    def fits(self, other: Label) -> bool:
        """Whether both can describe the same variable."""
        return self.kind == other.kind and not contradict(self.given, other.given)


def compare(labels: Sequence[Label], group: Communicator, subject: str, remedy: str, name: str) -> None:
    """Checks that all ranks have the same variables in the same order; a collective that runs immediately.

    Args:
        labels: the labels of this rank's variables, in order.
        group: the ranks.
        subject: what the variables are, for the message.
        remedy: a sentence for the message that says what to do.
        name: the same on every rank, unique among the collectives in flight.

    Raises:
        ValueError: on every rank, naming the first pair of variables of each rank that differ.
    """
    described = json.dumps([[label.kind, list(label.given)] for label in labels])
    digests = group.gather_descriptions(hashlib.sha256(described.encode()).hexdigest(), f"{name}.digests")
    if len(set(digests)) == 1:
        return
    first, *others = [
        [Label(*label) for label in told] for told in group.gather_descriptions(list(labels), f"{name}.labels")
    ]
    differences = [
        difference
        for rank, other in zip(group.ranks[1:], others, strict=True)
        for difference in _differences(group.ranks[0], first, rank, other)
    ]
    if differences:
        raise ValueError(f"The ranks disagree on {subject}: {'; '.join(differences)}. {remedy}")


def _differences(rank: int, labels: Sequence[Label], other_rank: int, others: Sequence[Label]) -> list[str]:
    """How two ranks' variables differ: in number, and in the first pair that differs."""
    told = []
    if len(labels) != len(others):
        told.append(f"rank {rank} has {len(labels)} of them, rank {other_rank} has {len(others)}")
    for place in range(max(len(labels), len(others))):
        mine, other = _at(labels, place), _at(others, place)
        if mine is None or other is None or not mine.fits(other):
            told.append(f"number {place} is {_text(mine)} on rank {rank} and {_text(other)} on rank {other_rank}")
            break
    return told


def _at(labels: Sequence[Label], place: int) -> Label | None:
    return labels[place] if place < len(labels) else None


def _text(label: Label | None) -> str:
    return "missing" if label is None else f"{label.name} ({', '.join(map(str, label.kind))})"

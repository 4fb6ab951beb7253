"""Compares the variables of all ranks, paired by their order.

Names cannot be compared: Keras numbers layer names by what else a process has created, so a rank that has loaded a
model has other names for the same variables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hvd_sparse.transport.communicator import Communicator


class Label(NamedTuple):
    """One rank's description of one variable.

    Attributes:
        name: the name on this rank, for messages only.
        kind: what must be the same on all ranks, such as dtype and shape; JSON-serializable.
    """

    name: str
    kind: Any


def compare(labels: Sequence[Label], group: Communicator, subject: str, remedy: str, name: str) -> None:
    """Checks that all ranks have variables of the same kinds in the same order; a collective that runs immediately.

    Args:
        labels: the labels of this rank's variables, in order.
        group: the ranks.
        subject: what the variables are, for the message.
        remedy: a sentence for the message that says what to do.
        name: the same on every rank, unique among the collectives in flight.

    Raises:
        ValueError: on every rank, naming the first pair of variables of each rank that differ.
    """
    kinds = json.dumps([label.kind for label in labels])
    digests = group.gather_descriptions(hashlib.sha256(kinds.encode()).hexdigest(), f"{name}.digests")
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
    raise ValueError(f"The ranks disagree on {subject}: {'; '.join(differences)}. {remedy}")


def _differences(rank: int, labels: Sequence[Label], other_rank: int, others: Sequence[Label]) -> list[str]:
    """How two ranks' variables differ: in number, and in the first pair that differs."""
    told = []
    if len(labels) != len(others):
        told.append(f"rank {rank} has {len(labels)} of them, rank {other_rank} has {len(others)}")
    for place in range(max(len(labels), len(others))):
        mine, other = _at(labels, place), _at(others, place)
        if mine is None or other is None or mine.kind != other.kind:
            told.append(f"number {place} is {_text(mine)} on rank {rank} and {_text(other)} on rank {other_rank}")
            break
    return told


def _at(labels: Sequence[Label], place: int) -> Label | None:
    return labels[place] if place < len(labels) else None


def _text(label: Label | None) -> str:
    return "missing" if label is None else f"{label.name} ({', '.join(map(str, label.kind))})"

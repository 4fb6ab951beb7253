"""What an exchange leaves when the ranks change: pieces on each rank whose sum over the ranks is all that is kept.

Residuals add up; of a slot that several nodes have, the sum is divided by the number of ranks that know each element.
So the same sum serves a planned change, where all ranks add before one leaves, and a death, where the survivors add
afterwards: what only the dead rank had is missing from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange import state
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.exchange.state import ResidualSum
from hvd_sparse.transport.communicator import Communicator

_RESIDUAL, _VELOCITY, _SLOT, _KNOWN = "residual", "velocity", "slot", "known"
Pieces = dict[str, np.ndarray]


class Remains(NamedTuple):
    """What one rank has, or all together.

    Attributes:
        about: steps, counters, the unit, the number of ranks, and names and shapes of the variables in their order;
            JSON-serializable. The numbers are the same on every rank, names may differ.
        pieces: float32, by kind and place of the variable.
    """

    about: dict[str, Any]
    pieces: Pieces

    @property
    def size(self) -> float:
        """The sum of the absolute values of the residuals."""
        return float(sum(np.abs(piece).sum() for key, piece in self.pieces.items() if key.startswith(_RESIDUAL)))

    def scaled(self, ranks: int) -> ResidualSum:
        """The residuals, for this number of ranks: the mean that they add up to stays the same."""
        shapes = {name: tuple(shape) for name, shape in self.about["variables"]}
        factor = np.float32(ranks / self.about["ranks"])
        residuals = {name: piece * factor for name, piece in self._of(_RESIDUAL).items()}
        counters, unit = self.about["counters"], self.about["unit"]
        return ResidualSum(shapes, residuals, self.about["step"], counters, unit, self._of(_VELOCITY))

    def slots(self) -> dict[str, dict[str, np.ndarray]]:
        """The mean over nodes of each slot, by slot name and variable name; where no rank knows it, how it begins."""
        found = {}
        for slot in self.about["slots"]:
            known = self._of(f"{_KNOWN} {slot}")
            begin = np.float32(self.about["begins"].get(slot, 0))
            found[slot] = {
                name: np.where(known[name] > 0, value / np.maximum(known[name], 1), begin)
                for name, value in self._of(f"{_SLOT} {slot}").items()
            }
        return found

    def without_shared(self) -> Remains:
        """Without what all ranks have, which only one of them may add."""
        return self._replace(pieces={key: each for key, each in self.pieces.items() if not key.startswith(_VELOCITY)})

    def unknown(self) -> int:
        """The number of elements of slots that no rank knows."""
        return int(sum((piece == 0).sum() for key, piece in self.pieces.items() if key.startswith(_KNOWN)))

    def _of(self, kind: str) -> dict[str, np.ndarray]:
        names = [name for name, _ in self.about["variables"]]
        found = {name: self.pieces.get(f"{kind} {place}") for place, name in enumerate(names)}
        return {name: piece for name, piece in found.items() if piece is not None}


def of(exchange: PlannedExchange, first: bool) -> Remains:
    """What this rank has; no collective.

    Args:
        exchange: with the values that count.
        first: whether this rank adds what all ranks share; only one of them must.
    """
    shapes = state.shapes_of(exchange)
    places = {name: place for place, name in enumerate(shapes)}
    counters: dict[str, int] = {}
    pieces: Pieces = {}
    slots: dict[str, None] = {}
    begins: dict[str, float] = {}
    for bucket in exchange.buckets:
        counters |= {name: int(counter) for name, counter in bucket.counters().items()}
        kinds = {_RESIDUAL: bucket.own_residual()}
        velocities = bucket.outer_velocities()
        kinds[_VELOCITY] = {name: each * np.float32(first) for name, each in velocities.items()}
        begins |= bucket.slot_begins()
        for slot, (values, known) in bucket.own_slots().items():
            slots[slot] = None
            kinds |= {f"{_SLOT} {slot}": values, f"{_KNOWN} {slot}": known}
        for kind, found in kinds.items():
            pieces |= {f"{kind} {places[name]}": np.asarray(each, np.float32) for name, each in found.items()}
    about = {
        "step": int(exchange.step),
        "counters": counters,
        "unit": state.unit(exchange),
        "ranks": exchange.grid.world.size,
        "variables": [[name, list(shape)] for name, shape in shapes.items()],
        "slots": list(slots),
        "begins": begins,
    }
    return Remains(about, pieces)


def sum_of(parts: Sequence[Remains]) -> Remains:
    """What several ranks have together; at least one."""
    pieces: Pieces = {}
    for part in parts:
        pieces |= {key: pieces[key] + each if key in pieces else each for key, each in part.pieces.items()}
    return parts[0]._replace(pieces=pieces)


def added_up(own: Remains | None, about: Mapping[str, Any], world: Communicator, name: str) -> Remains:
    """The sum over all ranks; a collective.

    Args:
        own: what this rank has; None for a rank that has just come.
        about: of a rank that has something; the same on every rank, with the keys and shapes of its pieces.
        world: the ranks that add.
        name: of the collective; the same on every rank.
    """
    shapes = [(key, tuple(shape)) for key, shape in about["pieces"]]
    have = {} if own is None else own.pieces
    flat = [np.ravel(have.get(key, np.zeros(shape, np.float32))) for key, shape in shapes]
    total = world.allreduce(tf.constant(np.concatenate([np.zeros(1, np.float32), *flat])), "sum", name).numpy()
    ends = np.cumsum([1, *(each.size for each in flat)])
    parts = zip(shapes, np.split(total, ends)[1:-1], strict=True)
    return Remains(dict(about), {key: part.reshape(shape) for (key, shape), part in parts})


def described(remains: Remains) -> dict[str, Any]:
    """`Remains.about`, with the keys and shapes of the pieces."""
    return {**remains.about, "pieces": [[key, list(piece.shape)] for key, piece in remains.pieces.items()]}

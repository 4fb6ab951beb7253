"""The messages between clients and servers, checked against the vector that they concern."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class MessageError(ValueError):
    """A message does not fit: it has another size, is out of turn, or not finite."""


class Codes(NamedTuple):
    """Values in few bits each, see `compression.quantizers.Quantizer`.

    Attributes:
        codes: uint8.
        scales: float32.
    """

    codes: np.ndarray
    scales: np.ndarray


class Entries(NamedTuple):
    """Values at places of a vector.

    Attributes:
        values: [k] float32.
        indices: [k] int32, all different; None if there is a value for each place.
        coded: the same values as they are sent, if not as float32.
    """

    values: np.ndarray
    indices: np.ndarray | None = None
    coded: Codes | None = None

    @property
    def nbytes(self) -> int:
        """The number of bytes that are sent."""
        values = [self.values] if self.coded is None else list(self.coded)
        return sum(part.nbytes for part in [*values, *([] if self.indices is None else [self.indices])])

    def checked(self, size: int) -> Entries:
        """Itself, if it fits a vector of this size and is finite; otherwise a MessageError with the reason."""
        places = size if self.indices is None else len(self.indices)
        if len(self.values) != places:
            raise MessageError(f"{len(self.values)} values for {places} places")
        if self.indices is not None and places and not 0 <= self.indices.min() <= self.indices.max() < size:
            raise MessageError(f"places from {self.indices.min()} to {self.indices.max()} of a vector of {size}")
        if not np.isfinite(self.values).all():
            raise MessageError("values that are not finite")
        return self

    def add_to(self, vector: np.ndarray) -> Entries:
        """Adds the values, which have places, to a vector [size] float32; returns the new values at these places."""
        assert self.indices is not None
        vector[self.indices] += self.values
        return Entries(vector[self.indices], self.indices)

    def set_in(self, vector: np.ndarray) -> None:
        """Writes the values into a vector [size] float32; doing it again changes nothing."""
        vector[slice(None) if self.indices is None else self.indices] = self.values


class Push(NamedTuple):
    """A client's gradient.

    Attributes:
        number: 1, 2, 3, ... from when the client began; a message that is sent again keeps its number.
        rate: the learning rate to apply it with.
        gradient: for this server's shard.
    """

    number: int
    rate: float
    gradient: Entries


class Pull(NamedTuple):
    """The answer to a push.

    Attributes:
        number: of the push; 0 if a client begins.
        version: number of updates that the server's parameters have taken in.
        pushes: number of pushes of all clients that the server has applied.
        parameters: new values at the selected places; if sent coded, differences to the previous values.
    """

    number: int
    version: int
    pushes: int
    parameters: Entries

    @property
    def is_difference(self) -> bool:
        """Whether it is added to the pull before it, and so must be applied exactly once."""
        return self.parameters.coded is not None

"""What a server has to remember of its shard, for a checkpoint or for another server that takes it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    """All that a server has to remember of its shard.

    Attributes:
        arrays: of its parameters: vectors [size], and numbers [] .
        gathered: [size] float32, the sum of pushes that have not made an update yet.
        gathered_pushes: how many these are.
        version: how many updates the parameters have taken in.
        pushes: how many pushes of all clients were applied.
    """

    arrays: Mapping[str, np.ndarray]
    gathered: np.ndarray
    gathered_pushes: int
    version: int
    pushes: int


class Standings(NamedTuple):
    """How the clients of a shard stand, client by client.

    Attributes:
        numbers: the last push of each that was applied.
        left: whether it has ended.
        paused: whether it does not compute for a while.
    """

    numbers: list[int]
    left: list[int]
    paused: list[int]

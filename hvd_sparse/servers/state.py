"""A server's state of its shard, for a checkpoint or for another server that takes the shard over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    """All of a server's state of its shard.

    Attributes:
        arrays: of its parameters: vectors [size], and numbers [].
        gathered: [size] float32, the sum of pushes that have not made an update yet.
        gathered_pushes: number of those pushes.
        version: number of updates that the parameters have taken in.
        pushes: number of pushes of all clients that were applied.
    """

    arrays: Mapping[str, np.ndarray]
    gathered: np.ndarray
    gathered_pushes: int
    version: int
    pushes: int


class Standings(NamedTuple):
    """The state of a shard's clients, client by client.

    Attributes:
        numbers: each client's last push that was applied.
        left: whether it has finished.
        paused: whether it does not compute for a while.
    """

    numbers: list[int]
    left: list[int]
    paused: list[int]

"""What an optimizer gets from a caller that has pieces of variables instead of variables: `hvd_sparse`, with shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf


class Piece(Protocol):
    """Consecutive elements of one variable, [k] float32 each."""

    @property
    def variable(self) -> Any:
        """The whole variable, whose path decides whether it is excluded."""

    @property
    def weight(self) -> tf.Tensor:
        """The elements' values."""

    @property
    def gradient(self) -> tf.Tensor:
        """The elements' gradient."""

    @property
    def slots(self) -> Mapping[str, tf.Tensor]:
        """The elements' slots, by the name of the optimizer's attribute."""

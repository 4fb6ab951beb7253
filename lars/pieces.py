"""What an optimizer gets from those who have pieces of variables, and no variables: `hvd_sparse`, as it cuts shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf


class Piece(Protocol):
    """Elements of one variable that lie one after another in it, [k] float32 each."""

    @property
    def variable(self) -> Any:
        """The whole one, whose path tells whether it is excluded."""

    @property
    def weight(self) -> tf.Tensor:
        """Its elements."""

    @property
    def gradient(self) -> tf.Tensor:
        """Of these."""

    @property
    def slots(self) -> Mapping[str, tf.Tensor]:
        """Of these, by the name of the optimizer's attribute."""

"""The variables of a model, into which a client writes its copy of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.servers.messages import Entries
from hvd_sparse.servers.pushing import Copy, unpacked


class ModelVariables:
    """Variables of float32 as one vector [d], end to end.

    Attributes:
        in_place: whether single elements can be written, which requires all variables to be in this host's memory. If
            not, whole variables are assigned.
    """

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self.in_place = all("CPU" in variable.value.device for variable in variables)

    def news(self, copy: Copy) -> Entries:
        """What to pass to `put` so that variables that held the copy at the last call hold it again."""
        if self.in_place:
            return copy.news()
        return Entries(copy.values.copy())  # TensorFlow may keep this memory as the variable's own

    def put(self, values: tf.Tensor, places: tf.Tensor, everywhere: tf.Tensor) -> None:
        """Gives the variables new values; works in a graph, too.

        Args:
            values: [k] float32; if `in_place`, the memory may be reused once this has run.
            places: [k] int32, all different; empty if values are for all places, which they always are if not
                `in_place`.
            everywhere: [] bool, whether values are for all places, in order: [d].
        """
        if not self.in_place:
            self.assign(values)
            return
        with tf.device("CPU:0"):
            handles = [variable.value.handle for variable in self._variables]
            ops.library().hvd_servers_put(variables=handles, values=values, places=places, everywhere=everywhere)

    def assign(self, vector: np.ndarray | tf.Tensor) -> None:
        """Assigns all values, [d] float32, to the variables."""
        pieces = unpacked(vector, [variable.shape for variable in self._variables])
        for variable, value in zip(self._variables, pieces, strict=True):
            variable.assign(value)

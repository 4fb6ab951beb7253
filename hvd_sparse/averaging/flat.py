"""Variables as one vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.optimizers.variables import unique_names
from hvd_sparse.spec import DTYPES

NAMES = tuple(dtype.name for dtype in DTYPES)


class FlatVariables:
    """Variables of float32, float16 or bfloat16, laid end to end as a vector [size] of float32.

    Attributes:
        size: the number of elements of all variables.
    """

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self._sizes = [math.prod(variable.shape) for variable in self._variables]
        self.size = sum(self._sizes)

    def account(self) -> list[list[Any]]:
        """Name, shape and dtype of each variable, JSON-serialisable."""
        named = zip(unique_names(self._variables), self._variables, strict=True)
        return [[name, list(variable.shape), str(variable.dtype)] for name, variable in named]

    def read(self) -> tf.Tensor:
        """The values of the variables as one vector."""
        return flat([tf.convert_to_tensor(variable) for variable in self._variables])

    def assign(self, vector: tf.Tensor) -> None:
        """Gives the variables new values, rounded to their dtypes."""
        for variable, value in zip(self._variables, self.cut(vector), strict=True):
            variable.assign(value)

    def cut(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Cuts a vector into one part per variable, in the variable's shape and dtype."""
        parts = zip(tf.split(vector, self._sizes), self._variables, strict=True)
        return [tf.cast(tf.reshape(part, variable.shape), variable.dtype) for part, variable in parts]


def flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tensors laid end to end, as float32."""
    return tf.concat([tf.reshape(tf.cast(tensor, tf.float32), [-1]) for tensor in tensors], 0)


def require_floats(variables: Sequence[Any]) -> None:
    """Raises ValueError if there is no variable, or one of another dtype."""
    if not variables:
        raise ValueError("There are no trainable variables to average.")
    for name, variable in zip(unique_names(variables), variables, strict=True):
        if variable.dtype not in NAMES:
            raise ValueError(f"Expected trainable variables of {', '.join(NAMES)}, got {name} of {variable.dtype}.")

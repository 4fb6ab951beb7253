"""Variables that a step overwrites with their gradients: what Keras's float8 layers scale by.

Such a "gradient" is a history of the largest absolute values of a layer's inputs, weights or gradients, or a scale made
of these. Over all ranks it is the element-wise maximum, as if one rank had the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.transport.communicator import Communicator


def is_overwritten(variable: Any) -> bool:
    """Whether a variable is overwritten with its gradient."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def with_largest(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    local: Sequence[bool],
    group: Communicator,
    name: Callable[[], str],
) -> list[Any]:
    """Gradients, in which those that overwrite their variables are the element-wise maximum over all ranks.

    Args:
        gradients: one per variable, or None.
        variables: Keras or TensorFlow variables.
        local: for each variable, whether it stays this rank's own.
        group: the ranks; only called upon if there is such a variable.
        name: returns a name that is the same on every rank, unique among the collectives in flight.
    """
    found = list(gradients)
    places = [
        place
        for place, (each, variable, own) in enumerate(zip(found, variables, local, strict=True))
        if each is not None and is_overwritten(variable) and not own
    ]
    if places:
        reduced = group.allreduce_each([tf.convert_to_tensor(found[place]) for place in places], "max", name())
        for place, value in zip(places, reduced, strict=True):
            found[place] = value
    return found

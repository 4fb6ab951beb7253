"""The two optimizers; every test suite for optimizers runs on both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

import lars
from tests.lars import reference


class Member(NamedTuple):
    """An optimizer and the simulation it must agree with.

    Attributes:
        make: builds the optimizer from keyword arguments.
        reference: builds its simulation from (weights, adapted, keyword arguments).
        settings: arguments with which a hundred steps change every layer.
    """

    make: Callable[..., Any]
    reference: Callable[..., Any]
    settings: dict[str, Any]


MEMBERS = {
    "LARS": Member(lars.LARS, reference.Lars, {"trust_coefficient": 0.02}),
    "LARS, nesterov": Member(
        lambda **options: lars.LARS(nesterov=True, **options),
        lambda *args, **options: reference.Lars(*args, nesterov=True, **options),
        {"trust_coefficient": 0.02},
    ),
    "LARS, no momentum": Member(
        lambda **options: lars.LARS(momentum=0.0, **options),
        lambda *args, **options: reference.Lars(*args, momentum=0.0, **options),
        {"trust_coefficient": 0.02},
    ),
    "LAMB": Member(lars.LAMB, reference.Lamb, {}),
}


def stepper(optimizer: Any, variables: list[Any], traced: bool = True) -> Callable[[list[Any]], Any]:
    """Returns a function that takes one step on gradients, which may be NumPy arrays or tensors."""
    optimizer.build(variables)

    def step(gradients: list[Any]) -> None:
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)

    return tf.function(step, autograph=False) if traced else step

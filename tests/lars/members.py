"""The two optimizers; every suite of their role runs over both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

import lars
from tests.lars import reference


class Member(NamedTuple):
    """An optimizer and what it must agree with.

    Attributes:
        make: keyword arguments to the optimizer.
        reference: (weights, adapted, keyword arguments) to its simulation.
        settings: arguments under which a hundred steps change every layer.
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
    """A step of the optimizer on gradients, NumPy's or TensorFlow's."""
    optimizer.build(variables)

    def step(gradients: list[Any]) -> None:
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)

    return tf.function(step, autograph=False) if traced else step

"""What the library knows of each class of optimizer of Keras and of `lars`: one row for each in `KINDS`."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

import keras

PACKAGES = ("keras", "lars")  # a class elsewhere that has such a name is another one


class Step(enum.Enum):
    """What the step needs to know of a variable to move one element."""

    ELEMENT = "the element's gradient and slots"
    WEIGHT = "also its weight, or numbers that the optimizer keeps"
    WHOLE = "the whole variable"
    SUMS = "sums over the variable: `on_shards.RunsOnShards`"


class Kind(NamedTuple):
    """A class of optimizers.

    Attributes:
        step: what its step needs.
        momentum: the attribute that an exchange sets to 0 when it takes the momentum over: "momentum" for a heavy ball,
            "beta_1" for a first moment; "" if there is none; None if it cannot be taken over.
        momenta: the slots of that momentum, in units of gradients up to a common factor.
        velocities: the slots that accumulate past steps, including the learning rate.
        lazy: whether servers have a step that moves only elements with a gradient.
    """

    step: Step
    momentum: str | None = None
    momenta: str | None = None
    velocities: str | None = None
    lazy: bool = False


KINDS = {
    "SGD": Kind(Step.ELEMENT, "momentum", "momentums", "momentums", lazy=True),
    "RMSprop": Kind(Step.ELEMENT, "momentum", None, "_momentums", lazy=True),
    "Adam": Kind(Step.ELEMENT, "beta_1", "_momentums", lazy=True),
    "AdamW": Kind(Step.ELEMENT, "beta_1", "_momentums", lazy=True),
    "Adamax": Kind(Step.ELEMENT, "beta_1", "_m"),
    "Adagrad": Kind(Step.ELEMENT, "", lazy=True),
    "Adadelta": Kind(Step.ELEMENT, ""),
    "Lion": Kind(Step.ELEMENT),
    "Nadam": Kind(Step.WEIGHT),
    "Ftrl": Kind(Step.WEIGHT),
    "Muon": Kind(Step.WHOLE),
    "Adafactor": Kind(Step.WHOLE),
    "Lamb": Kind(Step.WHOLE, "beta_1", "_momentums"),
    "LARS": Kind(Step.SUMS, "momentum", "momentums", "momentums"),
    "LAMB": Kind(Step.SUMS, "beta_1", "first_moments"),
}


def of(optimizer: keras.optimizers.Optimizer) -> Kind | None:
    """The kind of an optimizer, also of one that is derived from a class in the table; None for others."""
    return _first(type(optimizer).__mro__)


def step_of(optimizer: keras.optimizers.Optimizer) -> Step | None:
    """What an optimizer's step needs; None if it is not the step of a class in the table."""
    classes = type(optimizer).__mro__
    home = next(number for number, cls in enumerate(classes) if "update_step" in vars(cls))
    kind = _first(classes[: home + 1])
    return None if kind is None else kind.step


def names(*steps: Step) -> list[str]:
    """The classes with such a step."""
    return [name for name, kind in KINDS.items() if kind.step in steps]


def _first(classes: Iterable[type]) -> Kind | None:
    known = (KINDS.get(cls.__name__) for cls in classes if cls.__module__.partition(".")[0] in PACKAGES)
    return next((kind for kind in known if kind is not None), None)

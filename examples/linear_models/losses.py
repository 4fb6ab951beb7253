"""Losses of linear classifiers, as functions of the margin: label (-1 or 1) times the model's score."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special


class Loss(NamedTuple):
    """A convex function of the margin.

    Attributes:
        value: from margins [n] to losses [n].
        slope: its derivative; where it has none, one of its subgradients.
        curvature: an upper bound of its second derivative; None if the first derivative jumps.
    """

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    curvature: float | None


LOSSES = {
    "logistic": Loss(lambda margins: np.logaddexp(0.0, -margins), lambda margins: -special.expit(-margins), 0.25),
    "hinge": Loss(lambda margins: np.maximum(1.0 - margins, 0.0), lambda margins: -1.0 * (margins < 1.0), None),
    "squared-hinge": Loss(
        lambda margins: np.maximum(1.0 - margins, 0.0) ** 2, lambda margins: -2.0 * np.maximum(1.0 - margins, 0.0), 2.0
    ),
}

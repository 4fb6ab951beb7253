"""The axis of optimizers, each at a learning rate at which a step moves weights by about a tenth of their size.

The tolerance is the largest difference from plain Keras, relative to the largest weight, that the order of additions
explains: means over ranks are added in another order than the mean over a batch. Optimizers that are linear in the
gradient keep the size of such an error, 1e-7. Those that divide by the root of a sum of squares enlarge it where
a gradient is near zero, by the ratio of the learning rate to that gradient; a sign (Lion) or an orthogonalised momentum
in bfloat16 (Muon) can differ by a step's last digits of that type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras

from lars import LAMB, LARS


@dataclasses.dataclass(frozen=True)
class Row:
    """An optimizer, and how far rounding can take it from plain Keras."""

    make: Callable[[], keras.optimizers.Optimizer]
    tolerance: float = 1e-5


_of = keras.optimizers
LINEAR, DIVIDING = 2e-6, 2e-5

OPTIMIZERS = {
    "SGD": Row(lambda: _of.SGD(0.1), LINEAR),
    "momentum": Row(lambda: _of.SGD(0.1, momentum=0.9), LINEAR),
    "Nesterov": Row(lambda: _of.SGD(0.1, momentum=0.9, nesterov=True), LINEAR),
    "RMSprop": Row(lambda: _of.RMSprop(0.02, momentum=0.5), DIVIDING),
    "Adam": Row(lambda: _of.Adam(0.05), DIVIDING),
    "AdamW": Row(lambda: _of.AdamW(0.05, weight_decay=0.05), DIVIDING),
    "Adamax": Row(lambda: _of.Adamax(0.05), DIVIDING),
    "Adagrad": Row(lambda: _of.Adagrad(0.1), DIVIDING),
    "Adadelta": Row(lambda: _of.Adadelta(1.0), DIVIDING),
    "Lion": Row(lambda: _of.Lion(0.02), DIVIDING),
    "Nadam": Row(lambda: _of.Nadam(0.05), DIVIDING),
    "Ftrl": Row(lambda: _of.Ftrl(0.1), DIVIDING),
    "Adafactor": Row(lambda: _of.Adafactor(0.05), DIVIDING),
    "Lamb": Row(lambda: _of.Lamb(0.05), DIVIDING),
    "Muon": Row(lambda: _of.Muon(0.05, weight_decay=None, adam_weight_decay=None), 2e-2),
    "scaled_SGD": Row(lambda: _of.LossScaleOptimizer(_of.SGD(0.1, momentum=0.9), initial_scale=8.0), LINEAR),
    "scaled_Adam": Row(lambda: _of.LossScaleOptimizer(_of.Adam(0.05), initial_scale=8.0), DIVIDING),
    "LARS": Row(lambda: LARS(0.5, 0.9, weight_decay=0.01, trust_coefficient=0.1, parallel=False), DIVIDING),
    "LAMB": Row(lambda: LAMB(0.05, weight_decay=0.01, parallel=False), DIVIDING),
}

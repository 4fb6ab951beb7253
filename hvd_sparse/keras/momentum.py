"""Keras's optimizers hand their momentum over to the exchange, and run without it.

A recipe with `MomentumCorrection` keeps momentum where gradients are, before what is sent is chosen. An optimizer's
`momentum` or `beta_1` then says what the exchange does: it stays in the config, and 0 stands in its place while the
step is traced. Biases of Adam's first moment are corrected by the exchange, in the velocity itself: with b = beta_1 and
t the number of the step, m^_t = ((b - b^t) m^_{t-1} + (1 - b) g_t) / (1 - b^t).
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator, Schedule, SparCMLAlgorithm1, Warmup
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.selectors import BucketTopK, MSTopK, TopK
from hvd_sparse.exchange.arguments import takes_momentum
from hvd_sparse.exchange.wire import parts
from hvd_sparse.spec import Momentum, MomentumRule
from hvd_sparse.transport import topology

# By the name of the class, of Keras or of `lars`: which of its attributes is the momentum.
_HEAVY_BALL = ("SGD", "RMSprop", "LARS")
_FIRST_MOMENT = ("Adam", "Adamax", "Lamb", "LAMB")
_NONE = ("Adagrad", "Adadelta")
_HOMES = ("keras", "lars")


def rule_of(optimizer: keras.optimizers.Optimizer) -> Momentum | None:
    """How an optimizer's momentum works, for `Spec.momentum`; None where it cannot be handed over.

    It does not keep the optimizer alive, which holds the exchange that asks.
    """
    name = _attribute(optimizer)
    if name is None:
        return None
    if not name:
        return lambda: MomentumRule(0.0)
    reference = weakref.ref(optimizer)

    def rule() -> MomentumRule:
        alive = reference()
        if alive is None:
            raise ReferenceError("The optimizer of this exchange is gone.")
        value = float(getattr(alive, name))
        if name == "momentum":
            return MomentumRule(value, 1.0, bool(getattr(alive, "nesterov", False)))
        return _first_moment(value, alive.iterations)

    return rule


def check(optimizer: keras.optimizers.Optimizer, recipe: Aggregator) -> None:
    """Says on rank 0 what a recipe takes over, where it takes over anything.

    Raises:
        ValueError: where it cannot be taken over, or would be there twice.
    """
    name = _attribute(optimizer)
    if not takes_momentum(recipe):
        if name == "beta_1" and _loses_with_adam(recipe):
            _warn(
                f"{type(optimizer).__name__} behind a constant density is known to end worse than dense training, as a "
                "weight that is seldom sent moves too little: a small Transformer lost 7 BLEU at 1%. Begin with "
                "hvd.recipes.recommended(density=0.01, steps=...), see docs/recipes.md."
            )
        has_one = any(isinstance(part, MomentumCorrection) and part.momentum for part in parts(recipe))
        if has_one and name and getattr(optimizer, name):
            raise ValueError(
                f"The recipe has a momentum of its own, and {type(optimizer).__name__} has {name}="
                f"{getattr(optimizer, name):g}: set that to 0, or let the exchange take it over, "
                "recipes.momentum_corrected(recipe) without a number."
            )
        return
    if name is None:
        raise ValueError(
            f"The exchange cannot take over the momentum of {type(optimizer).__name__}, but of "
            f"{', '.join((*_HEAVY_BALL, *_FIRST_MOMENT))} and what is derived from them, as AdamW: use one of these, "
            "or a recipe without momentum correction, as hvd.recipes.warmup(hvd.recipes.hitopk(0.01), steps=100)."
        )
    if name and _first_rank():
        told = f"{name}={getattr(optimizer, name):g}"
        print(f"hvd_sparse: the exchange takes over the momentum of {type(optimizer).__name__} ({told})", flush=True)
    remembered = 1.0 / (1.0 - getattr(optimizer, "beta_2", 1.0 - 1e-9))
    apart = max((1.0 / density for density in _densities(recipe)), default=1.0)
    if remembered < 0.99 * apart:
        _warn(
            f"beta_2={optimizer.beta_2:g} looks back {remembered:.0f} steps, and a weight is sent every {apart:.0f} "
            f"steps in the mean: take a beta_2 of at least {1.0 - 1.0 / apart:g}, or a higher density."
        )


def _loses_with_adam(recipe: Aggregator) -> bool:
    """Whether it sends a constant share of gradients, from the first step on."""
    kinds = tuple(type(part) for part in parts(recipe))
    return not recipe.sends_all and not {Warmup, Schedule, MomentumCorrection, SparCMLAlgorithm1} & set(kinds)


def _densities(recipe: Aggregator) -> list[float]:
    """The constant densities of the parts of a recipe."""
    found = list(parts(recipe))
    shares = [part.density for part in found if isinstance(part, (TopK, MSTopK)) and not callable(part.density)]
    return [*shares, *(part.k / part.bucket for part in found if isinstance(part, BucketTopK))]


def _first_rank() -> bool:
    return topology.is_initialized() and topology.rank() == 0


def _warn(text: str) -> None:
    if _first_rank():
        warnings.warn(text, stacklevel=5)


@contextlib.contextmanager
def left_out(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """While a step is traced, the optimizer has no momentum."""
    name = _attribute(optimizer)
    if not name:
        yield
        return
    value = getattr(optimizer, name)
    try:
        setattr(optimizer, name, 0.0)
        yield
    finally:
        setattr(optimizer, name, value)


def _attribute(optimizer: keras.optimizers.Optimizer) -> str | None:
    """The name of what holds the momentum; "" where there is none, None where it is of a kind that is not known."""
    for cls in type(optimizer).__mro__:
        if cls.__module__.partition(".")[0] not in _HOMES:
            continue
        if cls.__name__ in _HEAVY_BALL:
            return "momentum"
        if cls.__name__ in _FIRST_MOMENT:
            return "beta_1"
        if cls.__name__ in _NONE:
            return ""
    return None


def _first_moment(beta: float, iterations: Any) -> MomentumRule:
    step = tf.cast(tf.convert_to_tensor(iterations) + 1, tf.float32)
    power = tf.pow(tf.constant(beta, tf.float32), step)
    return MomentumRule((beta - power) / (1.0 - power), (1.0 - beta) / (1.0 - power))

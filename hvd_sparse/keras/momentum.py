"""Hands the momentum of Keras's optimizers over to the exchange, so that they run without it.

A recipe with `MomentumCorrection` applies momentum on the sender's side, before the selection. An optimizer's
`momentum` or `beta_1` then sets what the exchange does: it stays in the config, and is replaced by 0 while the step is
traced. The exchange corrects the bias of Adam's first moment in the velocity itself: with b = beta_1 and t the number
of the step, m^_t = ((b - b^t) m^_{t-1} + (1 - b) g_t) / (1 - b^t).

The optimizer's own slots are not used during such training. `hvd.consolidate` writes into them what they would hold,
the mean over all ranks, so that training can continue from a file of the model with any optimizer; and the exchange
begins with what a file has in them.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator, Schedule, SparCMLAlgorithm1, Warmup
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.momentum import VELOCITY, MomentumCorrection
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.exchange.arguments import takes_momentum
from hvd_sparse.exchange.wire import parts
from hvd_sparse.optimizers import kinds
from hvd_sparse.spec import Gathered, Momentum, MomentumRule
from hvd_sparse.transport import first_rank

_log = logging.getLogger(__name__)
_OWN_WRITES: contextvars.ContextVar[bool] = contextvars.ContextVar("own_writes", default=False)
CONSOLIDATED = "_hvd_sparse_consolidated_at"  # the step of the exchange whose momentum the slots hold
Slots: TypeAlias = "Callable[[keras.optimizers.Optimizer], dict[str, Any]]"


def of(optimizer: keras.optimizers.Optimizer, momentum_slots: Slots) -> Momentum | None:
    """An optimizer's momentum, for `Spec.momentum`; None if it cannot be handed over.

    It does not keep the optimizer alive, as the optimizer itself holds the exchange.

    Args:
        optimizer: an optimizer that is not distributed yet.
        momentum_slots: returns the slots of its momentum.
    """
    name = _attribute(optimizer)
    if name is None:
        return None
    if not name:
        return Momentum(lambda: MomentumRule(0.0))
    reference = weakref.ref(optimizer)

    def rule() -> MomentumRule:
        alive = reference()
        if alive is None:
            raise ReferenceError("The optimizer of this exchange no longer exists.")
        value = float(getattr(alive, name))
        if name == "momentum":
            return MomentumRule(value, 1.0, bool(getattr(alive, "nesterov", False)))
        return _first_moment(value, alive.iterations)

    def gathered() -> Gathered:
        alive = reference()
        factor = per_slot(alive) if alive is not None and alive.built else 0.0
        slots = momentum_slots(alive) if factor else {}
        # A slot that was created in the current trace has no value yet, so nothing has accumulated in it.
        begun = {name: slot for name, slot in slots.items() if slot.value.is_initialized()}
        return {VELOCITY: {name: slot.value.numpy() * factor for name, slot in begun.items()}}

    return Momentum(rule, gathered)


def require_consolidated(optimizer: keras.optimizers.Optimizer, exchange: Any) -> None:
    """Raises RuntimeError if an optimizer is about to be saved without the momentum that the exchange keeps."""
    if exchange.takes_over and exchange.step not in (0, vars(optimizer).get(CONSOLIDATED)):
        raise RuntimeError(
            f"The exchange keeps the momentum of {type(optimizer).__name__}, and each rank holds a part: before the "
            "model is saved, call hvd.consolidate(model) on every rank, or pass a callback from hvd.callbacks before "
            "the one that saves at the end of an epoch."
        )


def check(optimizer: keras.optimizers.Optimizer, recipe: Aggregator) -> None:
    """Prints on rank 0 what a recipe takes over, and warns of combinations that are known to train badly.

    Raises:
        ValueError: if momentum cannot be taken over, or would be applied twice.
    """
    if takes_momentum(recipe):
        _check_taken(optimizer, recipe)
    else:
        _check_left(optimizer, recipe)


def _check_taken(optimizer: keras.optimizers.Optimizer, recipe: Aggregator) -> None:
    name = _attribute(optimizer)
    if name is None:
        known = [each for each, kind in kinds.KINDS.items() if kind.momentum]
        raise ValueError(
            f"The exchange cannot take over the momentum of {type(optimizer).__name__}: use one of "
            f"{', '.join(known)} or an optimizer derived from them, or a recipe without momentum correction, such as "
            "hvd.recipes.warmup(hvd.recipes.hitopk(0.01), stage_steps=100)."
        )
    if name and first_rank.is_here():
        told = f"{name}={getattr(optimizer, name):g}"
        _log.info("the exchange takes over the momentum of %s (%s)", type(optimizer).__name__, told)
    beta_2 = getattr(optimizer, "beta_2", None)
    apart = max((1.0 / density for density in _densities(recipe)), default=1.0)
    if beta_2 is not None and 1.0 - beta_2 > 1.01 / apart:
        first_rank.warn(
            f"beta_2={beta_2:g} averages over {1.0 / (1.0 - beta_2):.0f} steps, but a weight is sent only every "
            f"{apart:.0f} steps on average: use a beta_2 of at least {1.0 - 1.0 / apart:g}, or a higher density."
        )


def _check_left(optimizer: keras.optimizers.Optimizer, recipe: Aggregator) -> None:
    name = _attribute(optimizer)
    if name == "beta_1" and _loses_with_adam(recipe):
        first_rank.warn(
            f"{type(optimizer).__name__} with a constant density is known to end worse than dense training, because a "
            "weight that is rarely sent moves too little: a small Transformer lost 7 BLEU at 1%. Start with "
            "hvd.recipes.recommended(density=0.01); see docs/accuracy.md."
        )
    has_one = any(isinstance(part, MomentumCorrection) and part.momentum for part in parts(recipe))
    if has_one and name and getattr(optimizer, name):
        raise ValueError(
            f"The recipe has its own momentum, and {type(optimizer).__name__} has {name}="
            f"{getattr(optimizer, name):g}: set that to 0, or let the exchange take it over with "
            "recipes.momentum_corrected(recipe), without a number."
        )


def _loses_with_adam(recipe: Aggregator) -> bool:
    """Whether a recipe sends a constant share of gradients from the first step on."""
    kinds = tuple(type(part) for part in parts(recipe))
    safe = {Warmup, Schedule, MomentumCorrection, LocalUpdates, SparCMLAlgorithm1}
    return not recipe.sends_all and not safe & set(kinds)


def _densities(recipe: Aggregator) -> list[float]:
    """The constant densities of the parts of a recipe."""
    shares = [part.share for part in parts(recipe) if isinstance(part, Compressor)]
    return [share for share in shares if share is not None]


@contextlib.contextmanager
def left_out(optimizer: keras.optimizers.Optimizer, taken: Iterable[Any]) -> Iterator[None]:
    """Context in which the optimizer has no momentum, while a step is traced.

    Args:
        optimizer: whose momentum the exchange keeps.
        taken: the slots of it for the variables of this step, which are empty when the step begins.
    """
    name = _attribute(optimizer)
    if not name:
        yield
        return
    value = getattr(optimizer, name)
    try:
        setattr(optimizer, name, 0.0)
        with own_writes():
            if name == "beta_1":  # Keras adds g - m to m, which rounds by what m was
                for slot in taken:
                    slot.assign(tf.zeros(slot.shape, slot.dtype))
            yield
    finally:
        setattr(optimizer, name, value)


@contextlib.contextmanager
def own_writes() -> Iterator[None]:
    """Context in which what is written to an optimizer's slots does not come from its user."""
    token = _OWN_WRITES.set(True)
    try:
        yield
    finally:
        _OWN_WRITES.reset(token)


def note_writes(optimizer: keras.optimizers.Optimizer, momentum_slots: Slots) -> None:
    """Tells the exchange from now on when the user writes to the slots whose momentum it keeps."""
    for name, slot in momentum_slots(optimizer).items():
        slot.assign = functools.partial(_noting, weakref.ref(optimizer), name, slot.assign)


def _noting(reference: weakref.ref[Any], name: str, assign: Callable[[Any], Any], value: Any) -> Any:
    written, optimizer = assign(value), reference()
    if optimizer is not None and tf.executing_eagerly() and not _OWN_WRITES.get():
        optimizer.exchange.note_slots([name])
    return written


def _attribute(optimizer: keras.optimizers.Optimizer) -> str | None:
    """The name of the attribute with the momentum; "" if there is none, None for an unknown kind of optimizer."""
    kind = kinds.of(optimizer)
    return None if kind is None else kind.momentum


def per_slot(optimizer: keras.optimizers.Optimizer) -> float:
    """The factor that converts a slot to units of the mean gradient; 0 if it cannot be converted."""
    if _attribute(optimizer) == "momentum":
        rate = float(optimizer.learning_rate)
        return -1.0 / rate if rate else 0.0
    steps = int(optimizer.iterations)
    return 1.0 / (1.0 - float(optimizer.beta_1) ** steps) if steps and _attribute(optimizer) else 0.0


def _first_moment(beta: float, iterations: Any) -> MomentumRule:
    step = tf.cast(tf.convert_to_tensor(iterations) + 1, tf.float32)
    power = tf.pow(tf.constant(beta, tf.float32), step)
    return MomentumRule((beta - power) / (1.0 - power), (1.0 - beta) / (1.0 - power))

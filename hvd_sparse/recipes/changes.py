"""Changes to a recipe: what is selected from, how much is sent when, and which variables are sent whole."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from hvd_sparse.aggregators import (
    Accumulated,
    Aggregator,
    AllReduce,
    DenseBelow,
    Hierarchical,
    LocalSteps,
    Schedule,
    SparCMLAlgorithm1,
    Warmup,
)
from hvd_sparse.aggregators.feedback import around_feedback
from hvd_sparse.aggregators.named import named
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.spec import parts
from hvd_sparse.tuning.auto import Auto

DGC_DENSITIES = (0.25, 0.0625, 0.015625)  # the stages of DGC's warm-up that lie above 1%


@named
def momentum_corrected(recipe: Aggregator, momentum: float | None = None, masking: bool = True) -> Aggregator:
    """Changes a sparse recipe so that each sender applies momentum before it selects (DGC 3.2 and 3.3).

    Args:
        recipe: a recipe with error feedback, such as `hitopk(0.01)`; not `auto` or a schedule. Warm-up and
            `dense_below` may be inside or outside: `momentum_corrected(warmup(...))` and
            `warmup(momentum_corrected(...))` are the same.
        momentum: None takes over the optimizer's momentum, and the optimizer then runs without it; give a number if
            the optimizer has none.
        masking: whether momentum is set to zero where a value was sent.

    Raises:
        ValueError: if the recipe has no error feedback, something wraps it already, or an argument is invalid.
    """
    if any(isinstance(part, Auto) for part in parts(recipe)):
        raise ValueError(
            "Expected a recipe with error feedback of gradients, such as hvd.recipes.hitopk(0.01), got Auto, which may "
            "choose dense candidates: with these the momentum has to stay with the optimizer."
        )
    return around_feedback(recipe, lambda feedback: MomentumCorrection(feedback, momentum, masking))


@named
def updates(recipe: Aggregator, ahead: bool = False, every: int = 1, gain_ratio: bool = False) -> Aggregator:
    """Changes a sparse recipe so that the optimizer's updates of the weights are exchanged instead of gradients.

    Each node runs the optimizer on its own mean gradient, with its own moments: locally accumulated Adam (Chen and
    Deligiannis 2023), extended to SGD, RMSprop, Adam, AdamW, Adamax, Adagrad, Adadelta and Lion, and to LARS and LAMB
    of the package `lars` (You et al. 2017, 2020), which use the norms of a node's gradients. Muon, Adafactor and
    Keras's Lamb, which need whole variables, run on each rank of a node alike.

    Args:
        recipe: a recipe with error feedback and one density, such as `hitopk(0.01)`; or `auto(0.01)`, whose dense
            candidates then exchange all of each node's updates; not a schedule.
        ahead: compute gradients at the weights that the node would have if its unsent updates were applied. `fit` does
            so; in your own loop, compute them in `with hvd.looking_ahead(optimizer)`. Evaluation and saving use the
            weights that all ranks share. It costs an all-gather in the node and two more copies of the weights.
        every: H, the number of steps from one exchange to the next; more than one needs `ahead`. In between, each node
            trains on its own, and its updates wait with what was not sent.
        gain_ratio: multiply updates by the root of AdaScale's gain ratio of the nodes' gradients, so that the learning
            rate of dense training fits optimizers that divide by the size of their gradients, such as Adam; see
            `LocalUpdates`.

    Raises:
        ValueError: if the recipe has no error feedback, or an argument is invalid.
        TypeError: if `every` is more than one and the recipe cannot wait.
    """
    sender = functools.partial(LocalUpdates, ahead=ahead, gain_ratio=gain_ratio)
    if any(isinstance(part, SparCMLAlgorithm1) for part in parts(recipe)):
        raise ValueError(
            "Expected a recipe with error feedback of gradients, such as hvd.recipes.hitopk(0.01), got "
            "SparCMLAlgorithm1, which multiplies gradients by the learning rate: use it unchanged, with the optimizer "
            "after the exchange."
        )
    return _every(_updates_of(recipe, sender), every)


@named
def warmup(
    recipe: Aggregator,
    stage_steps: int | None = None,
    densities: Sequence[float] = DGC_DENSITIES,
    dense_steps: int = 0,
    steps: int | None = None,
) -> Aggregator:
    """Changes a sparse recipe so that it sends more in the first steps: DGC's warm-up training (3.3).

    Args:
        recipe: the sparse recipe to use after the warm-up; it takes over the residual and the momentum.
        stage_steps: the number of exchanges at each density, an epoch in DGC; None means a tenth of `steps`.
        densities: in falling order; by default DGC's 25%, 6.25% and 1.5625%.
        dense_steps: the number of exchanges of the whole gradient before the first density.
        steps: the steps of the whole training: epochs times steps per epoch.

    Raises:
        ValueError: if an argument is invalid, or the recipe sends the whole gradient.
    """
    if stage_steps is None:
        if steps is None:
            raise ValueError("Expected stage_steps, or steps, the number of steps of the whole training, got neither.")
        stage_steps = max(1, steps // 10)
    dense_first = [(dense_steps, 1.0)] if dense_steps else []
    return Warmup(recipe, (*dense_first, *((stage_steps, density) for density in densities)))


@named
def dense_below(recipe: Aggregator, elements: int = 1024) -> Aggregator:
    """Changes a sparse recipe so that small variables, such as biases and normalizations, are sent whole.

    Args:
        recipe: for all other variables. `dense_below(warmup(...))` and `warmup(dense_below(...))` are the same.
        elements: variables with fewer elements than this are sent whole.

    Raises:
        ValueError: if an argument is invalid, or the recipe sends the whole gradient.
    """
    return DenseBelow(recipe, elements)


@named
def schedule(stages: Sequence[tuple[int, Aggregator]]) -> Aggregator:
    """One recipe per range of epochs, for example [(0, hitopk(0.01)), (13, torus2d())] (CommLib 5.6)."""
    return Schedule(tuple((int(start), aggregator) for start, aggregator in stages))


def _every(recipe: Aggregator, every: int) -> Aggregator:
    """The recipe with an exchange in every H-th step, inside of what may only be outermost."""
    if every == 1:
        return recipe
    if isinstance(recipe, (Warmup, DenseBelow)):
        return dataclasses.replace(recipe, inner=_every(recipe.inner, every))
    return LocalSteps(recipe, every)


def _updates_of(recipe: Aggregator, sender: Callable[[ErrorFeedback], LocalUpdates]) -> Aggregator:
    """A recipe changed to exchange updates."""
    if isinstance(recipe, (Warmup, DenseBelow)):
        return dataclasses.replace(recipe, inner=_updates_of(recipe.inner, sender))
    if isinstance(recipe, Auto):
        candidates = ((name, _candidate(part, sender)) for name, part in recipe.candidates)
        return dataclasses.replace(recipe, candidates=tuple(candidates))
    return around_feedback(recipe, sender)


def _candidate(part: Any, sender: Callable[[ErrorFeedback], LocalUpdates]) -> Aggregator:
    """A candidate of `auto`, changed to exchange updates; a dense candidate exchanges all of them."""
    if isinstance(part, Hierarchical):
        return dataclasses.replace(part, inner=_candidate(part.inner, sender))
    if isinstance(part, AllReduce):
        return Accumulated(sender(ErrorFeedback(TopK(1.0, part.wire_dtype or "float32"))))
    return around_feedback(part, sender)

"""Every named system as one expression of the parts.

A recipe is what `DistributedOptimizer(..., aggregator=...)` takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hvd_sparse.aggregators import (
    Accumulated,
    Aggregator,
    AllReduce,
    Compressed,
    DenseBelow,
    Hierarchical,
    LocalSteps,
    Mean,
    Outer,
    Schedule,
    SparCMLAlgorithm1,
    SparseAllReduce,
    Warmup,
)
from hvd_sparse.aggregators.feedback import around_feedback
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.held import HeldThreshold
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.quantizers import QSGD, Quantizer
from hvd_sparse.compression.selection import Density
from hvd_sparse.compression.selectors import BucketTopK, MSTopK, Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.costs import CANDIDATES
from hvd_sparse.tuning.auto import BUDGET, Auto

DGC_DENSITIES = (0.25, 0.0625, 0.015625)  # of its warm-up, as far as they lie above 1%


def mean(wire_dtype: str | None = None) -> Aggregator:
    """The dense mean, as `torus2d` on several nodes of several ranks each and else as `dense`: the default."""
    return Mean(wire_dtype)


def dense(wire_dtype: str | None = None) -> Aggregator:
    """One all-reduce over all ranks: what Horovod does, CommLib's Dense."""
    return AllReduce(wire_dtype)


def torus2d(wire_dtype: str | None = None) -> Aggregator:
    """Reduce-scatter in the node, all-reduce across nodes, all-gather in the node: 2DTAR (CommLib 5.3)."""
    return Hierarchical(AllReduce(wire_dtype))


def topk(density: Density, wire_dtype: str = "float32") -> Aggregator:
    """Exact top-k with error feedback, gathered from all ranks: CommLib's TopK-SGD by NaiveAG (3.2, Eq. 3)."""
    return Compressed(ErrorFeedback(TopK(density, wire_dtype)))


def mstopk(density: Density, wire_dtype: str = "float32", samplings: int = 30, seed: int = 0) -> Aggregator:
    """As `topk`, with MSTopK selection (CommLib Algorithm 1)."""
    return Compressed(ErrorFeedback(MSTopK(density, wire_dtype, samplings, seed)))


def hitopk(density: Density, wire_dtype: str = "float32", samplings: int = 30, seed: int = 0) -> Aggregator:
    """HiTopKComm with MSTopK selection and error feedback: CommLib's MSTopK-SGD (Algorithms 1 and 2)."""
    return Hierarchical(Compressed(ErrorFeedback(MSTopK(density, wire_dtype, samplings, seed))))


def dropping(
    density: Density,
    wire_dtype: str = "float32",
    sample: float = 0.001,
    seed: int = 0,
    quantizer: Quantizer | None = None,
    scope: str = "global",
) -> Aggregator:
    """Gradient dropping (Aji and Heafield 2017, Algorithm 1) among ranks that send to each other, without servers.

    Each rank sends what exceeds a threshold that it takes from a sample, about `density` of the gradient, and keeps the
    rest; all is gathered from all ranks.

    Args:
        density: 1 - R, R the paper's drop rate, of `topk`.
        wire_dtype: as of `topk`.
        sample: as of `SampledThreshold`.
        seed: of the sample, and of a quantizer's rounding.
        quantizer: codes what is sent in fewer bits, as `OneBit("column")` or `TwoBits()` (5.4); what that takes away
            joins the residual. None sends values of the wire's dtype.
        scope: "global", or "variable" for a threshold for each variable (5.2); see `SampledThreshold`.

    Raises:
        ValueError: where an argument cannot be.
    """
    sent: Compressor = SampledThreshold(density, wire_dtype, sample, seed, scope)
    return Compressed(ErrorFeedback(sent if quantizer is None else Quantized(sent, quantizer, seed=seed)))


def dct(sparsity: float = 0.99, life: int = 1000, wire_dtype: str = "float32", drain: float = 0.0) -> Aggregator:
    """DCT-DP (Gupta et al. 2021, Algorithm 1) among ranks that send to each other, without servers.

    Args:
        sparsity: eta, the share of each variable that is not sent, in [0, 1): 1 - the density of `topk`.
        life: L, steps for which the threshold of each variable holds.
        wire_dtype: as of `topk`.
        drain: the probability, in each step, that residuals are forgotten (Remark 2); see `HeldThreshold`.

    Raises:
        ValueError: where an argument cannot be.
    """
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(f"Expected a sparsity in [0, 1), got {sparsity}: 0.99 sends 1% of the gradient.")
    return Compressed(ErrorFeedback(HeldThreshold(round(1.0 - sparsity, 12), wire_dtype, life, drain)))


def sparcml(
    density: Density,
    bits: int | None = None,
    collective: str = "auto",
    as_published: bool = False,
    seed: int = 0,
) -> Aggregator:
    """Exact top-k with error feedback, added up by sparse all-reduce: SparCML's Quantized TopK SGD (section 4, 5.3).

    Args:
        density: as of `topk`.
        bits: 2, 4 or 8: sums are gathered by `dynamic` in so many bits (section 6), and their rounding is kept; None
            sends them as float32. It pays where ranks together fill more than about bits / 64 of the vector: below that
            sparse sums are fewer bytes.
        collective: without bits "auto", "recursive_doubling", "split_allgather", "dynamic" or "allgather"; see
            `SparseAllReduce`.
        as_published: follows Algorithm 1 to the letter: the learning rate inside the accumulator, what each rank sends
            quantized before the sum and that error dropped, the sum over the ranks and not the mean; see
            `SparCMLAlgorithm1`. It needs a distributed optimizer. Values then travel as float32 whatever the bits: the
            paper's own system quantizes the gathered sums, as this recipe does without `as_published`.
        seed: of the rounding.

    Raises:
        ValueError: where an argument cannot be.
    """
    return _sparcml(TopK(density), bits, collective, as_published, seed)


def sparcml_buckets(
    k: int = 4,
    bucket: int = 512,
    bits: int | None = 4,
    collective: str = "auto",
    as_published: bool = False,
    seed: int = 0,
) -> Aggregator:
    """As `sparcml`, with the k largest of every bucket of consecutive elements: SparCML's way with networks (8.3).

    Args:
        k: elements sent of each bucket.
        bucket: elements of a bucket.
        bits: as of `sparcml`.
        collective: as of `sparcml`.
        as_published: as of `sparcml`.
        seed: as of `sparcml`.

    Raises:
        ValueError: where an argument cannot be.
    """
    return _sparcml(BucketTopK(k, bucket), bits, collective, as_published, seed)


def momentum_corrected(recipe: Aggregator, momentum: float | None = None, masking: bool = True) -> Aggregator:
    """A sparse recipe that keeps momentum where gradients are, before what is sent is chosen (DGC 3.2 and 3.3).

    Args:
        recipe: of one vector and one density, as `hitopk(0.01)`; not of `auto` nor of a schedule.
        momentum: None takes over that of the optimizer, which then runs without it; a number is for an optimizer that
            has none.
        masking: whether momentum is cleared where a value was sent.

    Raises:
        ValueError: where the recipe has no error feedback, or an argument cannot be.
    """
    changed = around_feedback(recipe, lambda feedback: MomentumCorrection(feedback, momentum, masking))
    if changed == recipe:
        raise ValueError(
            f"Expected a recipe with error feedback, as hvd.recipes.hitopk(0.01), got {type(recipe).__name__}, which "
            "keeps nothing back: momentum after the exchange is the same there."
        )
    return changed


def updates(recipe: Aggregator, ahead: bool = False, every: int = 1) -> Aggregator:
    """A sparse recipe that exchanges by how much the optimizer moves the weights, in place of gradients.

    Each node runs the optimizer on its own mean gradient, with moments of its own: locally accumulated Adam (Chen and
    Deligiannis 2023), for SGD, RMSprop, Adam, AdamW, Adamax, Adagrad, Adadelta and Lion, and for LARS and LAMB of the
    package `lars` (You et al. 2017, 2020), whose norms are those of a node's gradients.

    Args:
        recipe: of one vector and one density, as `hitopk(0.01)`; or `auto(0.01)`, whose dense candidates then exchange
            updates, too: each node's, as a whole; not a schedule.
        ahead: take gradients where the node's own updates that were not sent yet would have the weights. `fit` does so;
            in a loop of your own take them in `with hvd.looking_ahead(optimizer)`. What is evaluated and saved are the
            weights that all ranks share. It costs an all-gather in the node and two more copies of the weights.
        every: H, steps from one exchange to the next; more than one need `ahead`. In between each node goes on by
            itself, and what it does waits with what was not sent.

    Raises:
        ValueError: where the recipe has no error feedback, or an argument cannot be.
        TypeError: where more than one step is asked for and the recipe cannot wait.
    """
    if isinstance(recipe, Auto):
        candidates = ((name, _updates_of(part, ahead)) for name, part in recipe.candidates)
        return _every(dataclasses.replace(recipe, candidates=tuple(candidates)), every)
    changed = around_feedback(recipe, lambda feedback: LocalUpdates(feedback, ahead))
    if changed == recipe or isinstance(recipe, SparCMLAlgorithm1):
        raise ValueError(
            f"Expected a recipe with error feedback of gradients, as hvd.recipes.hitopk(0.01), got "
            f"{type(recipe).__name__}: use it as it is, with the optimizer after the exchange."
        )
    return _every(changed, every)


def warmup(
    recipe: Aggregator,
    stage_steps: int | None = None,
    densities: Sequence[float] = DGC_DENSITIES,
    dense_steps: int = 0,
    steps: int | None = None,
) -> Aggregator:
    """A sparse recipe that sends more in the first steps: DGC's warm-up training (3.3).

    Args:
        recipe: what goes on after it; residual and momentum stay where they are.
        stage_steps: how many exchanges are made at each of the densities, an epoch in DGC; None is a tenth of `steps`.
        densities: falling; by default 25%, 6.25% and 1.5625%, a quarter each time, as DGC's.
        dense_steps: how many exchanges of all of the gradient are made before that.
        steps: of the whole training: epochs times steps in an epoch.

    Raises:
        ValueError: where an argument cannot be, or the recipe sends all of the gradient.
    """
    if stage_steps is None:
        if steps is None:
            raise ValueError("Expected stage_steps, or steps, the number of steps of the whole training, got neither.")
        stage_steps = max(1, steps // 10)
    dense_first = [(dense_steps, 1.0)] if dense_steps else []
    return Warmup(recipe, (*dense_first, *((stage_steps, density) for density in densities)))


def dgc(
    density: float = 0.001, stage_steps: int = 100, momentum: float | None = None, masking: bool = True
) -> Aggregator:
    """Deep Gradient Compression (Lin et al. 2018): exact top-k of each rank's own momentum, with warm-up.

    Gradients are clipped on each rank, at 1 / sqrt(P) of the optimizer's threshold, as for all sparse recipes.

    Args:
        density: what is sent after the warm-up; DGC's is 0.1%.
        stage_steps: as for `warmup`.
        momentum: as for `momentum_corrected`.
        masking: whether momentum is cleared where a value was sent.

    Raises:
        ValueError: where an argument cannot be.
    """
    recipe = momentum_corrected(topk(density), momentum, masking)
    densities = [each for each in DGC_DENSITIES if each > density]
    return warmup(recipe, stage_steps, densities) if densities else recipe


def recommended(density: float = 0.01, seed: int = 0) -> Aggregator:
    """What to begin with: HiTopKComm of each node's own updates, with gradients taken ahead of what is not sent yet.

    In a loop of your own take gradients in `with hvd.looking_ahead(optimizer)`; `fit` does so.

    Args:
        density: what is sent.
        seed: of MSTopK.

    Raises:
        ValueError: where an argument cannot be.
    """
    return updates(hitopk(density, seed=seed), ahead=True)


def dense_below(recipe: Aggregator, elements: int = 1024) -> Aggregator:
    """A sparse recipe beside which small variables, as biases and normalisations, travel whole.

    Args:
        recipe: for all other variables. What is to be around it comes first: `dense_below(warmup(...))` and
            `warmup(dense_below(...))` are the same.
        elements: of a variable, from which it is not small.

    Raises:
        ValueError: where an argument cannot be, or the recipe sends all of the gradient.
    """
    return DenseBelow(recipe, elements)


def diloco(every: int = 30, rate: float = 0.7, momentum: float = 0.9) -> Aggregator:
    """DiLoCo (Douillard et al. 2023): each node takes H steps by itself, then all move by an outer Nesterov step.

    Nodes are DiLoCo's workers; inside a node gradients are averaged in every step. In a loop of your own gradients are
    taken in `with hvd.looking_ahead(optimizer)`; `fit` does so.

    Args:
        every: H, steps from one exchange to the next.
        rate: of the outer step.
        momentum: of the outer step.

    Raises:
        ValueError: where an argument cannot be.
    """
    feedback = ErrorFeedback(TopK(1.0))
    whole = Hierarchical(Accumulated(LocalUpdates(feedback, ahead=True, gathers=True)))
    return LocalSteps(whole, every, Outer(rate, momentum, nesterov=momentum > 0.0))


def sparseloco(every: int = 30, k: int = 64, bucket: int = 4096, bits: int = 2, decay: float = 0.95) -> Aggregator:
    """SparseLoCo (Sarfi et al. 2025): as `diloco`, with the k largest of every bucket in few bits, and no outer step.

    Args:
        every: H, steps from one exchange to the next.
        k: elements sent of each bucket.
        bucket: elements of a bucket.
        bits: 2, 4 or 8 of each value.
        decay: of what was not sent, at each exchange.

    Raises:
        ValueError: where an argument cannot be.
    """
    feedback = ErrorFeedback(Quantized(BucketTopK(k, bucket), QSGD(bits)), decay)
    return LocalSteps(Hierarchical(Compressed(LocalUpdates(feedback, ahead=True, gathers=True))), every)


def schedule(stages: Sequence[tuple[int, Aggregator]]) -> Aggregator:
    """A recipe for each range of epochs, as [(0, hitopk(0.01)), (13, torus2d())] (CommLib 5.6)."""
    return Schedule(tuple((int(start), aggregator) for start, aggregator in stages))


def auto(
    density: float,
    candidates: Sequence[str] = CANDIDATES,
    wire_dtype: str | None = None,
    budget: float = BUDGET,
) -> Aggregator:
    """Whichever of the other recipes exchanges a bucket fastest on this cluster, dense ones included; see `Auto`.

    Args:
        density: of the sparse candidates; a number.
        candidates: of "dense", "torus2d", "topk", "mstopk", "dropping" and "hitopk", the preferred ones first.
        wire_dtype: how values travel; by default sparse ones as float32, dense ones as the vector's dtype.
        budget: seconds to be spent on trying the candidates for a bucket; see `Auto`.

    Raises:
        ValueError: where a candidate is unknown, named twice or there is none, or an argument cannot be.
    """
    sparse_wire = wire_dtype or "float32"
    known: dict[str, Aggregator] = {
        "dense": dense(wire_dtype),
        "torus2d": torus2d(wire_dtype),
        "topk": topk(density, sparse_wire),
        "mstopk": mstopk(density, sparse_wire),
        "dropping": dropping(density, sparse_wire),
        "hitopk": hitopk(density, sparse_wire),
    }
    unknown = [name for name in candidates if name not in known]
    if unknown:
        raise ValueError(f"Expected candidates of {', '.join(known)}, got {unknown[0]!r}.")
    return Auto(density, tuple((name, known[name]) for name in candidates), budget)


def _every(recipe: Aggregator, every: int) -> Aggregator:
    return recipe if every == 1 else LocalSteps(recipe, every)


def _updates_of(part: Any, ahead: bool) -> Aggregator:
    """A candidate of `auto` that exchanges updates; they stay whole where it sends all of the gradient."""
    if isinstance(part, Hierarchical):
        return dataclasses.replace(part, inner=_updates_of(part.inner, ahead))
    if isinstance(part, AllReduce):
        return Accumulated(LocalUpdates(ErrorFeedback(TopK(1.0, part.wire_dtype or "float32")), ahead))
    return around_feedback(part, lambda feedback: LocalUpdates(feedback, ahead))


def _sparcml(compressor: Compressor, bits: int | None, collective: str, as_published: bool, seed: int) -> Aggregator:
    quantizer = None if bits is None else QSGD(bits)
    if not as_published:
        return SparseAllReduce(ErrorFeedback(compressor), collective, quantizer, seed)
    sent = compressor if quantizer is None else Quantized(compressor, quantizer, keeps_error=False, seed=seed)
    return SparCMLAlgorithm1(SparseAllReduce(ErrorFeedback(sent), collective))

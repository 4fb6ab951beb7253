"""The recipes: named methods of exchanging gradients, each one expression of the library's parts.

Pass a recipe as `aggregator=` to `DistributedOptimizer` or `DistributedGradientTape`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
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

DGC_DENSITIES = (0.25, 0.0625, 0.015625)  # the stages of DGC's warm-up that lie above 1%


def mean(wire_dtype: str | None = None) -> Aggregator:
    """The dense mean: `torus2d` if there are several nodes of several ranks each, otherwise `dense`; the default."""
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
    """Like `topk`, with MSTopK selection (CommLib Algorithm 1)."""
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

    Each rank estimates a threshold from a sample, sends the elements that exceed it, about `density` of the gradient,
    to all ranks, and keeps the rest.

    Args:
        density: the share that is sent, 1 - R, where R is the paper's drop rate.
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel.
        sample: the share of the vector that is sampled; see `SampledThreshold`.
        seed: seed of the sample and of a quantizer's rounding.
        quantizer: encodes the values in fewer bits, for example `OneBit("column")` or `TwoBits()` (5.4); the rounding
            error joins the residual. None sends values in `wire_dtype`.
        scope: "global", or "variable" for one threshold per variable (5.2); see `SampledThreshold`.

    Raises:
        ValueError: if an argument is invalid.
    """
    sent: Compressor = SampledThreshold(density, wire_dtype, sample, seed, scope)
    return Compressed(ErrorFeedback(sent if quantizer is None else Quantized(sent, quantizer, seed=seed)))


def dct(sparsity: float = 0.99, life: int = 1000, wire_dtype: str = "float32", drain: float = 0.0) -> Aggregator:
    """DCT-DP (Gupta et al. 2021, Algorithm 1) among ranks that send to each other, without servers.

    Args:
        sparsity: eta, the share of each variable that is not sent, in [0, 1); 1 - density in the other recipes.
        life: L, the number of steps for which the threshold of each variable is kept.
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel.
        drain: the probability, in each step, that residuals are discarded (Remark 2); see `HeldThreshold`.

    Raises:
        ValueError: if an argument is invalid.
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
        density: the share of the gradient that each rank selects, as for `topk`.
        bits: 2, 4 or 8: the collective `dynamic` gathers the sums with this many bits per value (section 6), and the
            rounding error is kept; None sends float32. Bits save bytes if the ranks' selections together fill more
            than about bits / 64 of the vector; below that, sparse sums are smaller.
        collective: if bits is None: "auto", "recursive_doubling", "split_allgather", "dynamic" or "allgather"; see
            `SparseAllReduce`.
        as_published: follows Algorithm 1 to the letter: the learning rate is applied inside the accumulator, each
            rank's values are quantized before the sum and the error is dropped, and the result is the sum over the
            ranks, not the mean; see `SparCMLAlgorithm1`. It needs a distributed optimizer. Values then travel as
            float32 whatever the bits; the paper's system quantizes the gathered sums, as this recipe otherwise does.
        seed: seed of the rounding.

    Raises:
        ValueError: if an argument is invalid.
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
    """Like `sparcml`, with the k largest elements of every bucket, as SparCML does for neural networks (8.3).

    Args:
        k: the number of elements sent from each bucket.
        bucket: the number of consecutive elements in a bucket.
        bits: as for `sparcml`.
        collective: as for `sparcml`.
        as_published: as for `sparcml`.
        seed: as for `sparcml`.

    Raises:
        ValueError: if an argument is invalid.
    """
    return _sparcml(BucketTopK(k, bucket), bits, collective, as_published, seed)


def momentum_corrected(recipe: Aggregator, momentum: float | None = None, masking: bool = True) -> Aggregator:
    """Changes a sparse recipe so that each sender applies momentum before it selects (DGC 3.2 and 3.3).

    Args:
        recipe: a recipe with error feedback and one density, such as `hitopk(0.01)`; not `auto` or a schedule.
        momentum: None takes over the optimizer's momentum, and the optimizer then runs without it; give a number if
            the optimizer has none.
        masking: whether momentum is set to zero where a value was sent.

    Raises:
        ValueError: if the recipe has no error feedback, or an argument is invalid.
    """
    changed = around_feedback(recipe, lambda feedback: MomentumCorrection(feedback, momentum, masking))
    if changed == recipe:
        raise ValueError(
            f"Expected a recipe with error feedback, such as hvd.recipes.hitopk(0.01), got {type(recipe).__name__}, "
            "which keeps no residual: momentum after the exchange has the same effect there."
        )
    return changed


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
    if isinstance(recipe, Auto):
        candidates = ((name, _updates_of(part, sender)) for name, part in recipe.candidates)
        return _every(dataclasses.replace(recipe, candidates=tuple(candidates)), every)
    changed = around_feedback(recipe, sender)
    if changed == recipe or isinstance(recipe, SparCMLAlgorithm1):
        raise ValueError(
            f"Expected a recipe with error feedback of gradients, such as hvd.recipes.hitopk(0.01), got "
            f"{type(recipe).__name__}: use it unchanged, with the optimizer after the exchange."
        )
    return _every(changed, every)


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


def dgc(
    density: float = 0.001, stage_steps: int = 100, momentum: float | None = None, masking: bool = True
) -> Aggregator:
    """Deep Gradient Compression (Lin et al. 2018): exact top-k of each rank's own momentum, with warm-up.

    As with all sparse recipes, gradients are clipped on each rank, at 1 / sqrt(P) of the optimizer's threshold.

    Args:
        density: the share that is sent after the warm-up; DGC's is 0.1%.
        stage_steps: as for `warmup`.
        momentum: as for `momentum_corrected`.
        masking: whether momentum is set to zero where a value was sent.

    Raises:
        ValueError: if an argument is invalid.
    """
    recipe = momentum_corrected(topk(density), momentum, masking)
    densities = [each for each in DGC_DENSITIES if each > density]
    return warmup(recipe, stage_steps, densities) if densities else recipe


def recommended(density: float = 0.01, seed: int = 0) -> Aggregator:
    """The recipe to start with: HiTopKComm of each node's updates, with gradients computed ahead (see `updates`).

    In your own loop, compute gradients in `with hvd.looking_ahead(optimizer)`; `fit` does so. Begin with the learning
    rate that is best for dense training: updates are multiplied by the root of the gain ratio.

    Args:
        density: the share of the updates that is sent.
        seed: seed of MSTopK.

    Raises:
        ValueError: if an argument is invalid.
    """
    return updates(hitopk(density, seed=seed), ahead=True, gain_ratio=True)


def dense_below(recipe: Aggregator, elements: int = 1024) -> Aggregator:
    """Changes a sparse recipe so that small variables, such as biases and normalizations, are sent whole.

    Args:
        recipe: for all other variables. `dense_below(warmup(...))` and `warmup(dense_below(...))` are the same.
        elements: variables with fewer elements than this are sent whole.

    Raises:
        ValueError: if an argument is invalid, or the recipe sends the whole gradient.
    """
    return DenseBelow(recipe, elements)


def diloco(every: int = 30, rate: float = 0.7, momentum: float = 0.9) -> Aggregator:
    """DiLoCo (Douillard et al. 2023): each node trains on its own for H steps, then all take an outer Nesterov step.

    Nodes are DiLoCo's workers; inside a node gradients are averaged in every step. In your own loop, compute gradients
    in `with hvd.looking_ahead(optimizer)`; `fit` does so.

    Args:
        every: H, the number of steps from one exchange to the next.
        rate: learning rate of the outer step.
        momentum: momentum of the outer step.

    Raises:
        ValueError: if an argument is invalid.
    """
    feedback = ErrorFeedback(TopK(1.0))
    whole = Hierarchical(Accumulated(LocalUpdates(feedback, ahead=True, gathers=True)))
    return LocalSteps(whole, every, Outer(rate, momentum, nesterov=momentum > 0.0))


def sparseloco(every: int = 30, k: int = 64, bucket: int = 4096, bits: int = 2, decay: float = 0.95) -> Aggregator:
    """SparseLoCo (Sarfi et al. 2025): like `diloco`, but without the outer step, and with the k largest of each bucket.

    Args:
        every: H, the number of steps from one exchange to the next.
        k: the number of elements sent from each bucket.
        bucket: the number of consecutive elements in a bucket.
        bits: bits per value that is sent: 2, 4 or 8.
        decay: factor by which what was not sent is multiplied at each exchange.

    Raises:
        ValueError: if an argument is invalid.
    """
    feedback = ErrorFeedback(Quantized(BucketTopK(k, bucket), QSGD(bits)), decay)
    return LocalSteps(Hierarchical(Compressed(LocalUpdates(feedback, ahead=True, gathers=True))), every)


def schedule(stages: Sequence[tuple[int, Aggregator]]) -> Aggregator:
    """One recipe per range of epochs, for example [(0, hitopk(0.01)), (13, torus2d())] (CommLib 5.6)."""
    return Schedule(tuple((int(start), aggregator) for start, aggregator in stages))


def auto(
    density: float,
    candidates: Sequence[str] = CANDIDATES,
    wire_dtype: str | None = None,
    budget: float = BUDGET,
) -> Aggregator:
    """For each bucket, the recipe that exchanges it fastest on this cluster, dense ones included; see `Auto`.

    Args:
        density: the density of the sparse candidates; a number.
        candidates: any of "dense", "torus2d", "topk", "mstopk", "dropping" and "hitopk", preferred ones first.
        wire_dtype: the dtype in which values travel; by default float32 for sparse ones, the vector's for dense ones.
        budget: seconds that may be spent on trying the candidates for a bucket; see `Auto`.

    Raises:
        ValueError: if a candidate is unknown or named twice, there is none, or an argument is invalid.
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
        raise ValueError(f"Expected candidates from {', '.join(known)}, got {unknown[0]!r}.")
    return Auto(density, tuple((name, known[name]) for name in candidates), budget)


def _every(recipe: Aggregator, every: int) -> Aggregator:
    return recipe if every == 1 else LocalSteps(recipe, every)


def _updates_of(part: Any, sender: Callable[[ErrorFeedback], LocalUpdates]) -> Aggregator:
    """A candidate of `auto`, changed to exchange updates; a dense candidate exchanges all of them."""
    if isinstance(part, Hierarchical):
        return dataclasses.replace(part, inner=_updates_of(part.inner, sender))
    if isinstance(part, AllReduce):
        return Accumulated(sender(ErrorFeedback(TopK(1.0, part.wire_dtype or "float32"))))
    return around_feedback(part, sender)


def _sparcml(compressor: Compressor, bits: int | None, collective: str, as_published: bool, seed: int) -> Aggregator:
    quantizer = None if bits is None else QSGD(bits)
    if not as_published:
        return SparseAllReduce(ErrorFeedback(compressor), collective, quantizer, seed)
    sent = compressor if quantizer is None else Quantized(compressor, quantizer, keeps_error=False, seed=seed)
    return SparCMLAlgorithm1(SparseAllReduce(ErrorFeedback(sent), collective))

"""Recipes with a name of their own that combine others."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.aggregators import Accumulated, Aggregator, ByNodes, Compressed, Hierarchical, LocalSteps, Outer
from hvd_sparse.aggregators.named import named
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import QSGD
from hvd_sparse.compression.selectors import BucketTopK, Quantized, TopK
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.costs import CANDIDATES
from hvd_sparse.recipes.changes import DGC_DENSITIES, momentum_corrected, updates, warmup
from hvd_sparse.recipes.sparse import blocks, dropping, hitopk, mstopk, topk
from hvd_sparse.recipes.whole import dense, torus2d
from hvd_sparse.tuning.auto import BUDGET, Auto

MANY = 3  # nodes from which on `recommended` averages blocks


@named
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


@named
def recommended(density: float = 0.01, seed: int = 0) -> Aggregator:
    """The recipe to start with: updates of each node, with gradients computed ahead (see `updates`), in few bytes.

    Two nodes send each other the largest of their updates, as `hitopk`. What each node selects would have to reach all
    others, so on more nodes one of several blocks is averaged in each step, as by `blocks`, in as many bytes as two
    nodes send, however many there are; the first rank logs which it is.

    In your own loop, compute gradients in `with hvd.looking_ahead(optimizer)`; `fit` does so. Begin with the learning
    rate that is best for dense training: updates are multiplied by the root of the gain ratio.

    Args:
        density: the share of the updates that is sent between two nodes; on more, the budget of as many bytes: at 0.01
            one of 3 blocks in 2 bits.
        seed: seed of MSTopK, and of the rounding to 4 or 8 bits.

    Raises:
        ValueError: if an argument is invalid.
    """
    if callable(density):
        raise ValueError(
            "Expected a number as the density, got a function of the step: use recipes.warmup(recipes.recommended("
            "0.01), steps=...), or recipes.updates(recipes.hitopk(density), ahead=True, gain_ratio=True)."
        )
    few, many = hitopk(density, seed=seed), blocks(seed=seed).at_density(density)
    return updates(ByNodes(((1, few), (MANY, many))), ahead=True, gain_ratio=True)


@named
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


@named
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


@named
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

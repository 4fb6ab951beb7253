"""Recipes that send a part of the gradient and keep the rest for later."""

from __future__ import annotations

from hvd_sparse.aggregators import (
    Aggregator,
    Compressed,
    Hierarchical,
    RotatingBlocks,
    SparCMLAlgorithm1,
    SparseAllReduce,
)
from hvd_sparse.aggregators.named import named
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.block import BUCKET, Block
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.held import HeldThreshold
from hvd_sparse.compression.quantizers import QSGD, OneBit, Quantizer, TwoBits
from hvd_sparse.compression.selection import Density
from hvd_sparse.compression.selectors import BucketTopK, MSTopK, Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold


@named
def topk(density: Density, wire_dtype: str = "float32") -> Aggregator:
    """Exact top-k with error feedback, gathered from all ranks: CommLib's TopK-SGD by NaiveAG (3.2, Eq. 3)."""
    return Compressed(ErrorFeedback(TopK(density, wire_dtype)))


@named
def mstopk(density: Density, wire_dtype: str = "float32", samplings: int = 30, seed: int = 0) -> Aggregator:
    """Like `topk`, with MSTopK selection (CommLib Algorithm 1)."""
    return Compressed(ErrorFeedback(MSTopK(density, wire_dtype, samplings, seed)))


@named
def hitopk(density: Density, wire_dtype: str = "float32", samplings: int = 30, seed: int = 0) -> Aggregator:
    """HiTopKComm with MSTopK selection and error feedback: CommLib's MSTopK-SGD (Algorithms 1 and 2)."""
    return Hierarchical(Compressed(ErrorFeedback(MSTopK(density, wire_dtype, samplings, seed))))


@named
def blocks(count: int = 3, bits: int | None = 2, wire_dtype: str = "float32", seed: int = 0) -> Aggregator:
    """One of several blocks in each step, in turn, the same on all nodes, averaged by owners: bytes do not grow with P.

    A node sends 2 / `count` of the bits of a vector of `bits` each, however many nodes there are: dense's bytes / ours
    are 45 with the defaults.

    Args:
        count: the number of blocks; each element is sent in every `count`-th step, and waits in between.
        bits: 1, 2, 4 or 8 bits per value, or None for `wire_dtype`; the rounding error is kept.
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel if `bits` is None.
        seed: seed of the rounding to 4 or 8 bits.

    Raises:
        ValueError: if an argument is invalid.
    """
    if bits not in (None, 1, 2, 4, 8):
        raise ValueError(f"Expected bits to be 1, 2, 4, 8 or None, got {bits!r}: None sends values in wire_dtype.")
    coders: dict[int, Quantizer] = {1: OneBit("global"), 2: TwoBits()}
    coder = None if bits is None else coders.get(bits) or QSGD(bits, BUCKET)
    return Hierarchical(RotatingBlocks(ErrorFeedback(Block(count, wire_dtype, coder, seed))))


@named
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


@named
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


@named
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


@named
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


def _sparcml(compressor: Compressor, bits: int | None, collective: str, as_published: bool, seed: int) -> Aggregator:
    quantizer = None if bits is None else QSGD(bits)
    if not as_published:
        return SparseAllReduce(ErrorFeedback(compressor), collective, quantizer, seed)
    sent = compressor if quantizer is None else Quantized(compressor, quantizer, keeps_error=False, seed=seed)
    return SparCMLAlgorithm1(SparseAllReduce(ErrorFeedback(sent), collective))

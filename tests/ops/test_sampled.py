"""Gradient dropping's selection: equal to NumPy bit for bit for all instruction sets, thread counts and data."""

import ctypes

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from tests.gpu import reference
from tests.ops import native
from tests.ops.test_select_kernels import DTYPES, INPUTS, held, same

LARGE = 1_100_003  # a residual of this size is written with stores that bypass the caches
KINDS = ["gaussian", "ties", "constant", "zeros", "ascending", "one outlier", "large in front", "misleading"]


def dropped(parts, residual, k, seed=0, sample=0.001, wire=tf.float32, ends=()):
    return ops.library().hvd_sparse_feedback_sampled(
        parts=parts, residual=residual, k=k, seed=seed, sample=sample, wire_dtype=wire, ends=list(ends)
    )


def check(parts, residual, k, seed, sample, wire):
    """Compares indices, values and residual with the reference."""
    values, indices, left, culprit = dropped(parts, residual, k, seed, sample, tf.as_dtype(wire.name))
    chosen = reference.sampled(reference.accumulate(held(parts), residual), k, sample, seed)
    coded = np.uint16 if wire == native.BFLOAT16 else wire
    sent, kept = reference.feedback(held(parts), residual, chosen, coded)
    assert int(culprit) == 0
    np.testing.assert_array_equal(indices, chosen)
    np.testing.assert_array_equal(held(values.numpy()), sent)
    same(left, kept)
    return len(chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_finds_what_the_sample_says(kind):
    random = np.random.default_rng(len(kind))
    for size in (1, 63, 1025, 4097, 50_000):
        parts = np.stack([INPUTS[kind](random, size) for _ in range(2)]).astype(np.float32)
        residual = (0.1 * random.standard_normal(size)).astype(np.float32)
        if kind in ("constant", "zeros"):
            residual[:] = 0
        for k in sorted({1, -(-size // 100), -(-size // 3), size}):
            for seed, sample in ((0, 0.001), (-(2**63), 0.1)):
                for isa in native.isas():
                    with native.isa(native.ISAS[isa]):
                        check(parts, residual, k, seed, sample, DTYPES[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wire", DTYPES, ids=str)
def test_narrow_elements_and_wires(dtype, wire):
    random = np.random.default_rng(4)
    parts = random.standard_normal((3, 5000)).astype(dtype)
    check(parts, random.standard_normal(5000).astype(np.float32), 50, 1, 0.01, wire)


@pytest.mark.parametrize("kind", ["gaussian", "ascending"])
def test_large_vectors_by_the_threads_of_the_device(kind):
    random = np.random.default_rng(9)
    parts = INPUTS[kind](random, LARGE).astype(np.float32)[np.newaxis]
    residual = random.standard_normal(LARGE).astype(np.float32)
    found = check(parts, residual, LARGE // 100, 5, 0.001, DTYPES[0])
    assert found != LARGE // 100, "the sample is not expected to hit k"


@pytest.mark.parametrize("wire", DTYPES, ids=str)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 5), st.integers(1000, 5000)), min_size=1, max_size=5),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
)
def test_pieces_have_thresholds_of_their_own(wire, sizes, share, seed, kinds):
    """The result of each piece is as if it were exchanged alone, with its own sample."""
    random = np.random.default_rng(seed)
    pieces = [INPUTS[kind](random, size).astype(np.float32) for kind, size in zip(kinds, sizes, strict=False)]
    residuals = [random.standard_normal(size).astype(np.float32) for size in sizes]
    kept, ends = [int(np.ceil(share * size)) for size in sizes], np.cumsum(sizes)
    found = dropped(
        np.concatenate(pieces)[np.newaxis], np.concatenate(residuals), kept, seed, 0.1, tf.as_dtype(wire.name), ends
    )
    alone = [
        dropped(piece[np.newaxis], residual, k, seed + (number << 48), 0.1, tf.as_dtype(wire.name))
        for number, (piece, residual, k) in enumerate(zip(pieces, residuals, kept, strict=True))
    ]
    begins = [0, *ends[:-1]]
    expected = [each[1].numpy() + begin for each, begin in zip(alone, begins, strict=True)]
    np.testing.assert_array_equal(found[1], np.concatenate(expected))
    for part in (0, 2):
        joined = np.concatenate([held(each[part].numpy()) for each in alone])
        same(held(found[part].numpy()), joined)
    assert int(found[3]) == max(int(each[3]) for each in alone)  # an outlier may be too large for the wire dtype


@pytest.mark.parametrize("broken, told", [((1,), 2), ((0, 2), 1), ((2, 1), 2)])
def test_the_first_part_that_is_not_finite_is_told_whichever_piece_it_is_in(broken, told):
    """Part number p is not finite in piece number i, for p of `broken` in the order of the pieces."""
    parts = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    for piece, part in enumerate(broken):
        parts[part, 50 * piece + 7] = np.nan
    assert int(dropped(parts, np.zeros(100, "f4"), [5, 5], ends=[50, 100])[3]) == told
    assert int(dropped(np.full((2, 10), 3e38, "f4"), np.zeros(10, "f4"), [1, 1], ends=[5, 10])[3]) == 3


def test_another_seed_is_another_sample():
    parts = np.random.default_rng(2).standard_normal((1, 20_000)).astype(np.float32)
    counts = {len(dropped(parts, np.zeros(20_000, "f4"), 200, seed)[1]) for seed in range(8)}
    assert len(counts) > 3 and all(100 <= count <= 400 for count in counts)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told(bad):
    parts = np.random.default_rng(5).standard_normal((3, 9000)).astype(np.float32)
    for place in (0, 4500, 8999):
        broken = parts.copy()
        broken[1, place] = bad
        _, indices, _, culprit = dropped(broken, np.zeros(9000, "f4"), 90)
        assert int(culprit) == 2 and len(set(indices.numpy())) == len(indices) <= 180
    assert int(dropped(np.full((2, 10), 3e38, "f4"), np.zeros(10, "f4"), 3)[3]) == 3
    assert int(dropped(np.full((1, 10), 1e5, "f4"), np.zeros(10, "f4"), 3, wire=tf.float16)[3]) == 2


def test_nothing_is_dropped_of_nothing():
    values, indices, left, culprit = dropped(np.zeros((2, 0), "f4"), np.zeros(0, "f4"), 0)
    assert values.shape == indices.shape == left.shape == [0] and int(culprit) == 0
    values, _, left, _ = dropped(np.ones((1, 2000), "f4"), np.zeros(2000, "f4"), 0)
    assert values.shape == [0] and left.numpy().sum() == 2000


@pytest.mark.parametrize(
    "change, told",
    [
        ({"k": 11}, r"k in \[0, 10\]"),
        ({"k": [1]}, "k as a scalar|must be rank 0"),
        ({"seed": [1]}, "seed as a scalar|must be rank 0"),
        ({"sample": 0.0}, r"sample in \(0, 1\], got 0"),
        ({"sample": 1.5}, r"sample in \(0, 1\], got 1.5"),
        ({"ends": [10]}, r"k \[1\] and pieces that end at 10, got shape \[\]|must be rank 1"),
        ({"ends": [5, 9], "k": [1, 1]}, r"k \[2\] and pieces that end at 10, got shape \[2\] and an end at 9"),
        ({"ends": [5, 5, 10], "k": [1, 0, 1]}, "ends that ascend, got 5 after 5"),
        ({"ends": [5, 10], "k": [1, 6]}, r"k in \[0, 5\].* got 6"),
        ({"residual": np.zeros(9, "f4")}, r"residual \[10\]|must be equal"),
    ],
)
def test_arguments_that_cannot_be(change, told):
    good = {"parts": np.zeros((1, 10), "f4"), "residual": np.zeros(10, "f4"), "k": 1}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=told):
        dropped(**{**good, **change})


def test_the_kernel_takes_no_residual_in_place():
    """If the sample is misleading, it computes the sum a second time."""

    class Sampling(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int64) for name in ("samples", "rank", "seed", "least", "most", "kept")]

    library = native.library()
    library.hvds_workspace_create.restype = ctypes.c_void_p
    memory = ctypes.c_void_p(library.hvds_workspace_create())
    parts, residual, sampling = np.ones(10, "f4"), np.zeros(10, "f4"), Sampling(10, 1, 0, 0, 2, 1)
    number = [ctypes.c_int64(each) for each in (1, 10, 10)]
    told, sent = np.zeros(1, np.int32), np.zeros(1, np.int64)

    def run(out):
        return library.hvds_feedback_sampled(
            native.pointer(parts), native.code(parts), *number[:2], native.pointer(residual), number[2],
            ctypes.byref(sampling), native.code(parts), native.pointer(out), native.pointer(told),
            native.pointer(sent), memory, None,
        )  # fmt: skip

    assert run(residual) == -1 and not residual.any()
    assert run(np.zeros(10, "f4")) == 0
    library.hvds_workspace_destroy(memory)

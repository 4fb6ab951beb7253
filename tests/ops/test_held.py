"""Selection by held thresholds: equal to NumPy bit for bit, with any instruction set and number of threads."""

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
STALE = (0.0, 1e-3, 0.25, 1.0, 1.5, 1e30)  # too low or too high for some inputs, or equal to many magnitudes


def select(parts, residual, k, thresholds, due, wire=tf.float32, ends=None):
    """Selects from one piece, unless `ends` are given."""
    one = ends is None
    return ops.library().hvd_sparse_feedback_held(
        parts=parts,
        residual=residual,
        k=[k] if one else k,
        thresholds=[thresholds] if one else thresholds,
        due=[due] if one else due,
        wire_dtype=wire,
        ends=[parts.shape[1]] if one else list(ends),
    )


def check(parts, residual, k, threshold, wire=DTYPES[0]):
    """Compares indices, values, residual and threshold with the reference; without threshold, a new one is due."""
    due = threshold is None
    found = select(parts, residual, k, 7.0 if due else threshold, due, tf.as_dtype(wire.name))
    values, indices, left, culprit, thresholds, clamped = found
    total = reference.accumulate(held(parts), residual)
    chosen, threshold, acted = reference.held(total, k, None if due else np.float32(threshold))
    coded = np.uint16 if wire == native.BFLOAT16 else wire
    sent, kept = reference.feedback(held(parts), residual, chosen, coded)
    assert int(culprit) == 0 and thresholds.numpy() == [threshold] and clamped.numpy() == [acted]
    np.testing.assert_array_equal(indices, chosen)
    np.testing.assert_array_equal(held(values.numpy()), sent)
    same(left, kept)
    return acted


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_finds_what_reaches_the_threshold(kind):
    random = np.random.default_rng(len(kind))
    acted = set()
    for size in (1, 63, 1025, 4097, 30_000):
        parts = np.stack([INPUTS[kind](random, size) for _ in range(2)]).astype(np.float32)
        residual = (0.1 * random.standard_normal(size)).astype(np.float32)
        if kind in ("constant", "zeros"):
            residual[:] = 0
        for k in sorted({1, -(-size // 100), -(-size // 3), size}):
            for isa in native.isas():
                with native.isa(native.ISAS[isa]):
                    acted |= {check(parts, residual, k, threshold) for threshold in (None, *STALE)}
    assert acted == ({False} if kind == "zeros" else {False, True})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wire", DTYPES, ids=str)
def test_narrow_elements_and_wires(dtype, wire):
    """Tiny elements, which a narrow wire dtype rounds to zero, are sent and also stay in the residual."""
    random = np.random.default_rng(4)
    parts = random.standard_normal((3, 5000)).astype(dtype)
    residual = random.standard_normal(5000).astype(np.float32)
    for threshold in (None, 0.0, 2.0, 9.0):
        check(parts, residual, 50, threshold, wire)
    few = np.zeros((1, 5000), dtype)
    few[0, 7], few[0, 4100:4103] = -0.0, 1e-40
    left = np.zeros(5000, np.float32)
    left[9:12] = -0.0, 1e-30, -1e-41
    for threshold in (None, 0.0, 1.0):
        check(few, left, 40, threshold, wire)


@pytest.mark.parametrize("kind", ["gaussian", "ascending", "constant"])
def test_large_vectors_by_the_threads_of_the_device(kind):
    """If far more elements than may be sent reach the threshold, they are reduced in the same pass or in others."""
    random = np.random.default_rng(9)
    parts = INPUTS[kind](random, LARGE).astype(np.float32)[np.newaxis]
    residual = np.zeros(LARGE, np.float32) if kind == "constant" else random.standard_normal(LARGE).astype(np.float32)
    for threshold in (None, 0.5, 1e30):
        check(parts, residual, LARGE // 100, threshold)


@given(
    size=st.integers(1, 5000),
    share=st.floats(0, 1),
    kind=st.sampled_from(KINDS),
    wire=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
    threshold=st.one_of(st.none(), st.floats(0, 4, width=32), st.sampled_from(STALE)),
)
def test_sent_and_residual_are_the_input_and_the_largest_are_sent(size, share, kind, wire, seed, threshold):
    """Bit for bit; and no remaining element is larger than any that is sent."""
    random = np.random.default_rng(seed)
    parts = INPUTS[kind](random, size).astype(np.float32)[np.newaxis]
    residual = (random.standard_normal(size) * (random.random(size) < 0.5)).astype(np.float32)
    k, due = max(1, int(share * size)), threshold is None
    values, indices, left, culprit, thresholds, _ = select(
        parts, residual, k, 0.0 if due else threshold, due, tf.as_dtype(wire.name)
    )
    total = reference.accumulate(parts, residual)
    if int(culprit) != 0:
        assert wire == np.float16 and np.abs(total).max() > 65504
        return
    decoded = np.zeros(size, np.float32)
    decoded[indices] = tf.cast(values, tf.float32)
    same(np.where(decoded != 0, decoded + left, left), total)
    least, most = -(-k // 4), min(4 * k, size)
    assert min(least, np.count_nonzero(total)) <= len(indices) <= most
    if 0 < len(indices) < size:
        assert np.abs(total[indices]).min() >= np.abs(np.delete(total, indices)).max()
    assert not due or thresholds.numpy() == [np.sort(np.abs(total))[size - k] if k < size else 0]


@pytest.mark.parametrize("wire", DTYPES, ids=str)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 5), st.integers(1000, 3000)), min_size=1, max_size=5),
    share=st.floats(0.001, 1),
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    thresholds=st.lists(st.one_of(st.none(), st.sampled_from(STALE)), min_size=5, max_size=5),
)
def test_pieces_have_thresholds_of_their_own(wire, sizes, share, seed, kinds, thresholds):
    """The result of each piece is as if it were exchanged alone."""
    random = np.random.default_rng(seed)
    pieces = [INPUTS[kind](random, size).astype(np.float32) for kind, size in zip(kinds, sizes, strict=False)]
    residuals = [random.standard_normal(size).astype(np.float32) for size in sizes]
    kept, ends, dtype = [int(np.ceil(share * size)) for size in sizes], np.cumsum(sizes), tf.as_dtype(wire.name)
    due = [each is None for each in thresholds[: len(sizes)]]
    last = [each or 0.0 for each in thresholds[: len(sizes)]]
    found = select(np.concatenate(pieces)[np.newaxis], np.concatenate(residuals), kept, last, due, dtype, ends)
    alone = [
        select(piece[np.newaxis], *each, dtype) for piece, *each in zip(pieces, residuals, kept, last, due, strict=True)
    ]
    begins = [0, *ends[:-1]]
    expected = [each[1].numpy() + begin for each, begin in zip(alone, begins, strict=True)]
    np.testing.assert_array_equal(found[1], np.concatenate(expected))
    for part in (0, 2, 4, 5):
        joined = np.concatenate([held(each[part].numpy()) for each in alone])
        np.testing.assert_array_equal(held(found[part].numpy()), joined)
    assert int(found[3]) == max(int(each[3]) for each in alone)  # an outlier may be too large for the wire dtype


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threshold", [None, 0.0, 2.0, 1e30, np.inf, np.nan])
def test_what_is_not_finite_is_told(bad, threshold):
    parts = np.random.default_rng(5).standard_normal((3, 9000)).astype(np.float32)
    due, last = threshold is None, threshold or 0.0
    for place in (0, 4500, 8999):
        broken = parts.copy()
        broken[1, place] = bad
        _, indices, _, culprit, *_ = select(broken, np.zeros(9000, "f4"), 90, last, due)
        assert int(culprit) == 2 and len(set(indices.numpy())) == len(indices) <= 360
    assert int(select(np.full((2, 10), 3e38, "f4"), np.zeros(10, "f4"), 3, last, due)[3]) == 3
    assert int(select(np.full((1, 10), 1e5, "f4"), np.zeros(10, "f4"), 3, last, due, tf.float16)[3]) == 2


@pytest.mark.parametrize(
    "change, told",
    [
        ({"k": [11]}, r"k in \[0, 10\]"),
        ({"k": [0]}, "k of at least 1, as a threshold is the k-th magnitude, got 0"),
        ({"k": 1}, r"k \[1\] and pieces that end at 10, got shape \[\]|must be rank 1|same rank"),
        ({"ends": []}, "at least minimum 1"),
        ({"ends": [9]}, "got shape .* and an end at 9"),
        ({"thresholds": [1.0, 2.0]}, r"thresholds and due \[1\], got shapes \[2\] and \[1\]|must be equal"),
        ({"due": []}, r"thresholds and due \[1\], got shapes \[1\] and \[0\]|must be equal"),
        ({"residual": np.zeros(9, "f4")}, r"residual \[10\]|must be equal"),
    ],
)
def test_arguments_that_cannot_be(change, told):
    good = {"parts": np.zeros((1, 10), "f4"), "residual": np.zeros(10, "f4"), "k": [1], "ends": [10]}
    good |= {"thresholds": [0.0], "due": tf.constant([True])}
    change = {name: tf.constant(value, tf.bool) if name == "due" else value for name, value in change.items()}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=told):
        ops.library().hvd_sparse_feedback_held(**{**good, **change})


def test_the_kernel_takes_no_residual_in_place():
    """It may compute the sum a second time."""

    class Holding(ctypes.Structure):
        _fields_ = [("due", ctypes.c_int), *((name, ctypes.c_int64) for name in ("kept", "least", "most"))]

    library = native.library()
    library.hvds_workspace_create.restype = ctypes.c_void_p
    memory = ctypes.c_void_p(library.hvds_workspace_create())
    parts, residual, threshold = np.ones(10, "f4"), np.zeros(10, "f4"), np.zeros(1, "f4")
    number = [ctypes.c_int64(each) for each in (1, 10, 10)]
    told, sent = np.zeros(2, np.int32), np.zeros(1, np.int64)

    def run(out, *holding):
        return library.hvds_feedback_held(
            native.pointer(parts), native.code(parts), *number[:2], native.pointer(residual), number[2],
            ctypes.byref(Holding(*holding)), native.code(parts), native.pointer(threshold), native.pointer(out),
            native.pointer(told[:1]), native.pointer(sent), native.pointer(told[1:]), memory, None,
        )  # fmt: skip

    good = (1, 2, 1, 8)
    assert run(residual, *good) == -1 and not residual.any()
    for holding in ((1, 0, 1, 8), (1, 11, 1, 8), (1, 2, 0, 8), (1, 2, 9, 8), (1, 2, 1, 11)):
        assert run(np.zeros(10, "f4"), *holding) == -1
    assert run(np.zeros(10, "f4"), *good) == 0 and threshold == [1] and sent == [8] and told.tolist() == [0, 1]
    library.hvds_workspace_destroy(memory)

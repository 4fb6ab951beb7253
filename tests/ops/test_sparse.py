"""sum_parts, pack, unpack and sparse_sum: equal to NumPy bit for bit."""

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from tests.ops.native import BFLOAT16
from tests.simulation import same_bits

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
WINDOW = 8192  # the kernels' unit of work
SIZES = [0, 1, 2, 7, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5]
names = {"ids": str}


def reference_sum_parts(parts):
    total = parts[0].astype(np.float32)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = total + part.astype(np.float32)
    finite = [bool(np.isfinite(part.astype(np.float32)).all()) for part in parts] + [bool(np.isfinite(total).all())]
    return total, 0 if all(finite) else 1 + finite.index(False)


def reference_sparse_sum(values, indices, size, divisor, offset, dtype):
    dense = np.zeros(size, np.float32)
    np.add.at(dense, indices - offset, values.astype(np.float32))
    touched = np.unique(indices - offset)
    dense[touched] /= np.float32(divisor)
    return dense.astype(dtype)


def reference_pack(values, indices):
    data = indices.astype(np.int32).tobytes() + values.tobytes()
    return np.frombuffer(data + bytes(-len(data) % 4), np.int32)


def floats(random, shape, dtype):
    """Floats of many magnitudes, including denormal ones, with zeros of both signs."""
    magnitudes = 10.0 ** random.uniform(-44 if dtype == np.float32 else -8, 4, shape)
    signs = random.choice([-1.0, -0.0, 0.0, 1.0], shape, p=[0.45, 0.05, 0.05, 0.45])
    return (magnitudes * signs).astype(dtype)


# ---- sum_parts ----


@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9])
def test_parts_are_summed_in_order(dtype, count):
    random = np.random.default_rng(count)
    for size in SIZES:
        parts = floats(random, (count, size), dtype)
        total, fault = ops.sum_parts(parts)
        expected, expected_fault = reference_sum_parts(parts)
        same_bits(total.numpy(), expected)
        assert (fault.numpy(), expected_fault) == (0, 0)


@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, WINDOW - 1, WINDOW, 2 * WINDOW])
def test_the_lowest_faulty_part_is_named(dtype, bad, place):
    for faulty in range(5):
        parts = np.ones((5, 2 * WINDOW + 1), dtype)
        parts[faulty:, place] = bad
        _, fault = ops.sum_parts(parts)
        assert fault.numpy() == 1 + faulty


def test_parts_that_cancel_to_nan_are_the_fault_of_the_first():
    parts = np.zeros((3, 10), np.float32)
    parts[1, 4], parts[2, 4] = np.inf, -np.inf
    assert ops.sum_parts(parts)[1].numpy() == 2


def test_an_overflowing_sum_is_the_fault_of_no_part():
    parts = np.full((3, 10), 0.0, np.float32)
    parts[:, 7] = np.finfo(np.float32).max
    total, fault = ops.sum_parts(parts)
    assert np.isinf(total.numpy()[7])
    assert fault.numpy() == 4


def test_the_largest_half_is_finite():
    assert ops.sum_parts(np.full((2, 9), 65504.0, np.float16))[1].numpy() == 0
    assert ops.sum_parts(np.full((2, 9), -np.finfo(np.float32).max / 2, np.float32))[1].numpy() == 0


def test_every_half_and_every_bfloat16_is_widened_exactly():
    for dtype in (np.dtype(np.float16), BFLOAT16):
        every = np.arange(2**16, dtype=np.uint16).view(dtype)
        finite = every[np.isfinite(every.astype(np.float32))]
        total, fault = ops.sum_parts(finite[np.newaxis])
        same_bits(total.numpy(), finite.astype(np.float32))
        assert fault.numpy() == 0


def test_denormal_numbers_are_kept_on_threads_that_flush_them():
    """Threads that run a graph flush denormal numbers to zero; Python's thread does not."""
    tiny = np.float32(1e-40)
    parts = np.full((2, 1000), tiny, np.float32)
    flushed, kept = [], []
    graph = tf.function(
        lambda x: (tf.reduce_max(x * 1.0), *ops.sum_parts(x), ops.sparse_sum(x[0], tf.range(1000), 1000))
    )
    for _ in range(20):
        product, total, _, dense = graph(parts)
        flushed.append(product.numpy() == 0)
        kept.append((total.numpy() == tiny + tiny).all() and (dense.numpy() == tiny).all())
    assert all(kept)
    assert any(flushed), "the graph ran on threads that keep denormal numbers, so this test shows nothing"


# ---- pack and unpack ----


@pytest.mark.parametrize("dtype", DTYPES, **names)
@given(counts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 2**32 - 1))
def test_what_was_packed_is_unpacked(dtype, counts, seed):
    random = np.random.default_rng(seed)
    bits = [random.integers(0, 2 ** (8 * dtype.itemsize), count, np.uint64) for count in counts]
    values = [each.astype(f"u{dtype.itemsize}").view(dtype) for each in bits]  # arbitrary bits, including NaNs
    indices = [random.integers(0, 2**31, count).astype(np.int32) for count in counts]
    messages = [ops.pack(v, i).numpy() for v, i in zip(values, indices, strict=True)]
    for message, own_values, own_indices in zip(messages, values, indices, strict=True):
        assert message.tobytes() == reference_pack(own_values, own_indices).tobytes()
    joined = np.concatenate([*messages, np.zeros(0, np.int32)])
    unpacked, where = ops.unpack(joined, tf.constant(counts, tf.int32), dtype)
    assert unpacked.numpy().tobytes() == b"".join(each.tobytes() for each in values)
    assert where.numpy().tobytes() == b"".join(each.tobytes() for each in indices)
    assert (unpacked.dtype, where.dtype) == (tf.as_dtype(dtype), tf.int32)


# ---- sparse_sum ----


@st.composite
def contributions(draw):
    """Entries in ranks' order or in any order, for a vector of any size; with an offset."""
    size = draw(st.sampled_from(SIZES[1:]))
    offset = draw(st.sampled_from([0, 1, 5000, 2**31 - 1 - size]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ranks = draw(st.integers(0, 5))
    each = [random.choice(size, random.integers(0, min(size, 300) + 1), replace=False) for _ in range(ranks)]
    if draw(st.booleans()):
        each = [np.sort(own) for own in each]
    if draw(st.booleans()):
        each += [np.array([0, size - 1, size - 1])]
    indices = np.concatenate([*each, np.zeros(0, np.int64)]).astype(np.int64) + offset
    return size, offset, indices.astype(np.int32), random


@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("output", DTYPES, **names)
@given(entries=contributions(), divisor=st.sampled_from([1, 2, 3, 7, 0.1]))
def test_contributions_are_added_in_the_order_in_which_they_stand(dtype, output, entries, divisor):
    size, offset, indices, random = entries
    values = floats(random, len(indices), dtype)
    with np.errstate(over="ignore"):
        expected = reference_sparse_sum(values, indices, size, divisor, offset, output)
    dense = ops.sparse_sum(values, indices, size, divisor=divisor, offset=offset, dtype=tf.as_dtype(output))
    same_bits(dense.numpy(), expected)


def test_scattered_entries_are_added_in_the_order_in_which_they_stand():
    """The runs are so many that they are sorted first, and the places so few that each gets many values."""
    random = np.random.default_rng(0)
    size, count = 100 * WINDOW, 40_000
    indices = random.choice(random.integers(0, size, 2000), count).astype(np.int32)
    values = floats(random, count, np.float32)
    same_bits(ops.sparse_sum(values, indices, size, 3).numpy(), reference_sparse_sum(values, indices, size, 3, 0, "f4"))


@pytest.mark.parametrize("output", DTYPES[1:], **names)
def test_sums_are_rounded_to_nearest_even(output):
    """All float32 numbers next to, and half way between, neighbouring numbers of the narrow dtype."""
    every = np.arange(2**16, dtype=np.uint16).view(output).astype(np.float32)
    below = np.sort(every[np.isfinite(every)])
    half_way = ((below[1:].astype(np.float64) + below[:-1]) / 2).astype(np.float32)
    values = np.concatenate(
        [below, half_way, np.nextafter(half_way, np.float32(np.inf)), np.nextafter(half_way, np.float32(-np.inf))]
    )
    values = values[values != 0]
    dense = ops.sparse_sum(values, np.arange(len(values), dtype=np.int32), len(values), dtype=tf.as_dtype(output))
    same_bits(dense.numpy(), values.astype(output))


def test_too_large_for_half_becomes_infinite_and_nan_stays_nan():
    values = np.array([65519.0, 65520.0, -1e38, np.nan, np.inf], np.float32)
    dense = ops.sparse_sum(values, np.arange(5, dtype=np.int32), 5, dtype=tf.float16).numpy()
    np.testing.assert_array_equal(dense, np.array([65504.0, np.inf, -np.inf, np.nan, np.inf], np.float16))


def test_no_contributions_make_zeros():
    for size in (0, 1, WINDOW + 1):
        dense = ops.sparse_sum(np.zeros(0, np.float32), np.zeros(0, np.int32), size)
        same_bits(dense.numpy(), np.zeros(size, np.float32))


def test_a_negative_zero_is_added_to_zero():
    same_bits(ops.sparse_sum([-0.0], [1], 2).numpy(), np.zeros(2, np.float32))


# ---- invalid arguments ----

ONE = np.ones(1, np.float32)
FIRST = np.zeros(1, np.int32)
BAD_CALLS = {
    "parts of one dimension": (lambda: ops.sum_parts(ONE), "Expected parts [n, d] with n of at least 1, got shape [1]"),
    "no part": (lambda: ops.sum_parts(np.zeros((0, 3), np.float32)), "with n of at least 1, got shape [0,3]"),
    "a sum of two dimensions": (
        lambda: ops.mean(np.ones((2, 1), np.float32), 2, tf.float32),
        "Expected a total [d] and a scalar divisor, got shapes [2,1] and []",
    ),
    "a divisor that is no scalar": (
        lambda: ops.mean(ONE, tf.constant([2.0]), tf.float32),
        "Expected a total [d] and a scalar divisor, got shapes [1] and [1]",
    ),
    "spoilt values of two dimensions": (
        lambda: ops.mark_nonfinite(np.ones((2, 1), np.float32), True),
        "Expected values [k] and a scalar nonfinite, got shapes [2,1] and []",
    ),
    "packed lengths": (
        lambda: ops.pack(np.ones(2, np.float32), FIRST),
        "Expected values [k] and indices [k] of the same length, got shapes [2] and [1]",
    ),
    "a packed matrix": (
        lambda: ops.pack(np.ones((1, 1), np.float32), np.zeros((1, 1), np.int32)),
        "got shapes [1,1] and [1,1]",
    ),
    "a negative count": (
        lambda: ops.unpack(FIRST, [2, -1], tf.float32),
        "Expected counts of at least 0, got -1 at position 1",
    ),
    "a message too short": (
        lambda: ops.unpack(FIRST, [2, 1], tf.float16),
        "Expected messages of 5 words for 3 entries of half from 2 ranks, got 1; counts and dtype must be the sender's",
    ),
    "messages of two dimensions": (
        lambda: ops.unpack(np.zeros((1, 1), np.int32), [1], tf.float32),
        "Expected messages [words] and counts [r], got shapes [1,1] and [1]",
    ),
    "summed lengths": (lambda: ops.sparse_sum(ONE, [0, 1], 4), "of the same length, got shapes [1] and [2]"),
    "an index too high": (
        lambda: ops.sparse_sum(np.ones(3, np.float32), [0, 4, 5], 4),
        "Expected indices in [0, 4), got 4 at position 1 of 3",
    ),
    "a negative index": (
        lambda: ops.sparse_sum(np.ones(3, np.float32), [3, 0, -1], 4),
        "Expected indices in [0, 4), got -1 at position 2 of 3",
    ),
    "an index before the offset": (
        lambda: ops.sparse_sum(ONE, [6], 4, offset=7),
        "Expected indices in [7, 11), got 6 at position 0 of 1",
    ),
    "an index into nothing": (lambda: ops.sparse_sum(ONE, FIRST, 0), "Expected indices in [0, 0), got 0"),
    "a negative size": (lambda: ops.sparse_sum(ONE, FIRST, -1), "Expected a size in [0, 2^31 - 1], got -1"),
    "a size too large": (lambda: ops.sparse_sum(ONE, FIRST, 2**31), "in [0, 2^31 - 1], got 2147483648"),
    "a negative offset": (
        lambda: ops.sparse_sum(ONE, FIRST, 1, offset=-1),
        "Expected an offset in [0, 2^31 - 1], got -1",
    ),
    "a size that is no scalar": (
        lambda: ops.sparse_sum(ONE, FIRST, tf.constant([1])),
        "Expected size, divisor and offset to be scalars, got shape [1]",
    ),
    "labels that are missing": (
        lambda: ops.check_faults([0], ["a", "b"], "Do this."),
        "Expected culprits [2], one for each label, got shape [1]",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments_are_refused_in_words(case):
    call, text = BAD_CALLS[case]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: ops.sum_parts(bad[np.newaxis]),
        lambda bad: ops.mean(bad, 2, tf.float32),
        lambda bad: ops.mark_nonfinite(bad, True),
        lambda bad: ops.pack(bad, FIRST),
        lambda bad: ops.sparse_sum(bad, FIRST, 1),
    ],
)
def test_other_dtypes_are_refused_in_words(call):
    with pytest.raises(TypeError, match="of float32, float16 or bfloat16, got float64; cast it first"):
        call(np.ones(1, np.float64))


def test_other_output_dtypes_are_refused_in_words():
    with pytest.raises(TypeError, match="Expected dtype of float32, float16 or bfloat16, got int32"):
        ops.sparse_sum(ONE, FIRST, 1, dtype=tf.int32)
    with pytest.raises(TypeError, match="Expected dtype of float32, float16 or bfloat16, got int32"):
        ops.unpack(FIRST, [0], tf.int32)


# ---- graphs ----


def test_shapes_are_known_when_a_graph_is_made():
    shapes = []

    @tf.function
    def graph(values, indices, parts):
        shapes.append([tensor.shape.as_list() for tensor in ops.sum_parts(parts)])
        shapes.append([tensor.shape.as_list() for tensor in ops.mean(values, 2, tf.float32)])
        shapes.append(ops.mark_nonfinite(values, tf.reduce_all(indices > 0)).shape.as_list())
        message = ops.pack(values, indices)
        shapes.append(message.shape.as_list())
        shapes.append([tensor.shape.as_list() for tensor in ops.unpack(message, [3], values.dtype)])
        shapes.append(ops.sparse_sum(values, indices, 9).shape.as_list())
        shapes.append(ops.check_faults(tf.zeros([2], tf.int32), ["a", "b"], "").shape.as_list())

    graph(tf.ones([3], tf.float16), tf.range(3), tf.ones([2, 5]))
    assert shapes == [[[5], []], [[3], []], [3], [5], [[3], [3]], [9], [2]]


def test_shapes_may_be_unknown_when_a_graph_is_made():
    @tf.function(
        input_signature=[
            tf.TensorSpec(None, tf.float32),
            tf.TensorSpec(None, tf.int32),
            tf.TensorSpec(None, tf.int32),
            tf.TensorSpec(None, tf.float32),
        ]
    )
    def graph(values, indices, size, parts):
        unpacked = ops.unpack(ops.pack(values, indices), tf.shape(values), tf.float32)
        return ops.sparse_sum(*unpacked, size, divisor=tf.cast(size, tf.float32)), *ops.sum_parts(parts)

    dense, total, fault = graph([8.0, 4.0], [3, 0], 4, [[1.0, 2.0], [3.0, 4.0]])
    same_bits(dense.numpy(), np.array([1, 0, 0, 2], np.float32))
    same_bits(total.numpy(), np.array([4, 6], np.float32))
    assert fault.numpy() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.sum_parts(tf.zeros([3])),
        lambda: ops.mean(tf.zeros([3, 1]), 2, tf.float32),
        lambda: ops.mean(tf.zeros([3]), tf.constant([2.0]), tf.float32),
        lambda: ops.mark_nonfinite(tf.zeros([3, 1]), tf.constant(True)),
        lambda: ops.pack(tf.zeros([3]), tf.zeros([2], tf.int32)),
        lambda: ops.unpack(tf.zeros([3, 1], tf.int32), tf.zeros([1], tf.int32), tf.float32),
        lambda: ops.sparse_sum(tf.zeros([3]), tf.zeros([2], tf.int32), 5),
        lambda: ops.sparse_sum(tf.zeros([3]), tf.zeros([3], tf.int32), tf.constant([5])),
        lambda: ops.check_faults(tf.zeros([3], tf.int32), ["a"], ""),
    ],
)
def test_shapes_that_cannot_be_are_refused_when_a_graph_is_made(make):
    with pytest.raises(ValueError, match="[Ss]hape|[Dd]imension"):
        tf.function(make).get_concrete_function()


def test_nothing_has_a_gradient():
    x = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        total, _ = ops.sum_parts(x)
        dense = ops.sparse_sum(total, [0, 1], 2)
    assert tape.gradient(dense, x) is None

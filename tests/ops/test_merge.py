"""Sparse streams (hvd_sparse/collectives/streams.py): equal to NumPy bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.collectives import streams
from tests.ops import stream_reference as reference
from tests.ops.stream_reference import FLOATS, Stream
from tests.simulation import same_bits

OPS = list(reference.NEUTRAL)
WIDTHS = [1, 3, 64]
SETS = list(reference.index_sets(np.random.default_rng(0), 10))
BLOCK = 4096  # rows, the smallest unit of work of the kernels
LIMITS = [None, 0, 10**9]
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
each_op = pytest.mark.parametrize("op", OPS)
each_width = pytest.mark.parametrize("width", WIDTHS)


def made(name, size, width, dtype, seed=0):
    """The streams of an index set."""
    random = np.random.default_rng(seed)
    sets = reference.index_sets(random, size)[name]
    return [Stream(indices, reference.values(random, len(indices), width, dtype)) for indices in sets]


def packed(stream, size, op="sum", dense_above=None):
    return streams.pack(stream.values, stream.indices, size, op, dense_above)


def together(parts, size, op="sum"):
    """Concatenated sparse messages, whatever their density."""
    return tf.concat([packed(part, size, op, size) for part in parts], 0)


def rows_of(message, size, width, dtype, op="sum"):
    """The whole vector and which rows are present, by the operations that read a message."""
    values, indices = streams.slices(message, size, width, dtype)
    there = np.zeros(size, bool)
    there[indices.numpy()] = True
    return streams.dense(message, size, width, dtype, op).numpy(), there


# ---- pack ----


@each_dtype
@each_op
@each_width
def test_pack_in_order(dtype, op, width):
    for size in (1, 2, 5, 300):
        stream = reference.stream(np.random.default_rng(size), size, width, dtype, 0.4)
        for limit in LIMITS:
            expected = reference.reduced([stream], size, width, dtype, op, limit)
            same_bits(packed(stream, size, op, limit).numpy(), expected)


@each_dtype
@each_op
@each_width
def test_pack_in_any_order_with_duplicates(dtype, op, width):
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 50, 400):
        indices = random.integers(0, 120, count).astype(np.int32)
        stream = Stream(indices, reference.values(random, count, width, dtype))
        for limit in LIMITS:
            expected = reference.reduced([stream], 120, width, dtype, op, limit)
            same_bits(packed(stream, 120, op, limit).numpy(), expected)


def test_many_duplicates_are_combined_in_the_order_in_which_they_stand():
    random = np.random.default_rng(0)
    indices = random.integers(0, 5000, 100_000).astype(np.int32)
    stream = Stream(indices, reference.values(random, len(indices), 1, np.dtype(np.float32)))
    for limit in LIMITS:
        expected = np.zeros(5000, np.float32)
        np.add.at(expected, indices, stream.values[:, 0])
        same_bits(streams.dense(packed(stream, 5000, "sum", limit), 5000, 1, tf.float32).numpy()[:, 0], expected)


def test_pack_flattens_the_dimensions_of_a_row():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    message = streams.pack(values, [1, 5], 9)
    unpacked, indices = streams.slices(message, 9, 12, tf.float32)
    same_bits(unpacked.numpy(), values.reshape(2, 12))
    same_bits(indices.numpy(), np.array([1, 5], np.int32))
    flat = streams.slices(streams.pack(values[:, 0, 0], [1, 5], 9), 9, 1, tf.float32)[0]
    assert flat.shape == (2, 1)


def test_a_vector_without_rows():
    empty = Stream(np.zeros(0, np.int32), np.zeros((0, 3), np.float32))
    message = packed(empty, 0)
    same_bits(message.numpy(), np.zeros(2, np.int32))
    assert streams.dense(message, 0, 3, tf.float32).shape == (0, 3)
    same_bits(streams.reduce(tf.concat([message, message], 0), 0, 3, tf.float32).numpy(), np.zeros(2, np.int32))


# ---- reduce ----


@each_dtype
@each_op
@each_width
def test_reduce(dtype, op, width):
    size = 200
    for name in SETS:
        parts = made(name, size, width, dtype)
        whole, there = reference.accumulate(parts, size, width, dtype, op)
        for limit in LIMITS:
            message = streams.reduce(together(parts, size, op), size, width, dtype, op, limit)
            same_bits(message.numpy(), reference.message(whole, there, limit))


@each_dtype
@each_op
def test_the_form_of_what_comes_does_not_matter(dtype, op):
    size, width = 150, 2
    parts = made("overlapping", size, width, dtype)
    expected = reference.reduced(parts, size, width, dtype, op)
    for dense in range(2 ** len(parts)):
        limits = [-1 if dense >> number & 1 else 10**9 for number in range(len(parts))]
        messages = [packed(part, size, op, limit) for part, limit in zip(parts, limits, strict=True)]
        got = streams.reduce(tf.concat(messages, 0), size, width, dtype, op)
        if dense:  # then all rows are present
            whole = streams.dense(got, size, width, dtype, op).numpy()
            same_bits(whole, reference.accumulate(parts, size, width, dtype, op)[0])
        else:
            same_bits(got.numpy(), expected)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 20 * BLOCK])
@pytest.mark.parametrize("number", [2, 3, 8])
def test_reduce_over_several_blocks(size, number):
    random = np.random.default_rng(1)
    dtype = np.dtype(np.float32)
    for density in (1e-4, 1e-3, 0.01, 0.2):
        parts = [reference.stream(random, size, 1, dtype, density) for _ in range(number)]
        whole, there = reference.accumulate(parts, size, 1, dtype, "sum")
        for limit in LIMITS:
            got = streams.reduce(together(parts, size), size, 1, dtype, "sum", limit)
            same_bits(got.numpy(), reference.message(whole, there, limit))


@each_dtype
@each_op
def test_what_is_not_finite_goes_through(dtype, op):
    random = np.random.default_rng(3)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype)
    parts = [Stream(np.arange(36, dtype=np.int32), random.choice(special, (36, 1))) for _ in range(3)]
    whole, _ = reference.accumulate(parts, 36, 1, dtype, op)
    got = streams.dense(streams.reduce(together(parts, 36, op), 36, 1, dtype, op), 36, 1, dtype, op).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(whole))
    same_bits(np.where(np.isnan(got), 0, got), np.where(np.isnan(whole), 0, whole))


def test_the_exact_union_decides_the_form():
    """Two identical sets of exactly delta rows stay sparse; a single extra row makes the result dense."""
    size = 100
    limit = streams.delta(size, 1, tf.float32)
    rows = np.arange(limit, dtype=np.int32)
    same = Stream(rows, np.ones((limit, 1), np.float32))
    more = Stream(rows + 1, np.ones((limit, 1), np.float32))
    assert streams.reduce(together([same, same], size), size, 1, tf.float32).numpy()[0] == 0
    assert streams.reduce(together([same, more], size), size, 1, tf.float32).numpy()[0] == 1


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_streams(data):
    size = data.draw(st.integers(1, 60))
    width = data.draw(st.integers(1, 4))
    op = data.draw(st.sampled_from(OPS))
    limit = data.draw(st.one_of(st.none(), st.integers(-1, 70)))
    rows = st.lists(st.integers(0, size - 1), max_size=80)
    random = np.random.default_rng(0)
    dtype = data.draw(st.sampled_from(FLOATS))
    parts = []
    for _ in range(data.draw(st.integers(1, 5))):
        indices = np.array(data.draw(rows), np.int32)
        parts.append(Stream(indices, reference.values(random, len(indices), width, dtype)))
    messages = [reference.reduced([part], size, width, dtype, op, 10**9) for part in parts]
    for part, message in zip(parts, messages, strict=True):
        same_bits(packed(part, size, op, 10**9).numpy(), message)
    compact = [Stream(*_sparse(message, width, dtype)) for message in messages]
    got = streams.reduce(np.concatenate(messages), size, width, dtype, op, limit)
    same_bits(got.numpy(), reference.reduced(compact, size, width, dtype, op, limit))


def _sparse(message, width, dtype):
    count = message[1]
    begin = 2 + count + count % 2
    values = message[begin:].view(np.uint8)[: count * width * dtype.itemsize].view(dtype)
    return message[2 : 2 + count], values.reshape(count, width)


# ---- split and concat ----


@each_dtype
@each_op
@each_width
@pytest.mark.parametrize("form", [-1, 10**9])
def test_split_and_concat(dtype, op, width, form):
    for parts in (1, 2, 3, 7, 40):
        for density in (0.0, 0.1, 0.8, 1.0):
            stream = reference.stream(np.random.default_rng(parts), 33, width, dtype, density)
            check_pieces(packed(stream, 33, op, form), 33, width, dtype, parts, op)


def check_pieces(message, size, width, dtype, parts, op):
    pieces, lengths = streams.split(message, size, width, dtype, parts, op)
    whole, there = rows_of(message, size, width, dtype, op)
    edges = [part * size // parts for part in range(1, parts)]
    expected = [reference.message(*piece) for piece in zip(np.split(whole, edges), np.split(there, edges), strict=True)]
    same_bits(pieces.numpy(), np.concatenate(expected))
    assert lengths.numpy().tolist() == [len(each) for each in expected]
    for begin, each in zip([0, *edges], expected, strict=True):
        there[begin : begin + (each[1] if each[0] else 0)] = True  # a dense piece has all of its rows
    joined = streams.concat(pieces, size, width, dtype, parts, op)
    same_bits(joined.numpy(), reference.message(whole, there))


def test_split_with_given_limits():
    stream = Stream(np.arange(8, dtype=np.int32), np.ones((8, 1), np.float32))
    pieces, lengths = streams.split(packed(stream, 8, dense_above=8), 8, 1, tf.float32, 2, dense_above=[3, 4])
    assert lengths.numpy().tolist() == [2 + 4, 2 + 4 + 4]
    assert pieces.numpy()[[0, 6]].tolist() == [1, 0]


# ---- dense and slices ----


@each_dtype
@each_op
@each_width
@pytest.mark.parametrize("form", [-1, 10**9])
def test_dense_and_slices(dtype, op, width, form):
    size = 77
    stream = reference.stream(np.random.default_rng(5), size, width, dtype, 0.3)
    message = packed(stream, size, op, form)
    whole, there = reference.accumulate([stream], size, width, dtype, op)
    if form < 0:
        there[:] = True
    same_bits(streams.dense(message, size, width, dtype, op).numpy(), whole)
    values, indices = streams.slices(message, size, width, dtype)
    same_bits(values.numpy(), whole[there])
    same_bits(indices.numpy(), np.flatnonzero(there).astype(np.int32))


@each_dtype
@pytest.mark.parametrize("form", [-1, 10**9])
def test_division_is_rounded_once(dtype, form):
    stream = reference.stream(np.random.default_rng(6), 50, 2, dtype, 0.5)
    number = np.float64 if dtype == np.float64 else np.float32
    whole, _ = reference.accumulate([stream], 50, 2, dtype, "sum")
    expected = (whole.astype(number) / number(3)).astype(dtype)
    same_bits(streams.dense(packed(stream, 50, "sum", form), 50, 2, dtype, divisor=3).numpy(), expected)


def test_absent_rows_are_not_divided():
    stream = Stream(np.array([1], np.int32), np.full((1, 1), 8, np.float32))
    got = streams.dense(packed(stream, 2, "product"), 2, 1, tf.float32, "product", divisor=4)
    same_bits(got.numpy(), np.array([[1], [2]], np.float32))


# ---- graphs ----


def test_in_a_graph_of_unknown_lengths():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int32)])
    def step(values, indices):
        message = streams.pack(values, indices, 40)
        pieces, lengths = streams.split(message, 40, 1, tf.float32, 3)
        joined = streams.concat(pieces, 40, 1, tf.float32, 3)
        doubled = streams.reduce(tf.concat([joined, message], 0), 40, 1, tf.float32)
        assert lengths.shape == [3]
        return streams.dense(doubled, 40, 1, tf.float32), streams.slices(doubled, 40, 1, tf.float32)

    whole, (values, indices) = step(tf.constant([1.0, 2.0, 3.0]), tf.constant([30, 4, 30]))
    assert whole.shape == [40, 1]
    expected = np.zeros((40, 1), np.float32)
    expected[[4, 30]] = [[4], [8]]
    same_bits(whole.numpy(), expected)
    assert (indices.numpy().tolist(), values.numpy().tolist()) == ([4, 30], [[4.0], [8.0]])


# ---- invalid arguments ----

GOOD = np.array([0, 2, 1, 3, 7, 8], np.int32)  # two rows of one float32
BAD_MESSAGES = [
    ([], "expected at least 2 words, got 0"),
    ([0], "expected at least 2 words, got 1"),
    ([2, 0], r"expected the form 0 \(sparse\) or 1 \(dense\) in its first word, got 2"),
    ([-1, 0], "in its first word, got -1"),
    ([0, -1], "expected at most 5 rows, got -1"),
    ([0, 6, *range(6), *range(6)], "expected at most 5 rows, got 6"),
    ([1, 4, 0, 0, 0, 0], "expected all 5 rows, got 4"),
    ([0, 2, 1, 3, 7], "expected 6 words for 2 rows of 1 elements, got 5"),
    ([1, 5, 0, 0, 0], "expected 8 words for 5 rows of 1 elements, got 5"),
    ([0, 2, 3, 1, 7, 8], "expected ascending, unique indices, got 3 before 1 at position 1"),
    ([0, 2, 3, 3, 7, 8], "expected ascending, unique indices, got 3 before 3 at position 1"),
    ([0, 2, 3, 5, 7, 8], r"expected indices in \[0, 5\), got 5 at position 1"),
    ([0, 2, -1, 3, 7, 8], r"expected indices in \[0, 5\), got -1 at position 0"),
]


@pytest.mark.parametrize("words, complaint", BAD_MESSAGES)
def test_bad_messages_are_refused(words, complaint):
    message = np.array(words, np.int32)
    for read in (
        lambda: streams.slices(message, 5, 1, tf.float32),
        lambda: streams.dense(message, 5, 1, tf.float32),
        lambda: streams.split(message, 5, 1, tf.float32, 2),
        lambda: streams.reduce(message, 5, 1, tf.float32),
        lambda: streams.concat(message, 5, 1, tf.float32, 1),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"Message 0, from word 0 of .*{complaint}"):
            read()


def test_a_bad_message_among_good_ones_is_named():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Message 1, from word 6 of 12 on: expected ascending"):
        streams.reduce(np.concatenate([GOOD, GOOD[[0, 1, 3, 2, 4, 5]]]), 5, 1, tf.float32)


def test_an_index_far_behind_is_found():
    indices = np.arange(5000, dtype=np.int32)
    message = reference.message(np.ones((5000, 1), np.float32), np.ones(5000, bool), 5000)
    for place in (1, 1023, 1024, 1025, 4999):
        wrong = message.copy()
        wrong[2 + place] = indices[place - 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"before {place - 1} at position {place};"):
            streams.slices(wrong, 5000, 1, tf.float32)


def test_words_that_are_left_over_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected 1 messages of 6 words together, got 12"):
        streams.slices(np.concatenate([GOOD, GOOD]), 5, 1, tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Message 1, .* expected at least 2 words, got 0"):
        streams.concat(GOOD, 10, 1, tf.float32, 2)


def test_words_before_each_message_are_passed_over():
    other = np.array([9, -1], np.int32)
    between = np.concatenate([other, GOOD, other, GOOD])
    expected = streams.reduce(np.concatenate([GOOD, GOOD]), 5, 1, tf.float32)
    same_bits(streams.reduce(between, 5, 1, tf.float32, before=2).numpy(), expected.numpy())
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 words before message 2, from word 16 on, got 1"):
        streams.reduce(np.append(between, np.int32(0)), 5, 1, tf.float32, before=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected an even number of words .*, got 3"):
        streams.reduce(between, 5, 1, tf.float32, before=3)


def test_a_message_of_another_dtype_or_width_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 8 words for 2 rows of 1 elements, got 6"):
        streams.slices(GOOD, 5, 1, tf.float64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 8 words for 2 rows of 2 elements, got 6"):
        streams.slices(GOOD, 5, 2, tf.float32)


def test_bad_arguments_are_refused():
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="Expected op to be one of 'sum', 'max', 'min', 'product', got 'mean'"):
        streams.pack(one, [0], 5, "mean")
    with pytest.raises(TypeError, match="Expected a stream of float16, float32 or float64, got int32"):
        streams.pack([1], [0], 5)
    with pytest.raises(TypeError, match="got bfloat16"):
        streams.delta(5, 1, tf.bfloat16)
    with pytest.raises(ValueError, match="Expected at least 1 part, got 0"):
        streams.split(GOOD, 5, 1, tf.float32, 0)
    with pytest.raises(ValueError, match="Expected dense_above of 2 parts"):
        streams.split(GOOD, 5, 1, tf.float32, 2, dense_above=[1, 2, 3])
    with pytest.raises(ValueError, match="Expected rows of at least one element"):
        streams.pack(np.ones((2, 0), np.float32), [0, 1], 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected indices in \[0, 5\), got 5 at position 1 of 2"):
        streams.pack(np.ones(2, np.float32), [0, 5], 5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Expected indices in \[0, 5\), got -1 at position 0 of 1"
    ):
        streams.pack(one, [-1], 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected values \[k, width\] and indices \[k\]"):
        streams.pack(one, [0, 1], 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="together fewer than 2\\^31 elements, got size 65536"):
        streams.slices(GOOD, 2**16, 2**15, tf.float32)


def test_delta_is_where_a_dense_message_is_no_longer():
    for dtype in FLOATS:
        for size, width in ((10, 1), (1000, 1), (1000, 7), (999, 64)):
            row = width * dtype.itemsize
            limit = streams.delta(size, width, dtype)
            assert limit * (4 + row) <= size * row < (limit + 1) * (4 + row)

"""Messages that contain their counts and a flag for values that are not finite, with values or codes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from tests.ops.test_sparse import DTYPES, floats, names, reference_pack


def counted(values, indices, nonfinite):
    """The message of a rank whose count the others do not know."""
    return np.concatenate([np.array([len(indices), nonfinite], np.int32), reference_pack(values, indices)])


def unpacked(messages, ranks, dtype):
    return ops.library().hvd_sparse_unpack_counted(messages=messages, T=tf.as_dtype(dtype), ranks=ranks)


@pytest.mark.parametrize("dtype", DTYPES, **names)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_messages_that_tell_their_counts_are_taken_apart(dtype, counts, seed):
    random = np.random.default_rng(seed)
    values = [floats(random, count, dtype) for count in counts]
    indices = [random.integers(0, 2**31, count).astype(np.int32) for count in counts]
    flags = random.integers(0, 2, len(counts))
    joined = np.concatenate([counted(*each) for each in zip(values, indices, flags, strict=True)])
    found, where, nonfinite = unpacked(joined, len(counts), dtype)
    assert found.numpy().tobytes() == b"".join(each.tobytes() for each in values)
    assert where.numpy().tobytes() == b"".join(each.tobytes() for each in indices)
    assert bool(nonfinite) == flags.any()


@pytest.mark.parametrize(
    "words, ranks, misfit",
    [
        ([1, 0, 5, 7], 2, 1),  # the second rank's message is missing
        ([1, 0, 5], 1, 0),  # a value is missing
        ([-1, 0, 5, 7], 1, 0),
        ([2**31 - 1, 0, 5, 7], 1, 0),
        ([1, 2, 5, 7], 1, 0),  # no such flag
        ([0], 1, 0),
        ([0, 0, 9], 1, 1),  # there are extra words
    ],
)
def test_a_message_that_does_not_fit_is_refused(words, ranks, misfit):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"do not fit from message {misfit} on"):
        unpacked(tf.constant(words, tf.int32), ranks, tf.float32)


def coded(indices, scales, codes, nonfinite):
    """The message of a rank that sends codes."""
    header = np.array([len(indices), nonfinite, len(scales), len(codes)], np.int32)
    words = np.pad(codes, (0, -len(codes) % 4)).view(np.int32)
    return np.concatenate([header, indices, scales.view(np.int32), words])


@given(
    shapes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 21)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_messages_of_codes_are_taken_apart(shapes, seed):
    random = np.random.default_rng(seed)
    indices = [random.integers(0, 2**31, entries).astype(np.int32) for entries, _, _ in shapes]
    scales = [random.standard_normal(count).astype(np.float32) for _, count, _ in shapes]
    codes = [random.integers(0, 256, count).astype(np.uint8) for _, _, count in shapes]
    flags = random.integers(0, 2, len(shapes))
    joined = np.concatenate([coded(*each) for each in zip(indices, scales, codes, flags, strict=True)])
    *found, lengths, nonfinite = ops.library().hvd_sparse_unpack_coded(messages=joined, ranks=len(shapes))
    for part, sent in zip(found, (indices, scales, codes), strict=True):
        assert part.numpy().tobytes() == b"".join(each.tobytes() for each in sent)
    np.testing.assert_array_equal(lengths, np.transpose(shapes))
    assert bool(nonfinite) == flags.any()


@pytest.mark.parametrize(
    "words, ranks, misfit",
    [
        ([1, 0, 1, 1, 5, 7, 9], 2, 1),  # the second rank's message is missing
        ([1, 0, 1, 5, 5, 7, 9], 1, 0),  # a word of codes is missing
        ([-1, 0, 1, 1, 5, 7, 9], 1, 0),
        ([1, 0, -1, 1, 5, 7, 9], 1, 0),
        ([1, 0, 1, -1, 5, 7, 9], 1, 0),
        ([1, 0, 1, 2**31 - 1, 5, 7, 9], 1, 0),
        ([1, 2, 1, 1, 5, 7, 9], 1, 0),  # no such flag
        ([0, 0, 0], 1, 0),
        ([0, 0, 0, 0, 9], 1, 1),  # there are extra words
    ],
)
def test_a_message_of_codes_that_does_not_fit_is_refused(words, ranks, misfit):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"do not fit from message {misfit} on"):
        ops.library().hvd_sparse_unpack_coded(messages=tf.constant(words, tf.int32), ranks=ranks)

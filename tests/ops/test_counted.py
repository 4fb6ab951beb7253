"""Messages that tell their counts, and whether what they carry is of use."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from tests.ops.test_sparse import DTYPES, floats, names, reference_pack


def counted(values, indices, nonfinite):
    """The message of a rank whose count nobody knows."""
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
        ([0, 0, 9], 1, 1),  # words are left over
    ],
)
def test_a_message_that_does_not_fit_is_refused(words, ranks, misfit):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"do not fit from message {misfit} on"):
        unpacked(tf.constant(words, tf.int32), ranks, tf.float32)

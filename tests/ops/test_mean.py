"""The end of an exchange: mean, spoil and check_faults equal NumPy bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from tests.ops.test_sparse import DTYPES, SIZES, WINDOW, floats, names
from tests.simulation import same_bits

# ---- mean ----


@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("output", DTYPES, **names)
@pytest.mark.parametrize("divisor", [1, 2, 3, 7])
def test_a_sum_is_divided_and_rounded_once(dtype, output, divisor):
    random = np.random.default_rng(divisor)
    for size in SIZES:
        total = floats(random, size, dtype)
        mean, nonfinite = ops.mean(total, divisor, tf.as_dtype(output))
        same_bits(mean.numpy(), (total.astype(np.float32) / np.float32(divisor)).astype(output))
        assert not nonfinite.numpy()


@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, WINDOW - 1, WINDOW, 2 * WINDOW])
def test_a_mean_that_is_not_finite_is_seen(dtype, bad, place):
    total = np.ones(2 * WINDOW + 1, dtype)
    total[place] = bad
    mean, nonfinite = ops.mean(total, 2, tf.float32)
    assert nonfinite.numpy() and not np.isfinite(mean.numpy()[place])


def test_what_is_too_large_for_the_means_type_is_seen():
    assert ops.mean(np.full(9, 1e5, np.float32), 1, tf.float16)[1].numpy()
    assert not ops.mean(np.full(9, 1e5, np.float32), 2, tf.float16)[1].numpy()


def test_a_mean_takes_the_place_of_a_sum_that_nobody_holds():
    total = tf.constant(np.arange(5, dtype=np.float32))
    in_place = tf.function(lambda x: ops.mean(x + 1.0, 2, tf.float32)[0])
    same_bits(in_place(total).numpy(), (np.arange(5, dtype=np.float32) + 1) / 2)
    ops.mean(total, 2, tf.float32)
    same_bits(total.numpy(), np.arange(5, dtype=np.float32))


# ---- spoil ----


@pytest.mark.parametrize("dtype", DTYPES, **names)
def test_a_spoiled_vector_begins_with_nan(dtype):
    values = tf.constant(np.arange(1, 6).astype(dtype))
    marked = ops.mark_nonfinite(values, True).numpy()
    assert np.isnan(marked[0].astype(np.float32))
    same_bits(marked[1:], values.numpy()[1:])
    same_bits(values.numpy(), np.arange(1, 6).astype(dtype))
    same_bits(ops.mark_nonfinite(values, False).numpy(), values.numpy())
    assert ops.mark_nonfinite(values[:0], True).shape == [0]


# ---- check_faults ----


def test_no_fault_passes():
    assert ops.check_faults([0, 0], ["a", "b"], "Do this.").numpy().tolist() == [0, 0]


def test_a_fault_names_label_rank_and_remedy():
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        ops.check_faults([0, 3, 1], ["a", "the bucket", "c"], "Do this.")
    text = "The gradient holds a NaN or an infinity: the bucket on rank 2, c on rank 0. Do this."
    assert text in str(raised.value)


def test_a_sum_that_is_nobodys_fault_is_told_apart():
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        ops.check_faults([-1, 1], ["a", "b"], "Do this.")
    assert "infinity: a in the sum over the ranks, of whom none has any, b on rank 0. Do this." in str(raised.value)

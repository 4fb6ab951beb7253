"""Blocks that take turns (ops/blocks): equal to NumPy bit for bit, with any threads; what cannot be is refused."""

from __future__ import annotations

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from hvd_sparse.compression.block import Deal
from tests.ops import native, sanitizers
from tests.simulation import DTYPES, same_bits, shard_ends

deals = st.builds(Deal, st.integers(1, 400), st.integers(1, 9), st.integers(1, 12))
LARGE = [Deal(400_003, 3, 4), Deal(300_000, 1, 1), Deal(262_145, 2, 50_000)]


def places(deal, step):
    """The indices of the block in each piece."""
    return [np.arange(begin + step % deal.cycle, end, deal.cycle) for begin, end in shard_ends(deal.size, deal.pieces)]


def block_of(vector, deal, step):
    """[pieces, each], padded with zeros."""
    rows = np.zeros([deal.pieces, deal.each], np.float32)
    for row, chosen in zip(rows, places(deal, step), strict=True):
        row[: chosen.size] = vector[chosen]
    return rows


def drawn(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def check(deal, step, divisor=3.0):
    total, residual, decoded = drawn(deal.size), drawn(deal.size) * 2, drawn(deal.pieces, deal.each)
    when = tf.constant(step, tf.int64)
    summed, values, finite = deal.take(tf.constant(total), tf.constant(residual), when)
    same_bits(summed.numpy(), total + residual)
    same_bits(values.numpy(), block_of(total + residual, deal, step))
    assert finite
    same_bits(deal.take(tf.constant(total), None, when)[0].numpy(), total)
    expected = total + residual
    for row, chosen in enumerate(places(deal, step)):
        expected[chosen] = (values.numpy() - decoded)[row, : chosen.size]
    same_bits(deal.keep(summed, values, tf.constant(decoded), when).numpy(), expected)
    for name, dtype in DTYPES.items():
        mean = np.zeros(deal.size, np.float32)
        for row, chosen in enumerate(places(deal, step)):
            mean[chosen] = decoded[row, : chosen.size] / np.float32(divisor)
        same_bits(deal.spread(tf.constant(decoded), when, divisor, tf.as_dtype(name)).numpy(), mean.astype(dtype))


@given(deals, st.integers(0, 1000))
def test_the_same_bits_as_numpy(deal, step):
    check(deal, step)


@pytest.mark.parametrize("deal", LARGE, ids=str)
def test_the_same_bits_on_long_vectors(deal):
    check(deal, 7)


class _Deal(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("size", "pieces", "longest", "each", "cycle")]


@pytest.mark.parametrize("deal", LARGE, ids=str)
@pytest.mark.parametrize("threads", [2, 5])
def test_any_threads_take_the_same(deal, threads):
    library, parallel = native.library(), native.Parallel(threads)
    library.hvds_deal_of.argtypes, library.hvds_deal_of.restype = [ctypes.c_int64] * 3, _Deal
    library.hvds_take_block.restype = ctypes.c_bool
    made = library.hvds_deal_of(deal.size, deal.pieces, deal.blocks)
    assert (made.longest, made.each, made.cycle) == (deal.longest, deal.each, deal.cycle)
    total, summed = drawn(deal.size), np.empty(deal.size, np.float32)
    values = np.full([deal.pieces, deal.each], np.nan, np.float32)
    at = [native.pointer(total), None, ctypes.byref(made), ctypes.c_int64(7 % deal.cycle)]
    assert library.hvds_take_block(*at, native.pointer(summed), native.pointer(values), ctypes.byref(parallel))
    assert parallel.tasks_run == min(threads, deal.size // 131072)
    same_bits(summed, total)
    same_bits(values, block_of(total, deal, 7))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 8191, 399_999])
def test_what_is_not_finite_is_seen_in_any_block(bad, place):
    total = np.zeros(400_000, np.float32)
    total[place] = bad
    assert not Deal(400_000, 3, 4).take(tf.constant(total), None, tf.constant(1, tf.int64))[2]


def test_a_sum_that_overflows_is_seen():
    most = tf.constant([3e38, 1.0])
    assert not Deal(2, 1, 2).take(most, most, tf.constant(1, tf.int64))[2]


def test_in_a_graph_shapes_are_known_and_kept_is_overwritten():
    deal = Deal(100, 3, 4)

    @tf.function
    def taken(total, step):
        summed, values, finite = deal.take(total, None, step)
        return deal.keep(summed, values, values, step), values, finite, deal.spread(values, step, 1.0, tf.bfloat16)

    total = tf.constant(drawn(100))
    outputs = taken.get_concrete_function(total, tf.constant(0, tf.int64)).outputs
    assert [each.shape.as_list() for each in outputs] == [[100], [3, 9], [], [100]]
    kept, _, _, mean = taken(total, tf.constant(5, tf.int64))
    same_bits(np.flatnonzero(mean.numpy().astype(np.float32)), np.sort(np.concatenate(places(deal, 5))))
    np.testing.assert_array_equal(kept.numpy() == 0, mean.numpy().astype(np.float32) != 0)
    assert mean.numpy().dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "call, told",
    [
        (lambda deal, step: deal.take(tf.zeros([0]), None, step), "1 to 2.31 - 1 elements, got 0"),
        (lambda deal, step: deal.take(tf.zeros([9]), tf.zeros([8]), step), r"residual \[d\] or \[0\]"),
        (lambda deal, step: deal.take(tf.zeros([9]), None, step - 1), "step of at least 0"),
        (lambda deal, step: deal.keep(tf.zeros([9]), tf.zeros([2, 3]), tf.zeros([3, 1]), step), "values .3, 1."),
        (lambda deal, step: deal.keep(tf.zeros([9]), tf.zeros([3, 1]), tf.zeros([3, 2]), step), "decoded .3, 1."),
        (lambda deal, step: deal.keep(tf.zeros([3, 3]), tf.zeros([3, 1]), tf.zeros([3, 1]), step), "kept .d."),
        (lambda deal, step: deal.spread(tf.zeros([3, 2]), step, 1.0, tf.float32), "values .3, 1."),
    ],
)
def test_what_cannot_be_is_refused(call, told):
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        call(Deal(9, 3, 4), tf.constant(0, tf.int64))


@pytest.mark.parametrize("numbers", [{"pieces": 0, "blocks": 1}, {"pieces": 1, "blocks": 0}])
def test_numbers_that_are_none_are_refused(numbers):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be at least minimum 1"):
        ops.library().hvd_take_block(
            total=tf.zeros([3]), residual=tf.zeros([0]), step=tf.constant(0, tf.int64), **numbers
        )


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_it_is_clean_under_sanitizers(tmp_path, sanitizer):
    kernels = [sanitizers.OPS / "blocks" / "blocks_cpu.cc"]
    sanitizers.check(tmp_path, Path(__file__).with_name("sanitize_blocks.cc"), kernels, sanitizer)

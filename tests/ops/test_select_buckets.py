"""Selection by buckets (select.h) through ctypes, and its operation: the exact selection in each bucket."""

import ctypes
import functools

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from tests.gpu import reference
from tests.ops import native
from tests.ops.test_select_kernels import DTYPES, INPUTS, Workspace, held, same
from tests.simulation import bucketed

SHAPES = [(1, 1), (1, 7), (7, 7), (4, 64), (5, 100), (3, 512), (63, 512), (64, 512), (200, 512), (40, 5000)]
SIZES = [1, 6, 64, 511, 512, 513, 5000, 20_011]
STREAMED = 1_100_003  # residuals of this size are written with stores that bypass the caches


@functools.cache
def workspace():
    return Workspace()


def feed_back(parts, residual, bucket, k, wire, parallel=None, in_place=False):
    """Values, indices, residual_out and fault of hvds_feedback_bucket_topk."""
    count, size = parts.shape
    kept = size // bucket * k + min(size % bucket, k)
    values, indices, fault = np.zeros(kept, wire), np.full(kept, -7, np.int32), np.zeros(1, np.int32)
    new_residual = residual.copy() if in_place else native.aligned(np.full(size, np.nan, np.float32))
    status = native.library().hvds_feedback_bucket_topk(
        *[native.pointer(parts), native.code(parts), ctypes.c_int64(count), ctypes.c_int64(size)],
        *[native.pointer(new_residual if in_place else residual), ctypes.c_int64(size)],
        *[ctypes.c_int64(bucket), ctypes.c_int64(k), native.code(values)],
        *[native.pointer(array) for array in (values, indices, new_residual, fault)],
        workspace().memory,
        None if parallel is None else ctypes.byref(parallel),
    )
    assert status == 0
    return values, indices, new_residual, int(fault[0])


def check(given, parts, residual, bucket, k, wire):
    total = reference.accumulate(held(parts), residual)
    chosen = bucketed(k, bucket)(total, 0, 0)
    sent, new_residual = reference.feedback(
        held(parts), residual, chosen, np.uint16 if wire == native.BFLOAT16 else wire
    )
    np.testing.assert_array_equal(given[1], chosen)
    np.testing.assert_array_equal(held(given[0]), sent)
    same(given[2], new_residual)
    assert given[3] == 0


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(
    "k, bucket",
    [pytest.param(*shape, marks=[pytest.mark.thorough] * (number % 5 > 0)) for number, shape in enumerate(SHAPES)],
)
def test_every_instruction_set_takes_the_largest_of_each_bucket(k, bucket, kind):
    random = np.random.default_rng(bucket)
    for size in SIZES:
        parts = INPUTS[kind](random, size).astype(np.float32)[np.newaxis]
        residual = (0.1 * random.standard_normal(size)).astype(np.float32) * (kind != "neighbours")
        for isa in native.isas():
            with native.isa(native.ISAS[isa]):
                for in_place in (False, True):
                    given = feed_back(parts, residual, bucket, k, DTYPES[0], None, in_place)
                    check(given, parts, residual, bucket, k, DTYPES[0])


@pytest.mark.parametrize("wire", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_parts_and_values_may_be_narrow(count, dtype, wire):
    random = np.random.default_rng(1)
    parts = random.standard_normal((count, 5003)).astype(dtype)
    residual = random.standard_normal(5003).astype(np.float32)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            check(feed_back(parts, residual, 512, 4, wire), parts, residual, 512, 4, wire)


@pytest.mark.parametrize("threads", [3, *(pytest.param(each, marks=pytest.mark.thorough) for each in (1, 2, 7))])
@pytest.mark.parametrize("size", [300_001, STREAMED])
def test_any_threads_and_streaming_give_the_same(size, threads):
    random = np.random.default_rng(2)
    parts = random.standard_normal((2, size)).astype(np.float32)
    residual = random.standard_normal(size).astype(np.float32)
    parallel = native.Parallel(threads)
    for bucket, k in ((512, 4), (1000, 30)):
        for isa in native.isas():
            with native.isa(native.ISAS[isa]):
                check(feed_back(parts, residual, bucket, k, DTYPES[0], parallel), parts, residual, bucket, k, DTYPES[0])
    assert threads == 1 or parallel.tasks_run > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told(bad):
    parts = np.random.default_rng(3).standard_normal((3, 2000)).astype(np.float32)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            for place in (0, 511, 512, 1999):
                broken = parts.copy()
                broken[1, place] = bad
                _, indices, _, fault = feed_back(broken, np.zeros(2000, np.float32), 512, 4, DTYPES[0])
                assert fault == 2 and len(set(indices)) == 16 and indices.min() >= 0 and indices.max() < 2000
    overflow = np.full((2, 2000), 3e38, np.float32)
    assert feed_back(overflow, np.zeros(2000, np.float32), 512, 4, DTYPES[0])[3] == 3
    too_large = np.full((1, 2000), 1e5, np.float32)
    assert feed_back(too_large, np.zeros(2000, np.float32), 512, 4, DTYPES[1])[3] == 2


def test_the_operation_gives_what_the_kernel_does():
    random = np.random.default_rng(4)
    parts, residual = random.standard_normal((2, 2000)).astype(np.float32), np.ones(2000, np.float32)
    wanted = feed_back(parts, residual, 512, 4, DTYPES[1])
    run = tf.function(lambda rows: ops.feedback_bucket_topk(rows, residual, 4, 512, tf.float16))
    assert run.get_concrete_function(tf.constant(parts)).structured_outputs[1].shape == [16]
    for given in (run(tf.constant(parts)), ops.feedback_bucket_topk(tf.constant(parts), residual, 4, 512, tf.float16)):
        for one, other in zip(given, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)


@pytest.mark.parametrize("k, bucket", [(0, 512), (-1, 512), (5, 4), (1, 0)])
def test_a_bucket_that_cannot_be_is_refused(k, bucket):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"k in \[1, bucket\], got k = "):
        ops.feedback_bucket_topk(tf.zeros([1, 10]), tf.zeros([10]), k, bucket)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"k in \[1, bucket\], got k = "):
        tf.function(lambda: ops.feedback_bucket_topk(tf.zeros([1, 10]), tf.zeros([10]), k, bucket))()

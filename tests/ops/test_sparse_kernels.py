"""The kernels of ops/exchange/sparse.h through ctypes: the same bits for all thread counts and instruction sets."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.ops import native, sanitizers
from tests.ops.test_sparse import DTYPES, floats, reference_sparse_sum, reference_sum_parts
from tests.simulation import same_bits

SIZE = 900_001  # large enough for several tasks
OPS = Path(__file__).resolve().parents[2] / "ops"


def sum_parts(parts, parallel=None):
    total = np.full(parts.shape[1], 7, np.float32)
    count, size = parts.shape
    fault = native.library().hvds_sum_parts(
        native.pointer(parts), native.code(parts), count, ctypes.c_int64(size), native.pointer(total), _by(parallel)
    )
    return total, fault


def sparse_sum(values, indices, size, dtype, divisor, parallel=None, offset=0):
    dense = np.full(size, 7, dtype)
    function = native.library().hvds_sparse_sum
    function.restype = ctypes.c_int64
    misplaced = function(
        native.pointer(values),
        native.code(values),
        native.pointer(indices),
        ctypes.c_int64(len(indices)),
        ctypes.c_int64(offset),
        ctypes.c_float(divisor),
        native.pointer(dense),
        native.code(dense),
        ctypes.c_int64(size),
        _by(parallel),
    )
    return dense, misplaced


def _by(parallel):
    return None if parallel is None else ctypes.byref(parallel)


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("threads", [1, 3, *(pytest.param(each, marks=pytest.mark.thorough) for each in (2, 7, 64))])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_threads_sum_parts_alike(dtype, threads, isa):
    parts = floats(np.random.default_rng(1), (3, SIZE), dtype)
    parallel = native.Parallel(threads)
    with native.isa(native.ISAS[isa]):
        total, fault = sum_parts(parts, parallel)
    same_bits(total, reference_sum_parts(parts)[0])
    assert fault == 0
    assert parallel.tasks_run == (0 if threads == 1 else min(threads, 6))


def test_a_fault_in_the_last_task_is_seen():
    parts = np.ones((3, SIZE), np.float32)
    parts[1, -1] = np.nan
    assert sum_parts(parts, native.Parallel(4))[1] == 2


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("scattered", [False, True])
def test_any_threads_sum_contributions_alike(threads, scattered):
    random = np.random.default_rng(2)
    ranks = [np.sort(random.choice(SIZE, 20_000, replace=False)).astype(np.int32) for _ in range(5)]
    indices = np.concatenate(ranks)
    if scattered:
        random.shuffle(indices)
    values = floats(random, len(indices), np.float32)
    dense, misplaced = sparse_sum(values, indices, SIZE, np.float32, 5, native.Parallel(threads))
    assert misplaced == -1
    same_bits(dense, reference_sparse_sum(values, indices, SIZE, 5, 0, np.float32))


@pytest.mark.parametrize("bad", [-1, 100, -(2**31), 2**31 - 1])
def test_nothing_is_written_where_an_index_is_outside(bad):
    indices = np.array([5, bad, 6, bad], np.int32)
    dense, misplaced = sparse_sum(np.ones(4, np.float32), indices, 100, np.float32, 1)
    assert misplaced == 1
    assert (dense == 7).all()


@pytest.mark.thorough
def test_the_kernels_keep_within_their_memory(tmp_path):
    """The same kernels with the sanitizers for addresses and undefined behaviour, without Python or TensorFlow."""
    kernels = [OPS / "exchange" / name for name in ("sparse_cpu.cc", "float_passes_cpu.cc")]
    sanitizers.check(tmp_path, Path(__file__).with_name("sanitize_sparse.cc"), kernels)

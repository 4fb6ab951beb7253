"""The kernels of ops/streams/merge.h through ctypes: the same bits for all thread counts and instruction sets."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.ops import native, sanitizers
from tests.ops import stream_reference as reference
from tests.ops.stream_reference import FLOATS
from tests.simulation import same_bits

OPS = Path(__file__).resolve().parents[2] / "ops"
CODES = {2: 1, 4: 0, 8: 3}  # enum hvds_dtype by item size
COMBINE = {"sum": 0, "max": 1, "min": 2, "product": 3}
SIZE = 300_000  # large enough for several tasks


class Rows(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int64), ("width", ctypes.c_int64), ("dtype", ctypes.c_int)]


class Stream(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        ("indices", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("words", ctypes.c_int64),
    ]


def function(name):
    found = getattr(native.library(), name)
    found.restype = ctypes.c_int64
    return found


def reduce(messages, size, width, dtype, op, dense_above, parallel=None):
    """The message of several streams, written into a buffer of exactly the size that the kernel asks for."""
    rows = Rows(size, width, CODES[dtype.itemsize])
    streams = (Stream * len(messages))()
    for message, stream in zip(messages, streams, strict=True):
        at = ctypes.c_int64()
        words = ctypes.c_int64(len(message))
        fault = native.library().hvds_stream_read(
            native.pointer(message), words, ctypes.byref(rows), ctypes.byref(stream), ctypes.byref(at)
        )
        assert fault == 0
    number, limit = ctypes.c_int64(len(messages)), ctypes.c_int64(dense_above)
    room = function("hvds_stream_reduce_room")(streams, number, ctypes.byref(rows), limit)
    guard = 64
    out = native.aligned(np.full(room + guard, -7, np.int32))
    by = None if parallel is None else ctypes.byref(parallel)
    used = function("hvds_stream_reduce")(
        streams, number, ctypes.byref(rows), COMBINE[op], limit, native.pointer(out), by
    )
    assert (out[room:] == -7).all()
    return out[:used]


def messages_of(dtype, width, density, number, size=SIZE):
    """Messages, and the dense result with the rows that are present."""
    random = np.random.default_rng(1)
    whole = np.zeros((size, width), dtype)
    there = np.zeros(size, bool)
    messages = []
    for _ in range(number):
        stream = reference.stream(random, size, width, dtype, density)
        whole[stream.indices] += stream.values  # unique within a stream
        there[stream.indices] = True
        part = np.zeros(size, bool)
        part[stream.indices] = True
        own = np.zeros((size, width), dtype)
        own[stream.indices] = stream.values
        messages.append(native.aligned(reference.message(own, part, size)))
    return messages, whole, there


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("threads", [3, *(pytest.param(each, marks=pytest.mark.thorough) for each in (1, 2, 7))])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_threads_reduce_alike(dtype, threads, isa):
    for width, density, number in ((1, 0.3, 4), (1, 0.01, 8), (5, 0.1, 3), (1, 0.9, 2)):
        messages, whole, there = messages_of(dtype, width, density, number, SIZE // width)
        for limit in (SIZE, int(there.sum()), int(there.sum()) - 1):
            parallel = native.Parallel(threads)
            with native.isa(native.ISAS[isa]):
                got = reduce(messages, SIZE // width, width, dtype, "sum", limit, parallel)
            same_bits(got, reference.message(whole, there, limit))
            assert threads == 1 or parallel.tasks_run or sum(len(each) for each in messages) < 10 * 65536


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("op", COMBINE)
def test_instruction_sets_agree(op, isa):
    random = np.random.default_rng(2)
    for dtype in FLOATS:
        parts = [reference.stream(random, 20_000, 1, dtype, share) for share in (0.001, 0.02, 0.2, 0.02)]
        messages = [native.aligned(reference.reduced([part], 20_000, 1, dtype, op, 20_000)) for part in parts]
        for limit in (20_000, 0):
            with native.isa(native.ISAS[isa]):
                got = reduce(messages, 20_000, 1, dtype, op, limit)
            same_bits(got, reference.reduced(parts, 20_000, 1, dtype, op, limit))


@pytest.mark.parametrize("threads", [1, 4])
def test_streams_of_very_different_length(threads):
    """One row and many, at the ends and in the middle, and rows far apart."""
    size = 1_000_000
    dtype = np.dtype(np.float32)
    many = reference.Stream(np.arange(100_000, 400_000, dtype=np.int32), np.ones((300_000, 1), np.float32))
    for place in (0, 99_999, 100_000, 250_000, 399_999, 400_000, size - 1):
        one = reference.Stream(np.array([place], np.int32), np.full((1, 1), 3, np.float32))
        for parts in ([many, one], [one, many], [one, one, many], [one]):
            whole, there = np.zeros((size, 1), np.float32), np.zeros(size, bool)
            for part in parts:
                whole[part.indices] += part.values
                there[part.indices] = True
            messages = [
                native.aligned(
                    np.concatenate(
                        [[0, len(part.indices)], reference.words(part.indices), reference.words(part.values)]
                    ).astype(np.int32)
                )
                for part in parts
            ]
            got = reduce(messages, size, 1, dtype, "sum", size, native.Parallel(threads))
            same_bits(got, reference.message(whole, there, size))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "program, sources",
    [
        (
            "sanitize_merge",
            [
                "streams/merge_cpu.cc",
                "streams/merge_cpu_pack.cc",
                "streams/merge_cpu_reduce.cc",
                "streams/merge_cpu_marks.cc",
            ],
        ),
        (
            "sanitize_quantize",
            [
                "quantize/quantize_cpu.cc",
                "quantize/quantize_cpu_base.cc",
                "quantize/quantize_cpu_avx2.cc",
                "quantize/quantize_cpu_avx512.cc",
                "quantize/magnitudes_cpu.cc",
                "quantize/two_bits_cpu.cc",
                "exchange/coded_cpu.cc",
            ],
        ),
    ],
)
def test_the_kernels_keep_within_their_memory(tmp_path, program, sources):
    """The same kernels with the sanitizers for addresses and undefined behaviour, without Python or TensorFlow."""
    sanitizers.check(tmp_path, Path(__file__).with_name(f"{program}.cc"), [OPS / name for name in sources])

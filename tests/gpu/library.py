"""The C interface of select_gpu.h through ctypes: on a GPU, with a framework's memory, or emulated on the CPU."""

import copy
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}  # uint16 stands for bfloat16
ALIGNMENT = 256
GUARD = np.full(64, 0xA5, np.uint8)


class HostMemory:
    """Memory of the CPU, for the emulated kernels."""

    stream = None

    def allocate(self, size):
        """Allocates bytes on a boundary of ALIGNMENT."""
        block = np.empty(size + ALIGNMENT, np.uint8)
        skipped = -block.ctypes.data % ALIGNMENT
        return block[skipped : skipped + size]

    def address(self, block):
        return block.ctypes.data

    def write(self, block, data):
        block[:] = data

    def read(self, block):
        return block.copy()


class TorchMemory:
    """GPU memory allocated by PyTorch, on a stream other than the default."""

    def __init__(self):
        import torch

        self._torch = torch
        self._side = torch.cuda.Stream()
        torch.cuda.set_stream(self._side)
        self.stream = self._side.cuda_stream

    def allocate(self, size):
        return self._torch.empty(size, dtype=self._torch.uint8, device="cuda")

    def address(self, block):
        return block.data_ptr()

    def write(self, block, data):
        block.copy_(self._torch.from_numpy(np.ascontiguousarray(data)))

    def read(self, block):
        return block.cpu().numpy()


class CupyMemory:
    """GPU memory allocated by CuPy, on a stream other than the default."""

    def __init__(self):
        import cupy

        self._cupy = cupy
        self._side = cupy.cuda.Stream(non_blocking=True)
        self._side.use()
        self.stream = self._side.ptr

    def allocate(self, size):
        return self._cupy.empty(size, self._cupy.uint8)

    def address(self, block):
        return block.data.ptr

    def write(self, block, data):
        block.set(np.ascontiguousarray(data), stream=self._side)

    def read(self, block):
        return block.get(stream=self._side)


class Buffer:
    """An array in a memory, `skew` elements after a boundary of ALIGNMENT, between guards that must not change."""

    def __init__(self, memory, array, skew=0):
        self._memory, self._like = memory, array
        self._first = skew * array.itemsize
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._block = memory.allocate(self._first + array.nbytes + GUARD.size)
        memory.write(self._block, np.concatenate([GUARD[: self._first], content, GUARD]))
        self.pointer = ctypes.c_void_p(memory.address(self._block) + self._first)

    def read(self):
        """The current array; fails if memory beside it was overwritten."""
        content = self._memory.read(self._block)
        before, after = content[: self._first], content[-GUARD.size :]
        intact = np.array_equal(before, GUARD[: self._first]) and np.array_equal(after, GUARD)
        assert intact, "a kernel wrote beside an array"
        return content[self._first : -GUARD.size].view(self._like.dtype).reshape(self._like.shape)


class Selection:
    """The four selections as functions of NumPy arrays."""

    def __init__(self, path, memory):
        self.native = ctypes.CDLL(str(path))
        self.native.hvds_gpu_error.restype = ctypes.c_char_p
        self.memory = memory
        self.skew = 0
        self.workspace = None  # that of the last call

    def skewed(self):
        """The same, with every array except the workspace one element after a boundary."""
        other = copy.copy(self)
        other.skew = 1
        return other

    def check(self, code):
        """Raises the exception for an error code."""
        if code != 0:
            raise RuntimeError(self.native.hvds_gpu_error(code).decode())

    def workspace_bytes(self, size, k, mstopk):
        needed = ctypes.c_size_t()
        self.check(self.native.hvds_gpu_workspace(*_int64s(size, k), int(mstopk), ctypes.byref(needed)))
        return needed.value

    def topk(self, x, k):
        """values [k], indices [k] and report [2] of x [size]."""
        return self._plain("hvds_gpu_topk", x, k)

    def mstopk(self, x, k, samplings, seed):
        return self._plain("hvds_gpu_mstopk", x, k, ctypes.c_int(samplings), ctypes.c_uint64(seed))

    def feedback_topk(self, parts, residual, k, wire_dtype, in_place=False):
        """values [k], indices [k], residual_out [size] and fault of parts [n, stride] and residual [size]."""
        return self._feedback("hvds_gpu_feedback_topk", parts, residual, k, wire_dtype, in_place)

    def feedback_mstopk(self, parts, residual, k, wire_dtype, samplings, seed, in_place=False):
        method = (ctypes.c_int(samplings), ctypes.c_uint64(seed))
        return self._feedback("hvds_gpu_feedback_mstopk", parts, residual, k, wire_dtype, in_place, *method)

    def _plain(self, function, x, k, *method):
        source = self._put(x)
        values, indices = self._put(_unset(k, x.dtype)), self._put(_unset(k, np.int32))
        report = self._put(_unset(2, np.int64))
        head = (source.pointer, DTYPES[x.dtype], *_int64s(x.size, k), *method)
        self._call(function, x.size, k, method, *head, values.pointer, indices.pointer, report.pointer)
        assert np.array_equal(source.read().view(np.uint8), x.view(np.uint8))
        return values.read(), indices.read(), report.read()

    def _feedback(self, function, parts, residual, k, wire_dtype, in_place, *method):
        count, stride = parts.shape
        size = residual.size
        source, residual_in = self._put(parts), self._put(residual)
        left = residual_in if in_place else self._put(_unset(size, np.float32))
        values, indices = self._put(_unset(k, wire_dtype)), self._put(_unset(k, np.int32))
        fault = self._put(_unset(1, np.int32))
        vectors = (source.pointer, DTYPES[parts.dtype], *_int64s(count, stride), residual_in.pointer, *_int64s(size, k))
        outputs = (values.pointer, indices.pointer, left.pointer, fault.pointer)
        self._call(function, size, k, method, *vectors, *method, DTYPES[np.dtype(wire_dtype)], *outputs)
        assert np.array_equal(source.read().view(np.uint8), parts.view(np.uint8))
        assert in_place or np.array_equal(residual_in.read().view(np.uint32), residual.view(np.uint32))
        return values.read(), indices.read(), left.read(), int(fault.read()[0])

    def _call(self, function, size, k, method, *arguments):
        needed = self.workspace_bytes(size, k, bool(method))
        self.workspace = Buffer(self.memory, _unset(needed, np.uint8))
        tail = (self.workspace.pointer, ctypes.c_size_t(needed), ctypes.c_void_p(self.memory.stream))
        self.check(getattr(self.native, function)(*arguments, *tail))
        self.workspace.read()

    def _put(self, array):
        return Buffer(self.memory, array, self.skew)


def emulated(folder, slack=None):
    """The kernels compiled for the CPU; `slack` replaces the number of candidates allowed beyond the expected one."""
    library = folder / f"select_gpu_{slack or 'default'}.so"
    flags = "-std=c++17 -O2 -fPIC -shared -fno-strict-aliasing -ffp-contract=off".split()
    warnings = "-Wall -Wextra -Werror -Wno-unknown-pragmas".split()
    define = [f"-DHVDS_CANDIDATE_SLACK={slack}"] if slack else []
    include = ROOT / "tests" / "gpu" / "emulated"
    compiler = os.environ.get("CXX", "c++")
    source = include / "select_gpu.cc"
    command = [
        compiler,
        *flags,
        *warnings,
        *define,
        f"-I{include}",
        f"-I{ROOT / 'ops'}",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return Selection(library, HostMemory())


def missing_gpu():
    """Why the kernels cannot run on a GPU here, as text; None if they can."""
    if gpu_memory() is None:
        return "neither PyTorch nor CuPy finds a CUDA GPU here"
    if not built_library().exists() and shutil.which("nvcc") is None:
        return "hvd_sparse/_cuda.so has not been built and there is no nvcc to build it"
    return None


def gpu_memory():
    """GPU memory of the first framework that works, or None."""
    for kind in (TorchMemory, CupyMemory):
        try:
            return kind()
        except Exception:  # frameworks raise different errors if they, their driver or their device is missing
            continue
    return None


def built_library():
    return ROOT / "hvd_sparse" / "_cuda.so"


def on_gpu(folder):
    """The kernels on the GPU: those built with the package, or else compiled here."""
    library = built_library()
    if not library.exists():
        library = folder / "_cuda.so"
        flags = "-std=c++17 -O3 --fmad=false -arch=native -shared -Xcompiler=-fPIC".split()
        subprocess.run(["nvcc", *flags, str(ROOT / "ops" / "select" / "select_gpu.cu"), "-o", str(library)], check=True)
    return Selection(library, gpu_memory())


def _unset(count, dtype):
    """An array whose contents no result equals."""
    return np.full(count * np.dtype(dtype).itemsize, 0xC3, np.uint8).view(dtype)


def _int64s(*numbers):
    return [ctypes.c_int64(number) for number in numbers]

"""The C interface of ops/pipeline/rows_gpu.h through ctypes, with the memories of tests/gpu/library.py."""

import ctypes
import os
import subprocess

import numpy as np

from tests.gpu import library

SOURCE = library.ROOT / "ops" / "pipeline" / "rows_gpu.cu"


class Shape(ctypes.Structure):
    """hvds_rows."""

    _fields_ = [
        ("dtype", ctypes.c_int),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("kept", ctypes.c_int64),
        ("narrow", ctypes.c_int32),
    ]


def shape_of(x, width, kept, positions):
    """The shape of rows with elements like those of x."""
    return Shape(library.DTYPES[x.dtype], len(x), width, kept, positions == np.uint16)


class Rows:
    """The functions on NumPy arrays; every array begins `skew` elements after a boundary."""

    def __init__(self, path, memory, skew=0):
        self.native = ctypes.CDLL(str(path))
        self.native.hvds_rows_gpu_error.restype = ctypes.c_char_p
        self.memory, self.skew = memory, skew

    def call(self, name, shape, *buffers):
        """Calls a function; raises the exception for an error code."""
        pointers = [None if each is None else each.pointer for each in buffers]
        code = getattr(self.native, f"hvds_rows_gpu_{name}")(
            ctypes.byref(shape), *pointers, ctypes.c_void_p(self.memory.stream)
        )
        if code != 0:
            raise RuntimeError(self.native.hvds_rows_gpu_error(code).decode())

    def largest(self, x, kept, positions, dense, values):
        """y or None, values or None, and positions."""
        rows, width = x.shape
        source, places = self._put(x), self._unset((rows, kept), positions)
        y = self._unset(x.shape, x.dtype) if dense else None
        chosen = self._unset((rows, kept), x.dtype) if values else None
        self.call("largest", shape_of(x, width, kept, positions), source, y, chosen, places)
        assert source.read().tobytes() == x.tobytes()
        return [None if each is None else each.read() for each in (y, chosen, places)]

    def place(self, values, positions, width):
        return self._written("place", values, positions, (len(values), width), width)

    def gather(self, x, positions):
        return self._written("gather", x, positions, positions.shape, x.shape[1])

    def mask(self, x, positions):
        return self._written("mask", x, positions, x.shape, x.shape[1])

    def _written(self, name, source, positions, shape, width):
        output = self._unset(shape, source.dtype)
        call = shape_of(source, width, positions.shape[1], positions.dtype)
        self.call(name, call, self._put(source), self._put(positions), output)
        return output.read()

    def _put(self, array):
        return library.Buffer(self.memory, array, self.skew)

    def _unset(self, shape, dtype):
        return self._put(np.full(shape, 7, dtype))


def emulated(folder):
    """The path of the kernels, compiled for the CPU."""
    path = folder / "rows_gpu.so"
    include = library.ROOT / "tests" / "gpu" / "emulated"
    flags = "-std=c++17 -O2 -fPIC -shared -fno-strict-aliasing -Wall -Wextra -Werror -Wno-unknown-pragmas".split()
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *flags, f"-I{include}", str(include / "rows_gpu.cc"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def on_gpu(folder):
    """The path of the kernels for the GPU: those built with the package, or else compiled here."""
    path = library.built_library()
    if not path.exists():
        path = folder / "_cuda.so"
        flags = "-std=c++17 -O3 --fmad=false -arch=native -shared -Xcompiler=-fPIC".split()
        subprocess.run(["nvcc", *flags, str(SOURCE), "-o", str(path)], check=True)
    return path

"""The C interface of ops/momentum/momentum_gpu.h through ctypes, with the memories of tests/gpu/library.py."""

import ctypes
import os
import subprocess

import numpy as np

from tests.gpu import library

SOURCE = library.ROOT / "ops" / "momentum" / "momentum_gpu.cu"
I64 = ctypes.c_int64


class Momentum:
    """The functions on NumPy arrays; every array begins `skew` elements after a boundary."""

    def __init__(self, path, memory):
        self.native = ctypes.CDLL(str(path))
        self.native.hvds_momentum_gpu_error.restype = ctypes.c_char_p
        self.memory = memory

    def check(self, code):
        """Raises the exception for an error code."""
        if code != 0:
            raise RuntimeError(self.native.hvds_momentum_gpu_error(code).decode())

    def advance(self, parts, velocity, decay, gain, nesterov, in_place=False, skew=0):
        """The new velocity, the update and the culprit of parts [n, size] and velocity [size]."""
        unset = np.full_like(velocity, 7)
        source, before, after, moves = (self._put(each, skew) for each in (parts, velocity, unset, unset))
        numbers = [self._put(np.array([each], np.float32)) for each in (decay, gain)]
        culprit = self._put(np.array([-1], np.int32))
        to = before if in_place else after
        self.check(
            self.native.hvds_momentum_gpu_advance(
                source.pointer, library.DTYPES[parts.dtype], *map(I64, parts.shape), before.pointer,
                *(each.pointer for each in numbers), to.pointer, moves.pointer if nesterov else None, culprit.pointer,
                self._stream(),
            )
        )  # fmt: skip
        assert source.read().tobytes() == parts.tobytes()
        assert in_place or before.read().tobytes() == velocity.tobytes()
        return to.read(), moves.read() if nesterov else to.read(), int(culprit.read()[0])

    def clear(self, vector, indices, in_place=False, skew=0):
        """The vector with 0 at the indices."""
        before, after, places = (self._put(each, skew) for each in (vector, np.full_like(vector, 7), indices))
        to = before if in_place else after
        self.check(
            self.native.hvds_momentum_gpu_clear(
                before.pointer, I64(vector.size), places.pointer, I64(indices.size), to.pointer, self._stream()
            )
        )
        assert in_place or before.read().tobytes() == vector.tobytes()
        return to.read()

    def _put(self, array, skew=0):
        return library.Buffer(self.memory, array, skew)

    def _stream(self):
        return ctypes.c_void_p(self.memory.stream)


def emulated(folder):
    """The kernels compiled for the CPU."""
    path = folder / "momentum_gpu.so"
    include = library.ROOT / "tests" / "gpu" / "emulated"
    flags = "-std=c++17 -O2 -fPIC -shared -fno-strict-aliasing -ffp-contract=off".split()
    flags += "-Wall -Wextra -Werror -Wno-unknown-pragmas".split()
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *flags, f"-I{include}", str(include / "momentum_gpu.cc"), "-o", str(path)]
    subprocess.run(command, check=True)
    return Momentum(path, library.HostMemory())


def on_gpu(folder):
    """The kernels on the GPU: those built with the package, or else compiled here."""
    path = library.built_library()
    if not path.exists():
        path = folder / "_cuda.so"
        flags = "-std=c++17 -O3 --fmad=false -arch=native -shared -Xcompiler=-fPIC".split()
        subprocess.run(["nvcc", *flags, str(SOURCE), "-o", str(path)], check=True)
    return Momentum(path, library.gpu_memory())

"""The C interface of ops/lars/passes_gpu.h through ctypes, with the memories of tests/gpu/library.py."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

from tests.gpu import library
from tests.lars import native
from tests.lars.passes import LambRule

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "lars" / "_cuda.so"
I64, DOUBLE = ctypes.c_int64, ctypes.c_double


class Tensors:
    """Lists of arrays in a memory, with one lars_layer per position in the lists."""

    def __init__(self, memory, weights, gradients, slots=(), decays=None, skew=0):
        lists = [weights, gradients, *slots]
        self.held = [[library.Buffer(memory, array, skew) for array in arrays] for arrays in lists]
        self.layers = (native.Layer * len(weights))()
        for number, layer in enumerate(self.layers):
            weight, gradient, *others = (buffers[number].pointer.value for buffers in self.held)
            layer.weight, layer.gradient = weight, gradient
            for place, address in enumerate(others):
                layer.slots[place] = address
            layer.size, layer.dtype = weights[number].size, native.CODES[weights[number].dtype]
            layer.decay = 0 if decays is None else decays[number]

    def read(self):
        """The current weights, gradients and slots; fails if memory beside them was overwritten."""
        return [[buffer.read() for buffer in buffers] for buffers in self.held]


class Passes:
    """The passes as functions of Tensors and NumPy arrays."""

    def __init__(self, path, memory):
        self.native = ctypes.CDLL(str(path))
        self.native.lars_gpu_error.restype = ctypes.c_char_p
        self.memory = memory

    def check(self, code):
        if code != 0:
            raise RuntimeError(self.native.lars_gpu_error(code).decode())

    def lars_partials(self, tensors, first, last):
        return self._partials("lars_gpu_partials", tensors, first, last)

    def lamb_partials(self, tensors, rule: LambRule, first, last):
        return self._partials("lamb_gpu_partials", tensors, first, last, ctypes.byref(native.Lamb(*rule)))

    def lars_update(self, tensors, ratios, learning_rate, momentum, nesterov):
        rule = native.Lars(momentum, int(nesterov))
        self._update("lars_gpu_update", tensors, rule, ratios, learning_rate)

    def lamb_update(self, tensors, ratios, learning_rate, rule: LambRule):
        self._update("lamb_gpu_update", tensors, native.Lamb(*rule), ratios, learning_rate)

    def layer_sums(self, partials, sizes):
        given = library.Buffer(self.memory, partials)
        sums = library.Buffer(self.memory, np.full((len(sizes), partials.shape[1]), np.nan))
        code = self.native.lars_gpu_layer_sums(
            (I64 * len(sizes))(*sizes), I64(len(sizes)), given.pointer, I64(len(partials)), I64(partials.shape[1]),
            sums.pointer, self._stream(),
        )  # fmt: skip
        self.check(code)
        return sums.read()

    def _partials(self, function, tensors, first, last, *rule):
        partials = library.Buffer(self.memory, np.full((last - first, 2), np.nan))
        code = getattr(self.native, function)(
            tensors.layers, I64(len(tensors.layers)), *rule, I64(first), I64(last), partials.pointer, self._stream()
        )
        self.check(code)
        return partials.read()

    def _update(self, function, tensors, rule, ratios, learning_rate):
        given = library.Buffer(self.memory, np.asarray(ratios, np.float64))
        code = getattr(self.native, function)(
            tensors.layers, I64(len(tensors.layers)), ctypes.byref(rule), DOUBLE(learning_rate), given.pointer,
            self._stream(),
        )  # fmt: skip
        self.check(code)
        given.read()

    def _stream(self):
        return ctypes.c_void_p(self.memory.stream)


def emulated(folder):
    """The kernels compiled for the CPU."""
    path = folder / "passes_gpu.so"
    include = ROOT / "tests" / "gpu" / "emulated"
    flags = "-std=c++17 -O2 -fPIC -shared -fno-strict-aliasing -ffp-contract=off".split()
    flags += "-Wall -Wextra -Werror -Wno-unknown-pragmas".split()
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *flags, f"-I{include}", str(include / "passes_gpu.cc"), "-o", str(path)]
    subprocess.run(command, check=True)
    return Passes(path, library.HostMemory())


def missing_gpu():
    """Why the kernels cannot run on a GPU here, as text; None if they can."""
    if library.gpu_memory() is None:
        return "neither PyTorch nor CuPy finds a CUDA GPU here"
    if not BUILT.exists() and shutil.which("nvcc") is None:
        return "lars/_cuda.so has not been built and there is no nvcc to build it"
    return None


def on_gpu(folder):
    """The kernels on the GPU: those built with the package, or else compiled here."""
    path = BUILT
    if not path.exists():
        path = folder / "_cuda.so"
        flags = "-std=c++17 -O3 --fmad=false -arch=native -shared -Xcompiler=-fPIC".split()
        subprocess.run(["nvcc", *flags, str(ROOT / "ops" / "lars" / "passes_gpu.cu"), "-o", str(path)], check=True)
    return Passes(path, library.gpu_memory())

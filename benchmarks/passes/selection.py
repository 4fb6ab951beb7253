"""Our selection kernels and their native rivals, called through their C interfaces with reused buffers."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import subprocess
import tempfile
import timeit
from collections.abc import Callable

import numpy as np

from hvd_sparse import ops

SEED = 1
SAMPLINGS = 30
_RIVALS = pathlib.Path(__file__).parents[1] / "native" / "topk_rivals.cc"
_FLOAT32 = 0
_AHEAD = (0, 64, 128, 512)  # prefetch distances, in elements
_LEVELS = ("SSE2", "AVX2", "AVX-512")


def aligned(size: int, dtype: type = np.float32) -> np.ndarray:
    """An array aligned to 64 bytes, like TensorFlow's tensors, with its pages allocated."""
    items = np.dtype(dtype).itemsize
    memory = np.full(size * items + 64, 0, np.uint8)  # np.zeros would map all pages to the same one until written
    start = -memory.ctypes.data % 64
    return memory[start : start + size * items].view(dtype)


def _pointer(array: np.ndarray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of seven runs."""
    return min(timeit.repeat(run, number=1, repeat=7))


class Rivals:
    """native/topk_rivals.cc, compiled for this processor."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        library = f"{self._folder.name}/rivals.so"
        flags = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread"]
        subprocess.run(["c++", *flags, str(_RIVALS), "-o", library], check=True)
        self._library = ctypes.CDLL(library)
        self._library.bench_read.restype = ctypes.c_float
        self._library.bench_dgc.restype = ctypes.c_int64
        self._library.bench_threads.restype = ctypes.c_void_p
        self._ahead: dict[tuple[str, int], int] = {}

    def threads(self, count: int) -> int:
        """The address of an executor with this many threads."""
        return self._library.bench_threads(count)

    def read(self, x: np.ndarray) -> None:
        """The sum of |x|."""
        self._pass("bench_read", x)

    def add(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """out = gradient + residual."""
        self._pass("bench_add", gradient, residual, out)

    def add_in_place(self, gradient: np.ndarray, residual: np.ndarray) -> None:
        """residual += gradient."""
        self._pass("bench_add_in_place", gradient, residual)

    def add_and_move(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        between: tuple[np.ndarray, np.ndarray],
        kept: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """The addition and the memory traffic of a selection, without selecting: a lower bound of the fused step."""
        pointers = [_pointer(gradient), _pointer(residual), _pointer(out)]
        sizes = [ctypes.c_int64(out.size), ctypes.c_int64(kept[0].size)]
        ahead = ctypes.c_int64(self._ahead.get(("bench_add", out.size), 0))
        self._library.bench_add_and_move(*pointers, *sizes, *map(_pointer, between), *map(_pointer, kept), ahead)

    def _pass(self, name: str, *vectors: np.ndarray) -> None:
        """A pass over memory, with the prefetch distance that was fastest when this size was first used."""
        function, size = getattr(self._library, name), vectors[0].size
        arguments = [*map(_pointer, vectors), ctypes.c_int64(size)]
        if (name, size) not in self._ahead:
            runs = {ahead: functools.partial(function, *arguments, ctypes.c_int64(ahead)) for ahead in _AHEAD}
            self._ahead[name, size] = min(runs, key=lambda ahead: _fastest(runs[ahead]))
        function(*arguments, ctypes.c_int64(self._ahead[name, size]))

    def literal_mstopk(self, x: np.ndarray, k: int, values: np.ndarray, indices: np.ndarray) -> int:
        return self._library.bench_literal_mstopk(
            _pointer(x),
            ctypes.c_int64(x.size),
            ctypes.c_int64(k),
            ctypes.c_int32(SAMPLINGS),
            ctypes.c_uint64(SEED),
            _pointer(values),
            _pointer(indices),
        )

    def dgc(self, x: np.ndarray, k: int, values: np.ndarray, indices: np.ndarray) -> int:
        return self._library.bench_dgc(
            _pointer(x), ctypes.c_int64(x.size), ctypes.c_int64(k), _pointer(values), _pointer(indices)
        )


class _Holding(ctypes.Structure):
    """hvds_holding of select.h."""

    _fields_ = [("due", ctypes.c_int), *((name, ctypes.c_int64) for name in ("kept", "least", "most"))]


class Kernels:
    """ops/select/select.h."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(pathlib.Path(ops.__file__).with_name("_ops.so")))
        self._library.hvds_workspace_create.restype = ctypes.c_void_p
        self._workspace = ctypes.c_void_p(self._library.hvds_workspace_create())
        self._report = np.zeros(2, np.int64)
        self._fault = np.zeros(1, np.int32)

    def isa(self) -> str:
        """The instruction set in use."""
        return _LEVELS[self._library.hvds_isa()]

    def topk(self, x: np.ndarray, k: int, values: np.ndarray, indices: np.ndarray, threads: int | None = None) -> None:
        self._require(
            self._library.hvds_topk(*self._vector(x, k), *self._outputs(values, indices, self._report, threads))
        )

    def mstopk(
        self, x: np.ndarray, k: int, values: np.ndarray, indices: np.ndarray, threads: int | None = None
    ) -> None:
        self._require(
            self._library.hvds_mstopk(
                *self._vector(x, k), *_search(), *self._outputs(values, indices, self._report, threads)
            )
        )

    def feedback_topk(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        k: int,
        values: np.ndarray,
        indices: np.ndarray,
        residual_out: np.ndarray,
        threads: int | None = None,
    ) -> None:
        outputs = self._outputs(values, indices, self._fault, threads, residual_out)
        self._require(
            self._library.hvds_feedback_topk(*self._parts(gradient, residual, k), ctypes.c_int(_FLOAT32), *outputs)
        )

    def feedback_mstopk(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        k: int,
        values: np.ndarray,
        indices: np.ndarray,
        residual_out: np.ndarray,
        threads: int | None = None,
    ) -> None:
        outputs = self._outputs(values, indices, self._fault, threads, residual_out)
        self._require(
            self._library.hvds_feedback_mstopk(
                *self._parts(gradient, residual, k), *_search(), ctypes.c_int(_FLOAT32), *outputs
            )
        )

    def feedback_held(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        k: int,
        threshold: float,
        values: np.ndarray,
        indices: np.ndarray,
        residual_out: np.ndarray,
    ) -> int:
        """Selects what reaches an earlier step's threshold, at most 4 k elements; returns how many."""
        *parts, _ = self._parts(gradient, residual, k)
        sent, clamped = ctypes.c_int64(), ctypes.c_int32()
        holding = _Holding(0, k, (k + 3) // 4, min(4 * k, gradient.size))
        self._require(
            self._library.hvds_feedback_held(
                *parts,
                ctypes.byref(holding),
                ctypes.c_int(_FLOAT32),
                ctypes.byref(ctypes.c_float(threshold)),
                _pointer(residual_out),
                _pointer(self._fault),
                ctypes.byref(sent),
                ctypes.byref(clamped),
                self._workspace,
                ctypes.c_void_p(None),
            )
        )
        self._library.hvds_take_sent(self._workspace, ctypes.c_int(_FLOAT32), _pointer(values), _pointer(indices))
        return sent.value

    @staticmethod
    def _vector(x: np.ndarray, k: int) -> list:
        return [_pointer(x), ctypes.c_int(_FLOAT32), ctypes.c_int64(x.size), ctypes.c_int64(k)]

    @staticmethod
    def _parts(gradient: np.ndarray, residual: np.ndarray, k: int) -> list:
        size = ctypes.c_int64(gradient.size)
        part = [_pointer(gradient), ctypes.c_int(_FLOAT32), ctypes.c_int64(1), size]
        return [*part, _pointer(residual), size, ctypes.c_int64(k)]

    def _outputs(
        self,
        values: np.ndarray,
        indices: np.ndarray,
        told: np.ndarray,
        threads: int | None,
        residual_out: np.ndarray | None = None,
    ) -> list:
        written = [_pointer(values), _pointer(indices)]
        if residual_out is not None:
            written.append(_pointer(residual_out))
        return [*written, _pointer(told), self._workspace, ctypes.c_void_p(threads)]

    def _require(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the kernel returned status {status}")
        if self._fault[0] != 0:
            raise RuntimeError(f"the kernel reported fault {self._fault[0]}")


def _search() -> list:
    return [ctypes.c_int(SAMPLINGS), ctypes.c_uint64(SEED)]

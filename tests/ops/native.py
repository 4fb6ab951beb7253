"""The kernels' C interface through ctypes: without TensorFlow, and with any number of threads."""

import contextlib
import ctypes
import threading

import ml_dtypes
import numpy as np

from hvd_sparse import ops

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CODES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, BFLOAT16: 2}
ISAS = {"sse2": 0, "avx2": 1, "avx512": 2}

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, _TASK, ctypes.c_void_p)


class Parallel(ctypes.Structure):
    """hvds_parallel: an executor that runs each task in its own thread, the last task first."""

    _fields_ = [("context", ctypes.c_void_p), ("threads", ctypes.c_int), ("run", _RUN)]

    def __init__(self, threads: int):
        self.tasks_run = 0
        super().__init__(None, threads, _RUN(self._run))

    def _run(self, _context, tasks, task, argument):
        self.tasks_run += tasks
        workers = [threading.Thread(target=task, args=(argument, number)) for number in reversed(range(tasks))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def library() -> ctypes.CDLL:
    """The library with the kernels."""
    return ops.kernels()


def code(array: np.ndarray) -> int:
    """The enum hvds_dtype value of an array."""
    return CODES[array.dtype]


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """The address of an array's elements."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes, like TensorFlow's tensors."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


@contextlib.contextmanager
def isa(level: int):
    """Uses an instruction set inside the `with` block."""
    native = library()
    before = native.hvds_isa()
    assert native.hvds_set_isa(level) == 0
    try:
        yield
    finally:
        native.hvds_set_isa(before)


def isas() -> list[str]:
    """The names of the instruction sets of this processor."""
    return [name for name, level in ISAS.items() if level <= library().hvds_isa_detected()]

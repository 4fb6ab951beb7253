"""What is installed: Python, the frameworks, Horovod and what it was built with, and the native libraries."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_sparse import _dependencies, _version

PACKAGES = Path(__file__).resolve().parents[2]  # the folder in which hvd_sparse, datacache and lars are
OPERATIONS = ("hvd_sparse/_ops.so", "datacache/_ops.so", "lars/_ops.so")  # TensorFlow loads them
PLAIN = ("datacache/_native.so", "lars/_native.so")
SELECTION = "hvd_sparse/_cuda.so"
FOR_GPUS = (SELECTION, "lars/_cuda.so")
_PARTS = ("gloo", "mpi", "nccl", "cuda")  # with which Horovod may have been built


def found() -> dict[str, Any]:
    """All of it as JSON-serialisable values, by name; what cannot be imported has an "error", some also a "remedy"."""
    return {
        "python": {"version": sys.version.partition(" ")[0], "path": sys.executable},
        "tensorflow": _described("tensorflow", _tensorflow),
        "keras": {"backend": os.environ.get("KERAS_BACKEND", "tensorflow"), **_described("keras", _keras)},
        "horovod": _described("horovod.tensorflow", _horovod),
        "hvd_sparse": {"version": _version.__version__, **_described("hvd_sparse.keras", lambda module: {})},
        "libraries": {name: _library(name) for name in (*OPERATIONS, *PLAIN, *FOR_GPUS)},
    }


def _described(name: str, describe: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        return describe(importlib.import_module(name))
    except Exception as error:  # whatever is wrong with it, the rest is still to be told
        lack = _dependencies.lack(error) if isinstance(error, ModuleNotFoundError) else None
        if lack is not None and lack.package == name.partition(".")[0]:
            return {"error": lack.reason, "remedy": lack.remedy}
        return {"error": _text(error)}


def _tensorflow(tensorflow: Any) -> dict[str, Any]:
    built = tensorflow.sysconfig.get_build_info()
    gpus = tensorflow.config.list_physical_devices("GPU")
    return {
        "version": tensorflow.__version__,
        "cuda": built.get("cuda_version") if built.get("is_cuda_build") else None,
        "gpus": [_gpu(tensorflow, gpu) for gpu in gpus],
    }


def _gpu(tensorflow: Any, gpu: Any) -> str:
    details = tensorflow.config.experimental.get_device_details(gpu)
    capability = ".".join(map(str, details.get("compute_capability", ())))
    return f"{details.get('device_name', gpu.name)}{capability and f', compute capability {capability}'}"


def _keras(keras: Any) -> dict[str, Any]:
    return {"version": keras.__version__, "backend": keras.config.backend()}


def _horovod(horovod: Any) -> dict[str, Any]:
    built = [part for part in _PARTS if getattr(horovod, f"{part}_built")()]
    survives = importlib.import_module("hvd_sparse.transport.background_loop").ended_function() is not None
    return {"version": importlib.import_module("horovod").__version__, "built_with": built, "survives_deaths": survives}


def _library(name: str) -> dict[str, Any]:
    path = PACKAGES / name
    if not path.exists():
        return {"there": False}
    notes = path.with_suffix(".json")
    built_for = json.loads(notes.read_text())["tensorflow"] if notes.exists() else None
    try:
        if name in OPERATIONS:
            importlib.import_module("tensorflow").load_op_library(str(path))
        else:
            ctypes.CDLL(str(path))
    except Exception as error:  # OSError, and whatever TensorFlow raises
        return {"there": True, "tensorflow": built_for, "error": _text(error)}
    return {"there": True, "tensorflow": built_for}


def gpu_fault() -> str | None:
    """Why the selection's GPU library cannot work with the GPU and driver that are there; None if it can."""
    library = ctypes.CDLL(str(PACKAGES / SELECTION))
    library.hvds_gpu_error.restype = ctypes.c_char_p
    asked = (ctypes.c_int64(1000), ctypes.c_int64(10), ctypes.c_int(0), ctypes.byref(ctypes.c_size_t()))
    code = library.hvds_gpu_workspace(*asked)
    return library.hvds_gpu_error(code).decode() if code else None


def _text(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

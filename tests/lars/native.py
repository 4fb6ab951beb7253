"""The C interface of ops/lars/passes.h through ctypes: without TensorFlow, and with any number of threads."""

import contextlib
import ctypes
import functools
from pathlib import Path

import numpy as np

from tests.lars.passes import DTYPES, LambRule

LIBRARY = Path(__file__).resolve().parents[2] / "lars" / "_native.so"
CODES = {np.dtype(dtype): code for code, dtype in enumerate(DTYPES.values())}
ISAS = {"sse2": 0, "avx2": 1, "avx512": 2}

_I64, _DOUBLE, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Layer(ctypes.Structure):
    """lars_layer."""

    _fields_ = [
        ("weight", _POINTER),
        ("slots", _POINTER * 2),
        ("gradient", _POINTER),
        ("size", _I64),
        ("dtype", ctypes.c_int32),
        ("scale", _DOUBLE),
        ("decay", _DOUBLE),
    ]


class Lars(ctypes.Structure):
    """lars_rule."""

    _fields_ = [("momentum", _DOUBLE), ("nesterov", ctypes.c_int32)]


class Lamb(ctypes.Structure):
    """lamb_rule."""

    _fields_ = [("beta_1", _DOUBLE), ("beta_2", _DOUBLE), ("epsilon", _DOUBLE), ("step", _I64)]


@functools.cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(LIBRARY))
    for name in ("lars_block_size", "lars_block_count"):
        getattr(loaded, name).restype = _I64
    return loaded


def isas() -> list[str]:
    """The names of the instruction sets of this processor."""
    return [name for name, level in ISAS.items() if level <= library().hvds_isa_detected()]


@contextlib.contextmanager
def isa(name: str):
    """Uses an instruction set inside the `with` block."""
    before = library().hvds_isa()
    assert library().hvds_set_isa(ISAS[name]) == 0
    try:
        yield
    finally:
        library().hvds_set_isa(before)


def layers(weights, gradients, slots=(), scales=None, decays=None):
    """An array of lars_layer; `slots` contains one list of arrays per slot."""
    made = (Layer * len(weights))()
    for number, layer in enumerate(made):
        layer.weight, layer.gradient = weights[number].ctypes.data, gradients[number].ctypes.data
        for place, arrays in enumerate(slots):
            layer.slots[place] = arrays[number].ctypes.data
        layer.size, layer.dtype = weights[number].size, CODES[weights[number].dtype]
        layer.scale = 0 if scales is None else scales[number]
        layer.decay = 0 if decays is None else decays[number]
    return made


def lars_partials(made, first, last, parallel=None):
    sums = np.full((last - first, 2), np.nan)
    status = library().lars_partials(made, _I64(len(made)), _I64(first), _I64(last), _to(sums), _by(parallel))
    return sums, status


def lars_update(made, momentum, nesterov, parallel=None):
    rule = Lars(momentum, int(nesterov))
    return library().lars_update(made, _I64(len(made)), ctypes.byref(rule), _by(parallel))


def lamb_partials(made, rule: LambRule, first, last, parallel=None):
    sums = np.full((last - first, 2), np.nan)
    status = library().lamb_partials(
        made, _I64(len(made)), ctypes.byref(Lamb(*rule)), _I64(first), _I64(last), _to(sums), _by(parallel)
    )
    return sums, status


def lamb_update(made, rule: LambRule, parallel=None):
    return library().lamb_update(made, _I64(len(made)), ctypes.byref(Lamb(*rule)), _by(parallel))


def _to(array):
    return ctypes.c_void_p(array.ctypes.data)


def _by(parallel):
    return None if parallel is None else ctypes.byref(parallel)

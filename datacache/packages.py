"""What belongs to an installed package, or to Python, and so counts by a version."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import types
from typing import Any

import numpy as np
import xxhash

from datacache import imports

_HEAP = 1 << 9  # the flag of a class that was not compiled into its module as a constant


def file_of(module: str) -> str:
    """The file of a module; "" for a user's module without one, such as a notebook."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file or ("<frozen" if module.partition(".")[0] in sys.stdlib_module_names else "")


def provides(value: types.FunctionType | type) -> bool:
    """Whether an installed package has this function or class under its own name, so that its version describes it.

    What a package's function has made, such as a decorated function or a named tuple, is not its own.
    """
    module, name = str(value.__module__), value.__qualname__
    if not imports.is_installed(file_of(module)):
        return False
    if isinstance(value, types.FunctionType):
        return imports.is_installed(value.__code__.co_filename) and callable(_found(module, name))
    return _found(module, name) is value or not value.__flags__ & _HEAP


def home_of(value: np.ufunc) -> str | None:
    """The module of NumPy or SciPy that has this function; None for one that is made of a user's function."""
    homes = ("numpy", "scipy.special")
    return next((home for home in homes if getattr(sys.modules.get(home), value.__name__, None) is value), None)


def is_dispatch(value: types.FunctionType) -> bool:
    """Whether `functools.singledispatch` has made this function."""
    return value.__code__.co_filename == functools.singledispatch.__code__.co_filename and hasattr(value, "registry")


def shown_by(value: Any) -> dict[str, Any] | None:
    """What decides the results of an object that `tf.function` or `np.vectorize` has made, by attribute.

    The other attributes hold what it has compiled. None for other objects.
    """
    if isinstance(value, np.vectorize):
        return {name: getattr(value, name) for name in ("pyfunc", "otypes", "signature", "excluded")}
    if provides(type(value)) and hasattr(value, "python_function") and hasattr(value, "input_signature"):
        return {"python_function": value.python_function, "input_signature": value.input_signature}
    return None


def is_of_python(kind: type) -> bool:
    """Whether a class is of Python's standard library."""
    return str(kind.__module__).partition(".")[0] in sys.stdlib_module_names


@functools.cache
def version(module: str) -> str:
    """The version of a module's package; of a user's compiled module, the digest of its file."""
    file = file_of(module)
    if os.path.isfile(file) and not imports.is_installed(file):
        with open(file, "rb") as content:
            return xxhash.xxh3_128(content.read()).hexdigest()
    package = module.partition(".")[0]
    found = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # of the standard library, whose version is Python's


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found

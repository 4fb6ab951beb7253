"""What must be installed beside this package, and the error that says how to get it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

HOW = {
    "tensorflow": "pip install tensorflow==2.21.0, or tensorflow-cpu==2.21.0 on machines without a GPU",
    "keras": "pip install 'keras>=3.15,<4'",
    "horovod": (
        "run `make install PYTHON=ENV/bin/python` in hvd_sparse's source, or `tools/horovod/build_wheel.sh "
        "ENV/bin/python` there, which compiles Horovod for the TensorFlow of that environment"
    ),
}


class Lack(NamedTuple):
    """A package that Python does not find.

    Attributes:
        package: its name.
        reason: what is the matter, after "which is".
        remedy: what to do.
    """

    package: str
    reason: str
    remedy: str


def lack(error: ModuleNotFoundError) -> Lack | None:
    """What an import has not found, if `HOW` has it."""
    package, _, inside = (error.name or "").partition(".")
    if package not in HOW:
        return None
    if not inside:
        return Lack(package, "not installed", HOW[package])
    taken = sys.modules[package]  # by its name, a folder beside the script may have been imported
    place = getattr(taken, "__file__", None) or next(iter(taken.__path__))
    remedy = "start the script as a module (python -m ...), or take the folder that contains this from Python's path"
    return Lack(package, f"taken from {place}, which has no {error.name}", remedy)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Says how to get a package of `HOW` that an import in the body does not find.

    Raises:
        ModuleNotFoundError: naming what is missing and what to do.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missed = lack(error)
        if missed is None:
            raise
        text = f"hvd_sparse needs {missed.package}, which is {missed.reason}: {missed.remedy}."
        raise ModuleNotFoundError(text, name=error.name) from None

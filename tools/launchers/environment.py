"""The Python of all launchers: what this one has, Ray, and a Horovod that was built with MPI."""

from __future__ import annotations

import pathlib
import shutil

from tools import overlay
from tools.overlay import ROOT


def default() -> pathlib.Path:
    """The folder of the environment, beside the cached wheels."""
    return overlay.default("launchers")


def python(folder: pathlib.Path) -> pathlib.Path:
    """The interpreter of the environment, which is made if it is not there.

    Raises:
        RuntimeError: if the environment cannot be made.
    """
    return overlay.made(folder, "Horovod with MPI (some three minutes, once) and Ray", _install)


def _install(interpreter: pathlib.Path) -> None:
    if shutil.which("mpicxx") is None:
        raise RuntimeError("A Horovod with MPI needs mpicxx: install the packages openmpi-bin and libopenmpi-dev.")
    overlay.run(ROOT / "tools" / "horovod" / "build_wheel.sh", interpreter)
    overlay.run(interpreter, "-m", "pip", "install", "--quiet", "ray")

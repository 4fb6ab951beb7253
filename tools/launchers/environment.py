"""The Python of all launchers: what this one has, Ray, and a Horovod that was built with MPI."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[2]


def default() -> pathlib.Path:
    """The folder of the environment, beside the cached wheels."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = pathlib.Path(os.environ.get("HVD_SPARSE_CACHE") or f"{caches}/hvd_sparse")
    return cache / f"launchers-{sysconfig.get_python_version()}"


def python(folder: pathlib.Path) -> pathlib.Path:
    """The interpreter of the environment, which is made if it is not there.

    Raises:
        RuntimeError: if the environment cannot be made.
    """
    interpreter, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return interpreter
    if shutil.which("mpicxx") is None:
        raise RuntimeError("A Horovod with MPI needs mpicxx: install the packages openmpi-bin and libopenmpi-dev.")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Making {folder}: Horovod with MPI (some three minutes, once) and Ray", flush=True)
    _run(sys.executable, "-m", "venv", str(folder))
    beneath = pathlib.Path(sysconfig.get_path("purelib"))
    packages = folder / beneath.relative_to(sys.prefix)
    (packages / "beneath.pth").write_text(f"{beneath}\n")  # after its own packages, which therefore win
    _run(str(ROOT / "tools" / "horovod" / "build_wheel.sh"), str(interpreter))
    _run(str(interpreter), "-m", "pip", "install", "--quiet", "ray")
    complete.touch()
    return interpreter


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as failed:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {failed.returncode}; its error stands above."
        ) from None

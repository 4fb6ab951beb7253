"""Environments over the packages of this one: what is installed into one comes first there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def default(name: str) -> Path:
    """The folder of the environment with this name, beside the cached wheels."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(os.environ.get("HVD_SPARSE_CACHE") or f"{caches}/hvd_sparse")
    return cache / f"{name}-{sysconfig.get_python_version()}"


def made(folder: Path, about: str, install: Callable[[Path], None]) -> Path:
    """The interpreter of the environment in a folder, which is made if it is not there as a whole.

    Args:
        folder: where it is.
        about: what is printed while it is made.
        install: called with the interpreter, installs what it is for.

    Raises:
        RuntimeError: if it cannot be made.
    """
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Making {folder}: {about}", flush=True)
    run(sys.executable, "-m", "venv", folder)
    (packages(folder) / "beneath.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install(python)
    complete.touch()
    return python


def packages(folder: Path) -> Path:
    """The folder with the packages of an environment."""
    return folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


def run(*command: str | Path) -> None:
    """Runs a command; RuntimeError if it fails."""
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as failed:
        raise RuntimeError(
            f"{' '.join(map(str, command))} ended with status {failed.returncode}; its error stands above."
        ) from None

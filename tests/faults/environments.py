"""Environments that lack a package, without installing anything."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def without(package: str, folder: Path) -> Path:
    """A folder with links to all that is installed, except a package and what stands for this checkout."""
    folder.mkdir()
    for each in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not each.name.startswith((package, "__editable__")):
            (folder / each.name).symlink_to(each)
    return folder


def python(
    arguments: Sequence[str], packages: Path, sources: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with the packages of that folder alone, and with ours from `sources`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment |= {"PYTHONPATH": f"{sources}:{packages}", "CUDA_VISIBLE_DEVICES": "", **variables}
    # Without site: it would add the packages of the interpreter's own environment.
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=packages.parent, env=environment, capture_output=True, text=True)

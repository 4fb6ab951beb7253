"""Which module may import which, as declared in pyproject.toml and checked by import-linter; violations are refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hvd_sparse", "datacache", "lars", "link")
# File -> a line that is added to it, and what import-linter must print about it.
PLANTED = {
    "hvd_sparse/ops.py": ("from hvd_sparse import recipes", "hvd_sparse.ops -> hvd_sparse.recipes"),
    "hvd_sparse/spec.py": (
        "def f():\n    import hvd_sparse.keras.tape",
        "hvd_sparse.spec -> hvd_sparse.keras.tape",
    ),
    "hvd_sparse/recipes/whole.py": (
        "from hvd_sparse.horovod_api import values",
        "hvd_sparse.recipes.whole -> hvd_sparse.horovod_api.values",
    ),
    "hvd_sparse/novelty.py": ("", "hvd_sparse.novelty"),
    "hvd_sparse/servers/__init__.py": ("", ""),
    "hvd_sparse/servers/shards.py": ("from hvd_sparse import keras", "hvd_sparse.servers.shards -> hvd_sparse.keras"),
    "hvd_sparse/indices.py": ("import hvd_sparse", "hvd_sparse.indices -> hvd_sparse "),
    "hvd_sparse/exchange/plan.py": ("from hvd_sparse.exchange import planned", "plan -> .planned"),
    "hvd_sparse/transport/nodes.py": ("def f():\n    import lars", "hvd_sparse.transport.nodes -> lars"),
    "hvd_sparse/keras/tape.py": (
        "def f():\n    from horovod import runner",
        "hvd_sparse.keras.tape -> horovod",
    ),
    "hvd_sparse/transport/stalls.py": ("import keras", "hvd_sparse.transport.stalls -> keras"),
    "datacache/disk.py": ("import tensorflow as tf", "datacache.disk -> tensorflow"),
    "datacache/dataset.py": (
        "from hvd_sparse.transport import topology",
        "datacache.dataset -> hvd_sparse.transport.topology",
    ),
    "datacache/world.py": ("def f():\n    import horovod.tensorflow", "datacache.world -> horovod"),
    "datacache/files.py": ("from datacache import cache", "datacache.files -> datacache.cache"),
    "datacache/waiting.py": ("import zmq", "datacache.waiting -> zmq"),
    "lars/ops.py": ("from lars import lamb", "lars.ops -> lars.lamb"),
    "link/asking.py": ("def f():\n    import tensorflow", "link.asking -> tensorflow"),
    "link/forms.py": ("from link import session", "link.forms -> link.session"),
    "link/sockets.py": ("def f():\n    from datacache import files", "link.sockets -> datacache.files"),
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter prints about the packages in a folder, without line wrapping."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"COLUMNS": "1000", "PATH": ""})


def copy(folder: Path) -> None:
    """Copies the packages' sources and their contracts to a folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def test_imports_run_one_way():
    told = lint(ROOT)
    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", told.stdout)


def test_no_import_is_ignored():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert not [each["name"] for each in contracts if {"ignore_imports", "exhaustive_ignores"} & set(each)]


def test_an_import_that_runs_up_is_refused(tmp_path):
    copy(tmp_path)
    for name, (line, _) in PLANTED.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"\n{line}\n")
    told = lint(tmp_path)
    assert told.returncode != 0
    said = told.stdout + " "
    assert [name for name, (_, complaint) in PLANTED.items() if complaint not in said] == [], told.stdout + told.stderr
    assert "Contracts: 0 kept" in said  # so each contract can be broken

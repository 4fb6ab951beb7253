"""datacache: samples decoded with a module that has changed since are not served, wherever it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

READ = """
import pathlib, sys
import numpy as np
import datacache
from pipeline.decoding import decode

source = datacache.Indexed(lambda index: b"x", 3, "bytes", labels=range(3))
cache = datacache.DataCache(
    source, decode, sys.argv[1], memory_bytes=0, keep_decoded=True, world=datacache.World()
)
print(*sorted({float(value) for samples, _ in cache.batches(2, 0) for value in samples.ravel()}))
"""
WAYS = {
    "a module": "    import helper\n    return np.array([helper.value()])",
    "a function": "    from helper import value\n    return np.array([value()])",
    "under another name": "    import pipeline.inner as other\n    return np.array([other.value()])",
    "with dots": "    from .inner import value\n    return np.array([value()])",
    "a module with dots": "    from . import inner\n    return np.array([inner.value()])",
    "inside": "    def f():\n        import helper\n        return helper.value()\n    return np.array([f()])",
    "of what is imported": "    from pipeline import middle\n    return np.array([middle.value()])",
}
MIDDLE = "def value():\n    from .inner import value\n    return value()\n"


def write(folder, body, number):
    (folder / "pipeline").mkdir(exist_ok=True)
    (folder / "pipeline" / "__init__.py").write_text("")
    (folder / "pipeline" / "decoding.py").write_text(f"import numpy as np\ndef decode(payload):\n{body}\n")
    (folder / "pipeline" / "middle.py").write_text(MIDDLE)
    for path in (folder / "helper.py", folder / "pipeline" / "inner.py"):
        path.write_text(f"def value():\n    return {number}.0\n")
    (folder / "read.py").write_text(READ)


def read(folder):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "read.py", str(folder / "local")]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


@pytest.mark.parametrize("body", WAYS.values(), ids=WAYS)
def test_a_changed_module_is_not_served_from_the_cache(body, tmp_path):
    write(tmp_path, body, 1)
    assert read(tmp_path) == ["1.0"]
    write(tmp_path, body, 2)
    assert read(tmp_path) == ["2.0"]

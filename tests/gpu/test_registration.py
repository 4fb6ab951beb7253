"""Which kernels _ops.so registers for the GPU, by the _cuda.so that lies beside it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.library import ROOT

LIBRARY = ROOT / "hvd_sparse" / "_ops.so"
INTERFACE = int(re.search(r"HVDS_GPU_INTERFACE (\d+)", (ROOT / "ops" / "select_gpu.h").read_text())[1])
FUNCTIONS = ("error", "workspace", "topk", "mstopk", "feedback_topk", "feedback_mstopk")
QUESTION = """
import ctypes, sys
for library in sys.argv[1:-1]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
print(ctypes.CDLL(sys.argv[-1]).hvds_gpu_registered())
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here, and _ops.so needs it"
)


def compile_library(path, interface, functions):
    """A library with these names, of which only the number of the interface works."""
    names = "".join(f'extern "C" void hvds_gpu_{name}() {{}}\n' for name in functions)
    source = path.with_suffix(".cc")
    source.write_text(f'extern "C" int hvds_gpu_interface() {{ return {interface}; }}\n{names}')
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", str(source), "-o", str(path)], check=True)


def ask(folder):
    """Whether a copy of _ops.so in `folder` registers kernels for the GPU, and what it says meanwhile."""
    copy = shutil.copy(LIBRARY, folder)
    framework = Path(importlib.util.find_spec("tensorflow").origin).parent
    libraries = [str(framework / f"libtensorflow_{part}.so.2") for part in ("framework", "cc")]
    command = [sys.executable, "-c", QUESTION, *libraries, str(copy)]
    talkative = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    answer = subprocess.run(command, env=talkative, capture_output=True, text=True, timeout=60, check=True)
    return bool(int(answer.stdout)), answer.stderr


def test_none_without_the_library_and_nothing_is_said(tmp_path):
    registered, said = ask(tmp_path)
    assert not registered
    assert "hvd_sparse" not in said


def test_some_with_a_library_that_fits(tmp_path):
    compile_library(tmp_path / "_cuda.so", INTERFACE, FUNCTIONS)
    registered, said = ask(tmp_path)
    assert registered
    assert "hvd_sparse" not in said


@pytest.mark.parametrize(
    ("interface", "functions"), [(INTERFACE + 1, FUNCTIONS), (INTERFACE, FUNCTIONS[:-1])], ids=["version", "function"]
)
def test_none_with_a_library_of_another_build(tmp_path, interface, functions):
    compile_library(tmp_path / "_cuda.so", interface, functions)
    registered, said = ask(tmp_path)
    assert not registered
    assert "does not belong to this _ops.so" in said and "pip install" in said


def test_none_with_a_library_that_cannot_be_loaded(tmp_path):
    (tmp_path / "_cuda.so").write_text("not a library")
    registered, said = ask(tmp_path)
    assert not registered
    assert "expected to load" in said and "_cuda.so" in said

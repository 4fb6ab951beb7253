"""Which kernels each _ops.so registers for the GPU, depending on the _cuda.so beside it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.gpu.library import ROOT

LIMIT = 300  # seconds until it counts as hanging; TensorFlow's libraries may first have to be read from disk
QUESTION = """
import ctypes, sys
for library in sys.argv[1:-2]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
print(getattr(ctypes.CDLL(sys.argv[-2]), sys.argv[-1])())
"""


class Library(NamedTuple):
    """A family of a package's operations, the header with its interface to _cuda.so, and that interface's functions."""

    package: str
    header: str
    prefix: str
    functions: tuple[str, ...]

    @property
    def interface(self):
        return int(re.search(r"_GPU_INTERFACE (\d+)", (ROOT / "ops" / self.header).read_text())[1])


SELECTION = ("error", "workspace", "topk", "mstopk", "feedback_topk", "feedback_mstopk")
LIBRARIES = [
    Library("hvd_sparse", "select/select_gpu.h", "hvds", tuple(f"hvds_gpu_{name}" for name in SELECTION)),
    Library(
        "hvd_sparse",
        "momentum/momentum_gpu.h",
        "hvds_momentum",
        tuple(f"hvds_momentum_gpu_{name}" for name in ("error", "advance", "clear")),
    ),
    Library(
        "hvd_sparse",
        "pipeline/rows_gpu.h",
        "hvds_rows",
        tuple(f"hvds_rows_gpu_{name}" for name in ("error", "largest", "place", "gather", "mask")),
    ),
    Library(
        "lars",
        "lars/passes_gpu.h",
        "lars",
        (
            "lars_gpu_error",
            "lars_gpu_partials",
            "lars_gpu_update",
            "lamb_gpu_partials",
            "lamb_gpu_update",
            "lars_gpu_layer_sums",
        ),
    ),
]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here, and _ops.so needs it"
)


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.prefix)
def library(request):
    return request.param


def compile_library(path, library, interface, functions):
    """Compiles a library with these names in which only the interface number works; other interfaces are complete."""
    others = [each for each in LIBRARIES if each.package == library.package and each != library]
    given = [library._replace(functions=functions), *others]
    numbers = [interface, *(each.interface for each in others)]
    names = "".join(f'extern "C" void {name}() {{}}\n' for each in given for name in each.functions)
    answers = "".join(
        f'extern "C" int {each.prefix}_gpu_interface() {{ return {number}; }}\n'
        for each, number in zip(given, numbers, strict=True)
    )
    source = path.with_suffix(".cc")
    source.write_text(names + answers)
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", str(source), "-o", str(path)], check=True)


def ask(library, folder):
    """Whether a copy of _ops.so in `folder` registers kernels for the GPU, and its output."""
    copy = shutil.copy(ROOT / library.package / "_ops.so", folder)
    framework = Path(importlib.util.find_spec("tensorflow").origin).parent
    libraries = [str(framework / f"libtensorflow_{part}.so.2") for part in ("framework", "cc")]
    command = [sys.executable, "-c", QUESTION, *libraries, str(copy), f"{library.prefix}_gpu_registered"]
    talkative = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    answer = subprocess.run(command, env=talkative, capture_output=True, text=True, timeout=LIMIT, check=True)
    return bool(int(answer.stdout)), answer.stderr


def test_none_without_the_library_and_nothing_is_said(library, tmp_path):
    registered, said = ask(library, tmp_path)
    assert not registered
    assert "on the CPU" not in said


def test_some_with_a_library_that_fits(library, tmp_path):
    compile_library(tmp_path / "_cuda.so", library, library.interface, library.functions)
    registered, said = ask(library, tmp_path)
    assert registered
    assert "on the CPU" not in said


@pytest.mark.parametrize(("newer", "missing"), [(1, 0), (0, 1)], ids=["version", "function"])
def test_none_with_a_library_of_another_build(library, newer, missing, tmp_path):
    functions = library.functions[: len(library.functions) - missing]
    compile_library(tmp_path / "_cuda.so", library, library.interface + newer, functions)
    registered, said = ask(library, tmp_path)
    assert not registered
    assert "does not belong to this _ops.so" in said and "pip install" in said


def test_none_with_a_library_that_cannot_be_loaded(library, tmp_path):
    (tmp_path / "_cuda.so").write_text("not a library")
    registered, said = ask(library, tmp_path)
    assert not registered
    assert "expected to load" in said and "_cuda.so" in said

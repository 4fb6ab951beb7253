"""An environment with TensorFlow for GPUs over the packages of this one, and the driver without a GPU."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tools import overlay
from tools.overlay import ROOT

SOURCES = Path(__file__).with_name("driver")
PACKAGES = ("hvd_sparse", "datacache", "lars", "link", "tools")
# What TensorFlow looks functions up in when it starts, by its name at run time. That of the runtime is NVIDIA's own:
# TensorFlow is linked with it.
LIBRARIES = (
    *("libcuda.so.1", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11"),
    *("libcusparse.so.12", "libcudnn.so.9", "libcupti.so.12", "libnvidia-ml.so.1", "libcudart.so.12", "libnccl.so.2"),
)
_PREFIXES = rb"cu|cuda|__cuda|cublas|cublasLt|cudnn|cufft|cusolver|cusparse|cupti|nccl|nvml"
_NAME = re.compile(rb"(?<=\0)(?:%b)[A-Z]\w*(?=\0)" % _PREFIXES)
_UNSUPPORTED = re.compile(r"(__)?cu(da)?[A-Z]")  # functions that fail unless the sources have them; others do nothing


class Environment(NamedTuple):
    """Where the trials run.

    Attributes:
        python: an interpreter with TensorFlow for GPUs.
        libraries: the folder with what stands for NVIDIA's libraries.
        sources: a copy of this checkout without its own kernels, which would really run.
    """

    python: Path
    libraries: Path
    sources: Path

    def variables(self) -> dict[str, str]:
        """The variables of a process that is to see the driver."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "CUDA_"))}
        return {
            **kept,
            "LD_LIBRARY_PATH": str(self.libraries),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.sources),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_GPU_ALLOCATOR": "cuda_malloc_async",  # each tensor is a block of the driver's, whose copies are seen
        }


def made(folder: Path) -> Environment:
    """The environment in a folder; it is made if it is not there.

    Raises:
        RuntimeError: if it cannot be made.
    """
    python = overlay.made(folder, "TensorFlow for GPUs is a download of 600 MB", _install)
    libraries, sources = folder / "driver", folder / "sources"
    _build(overlay.packages(folder) / "tensorflow", libraries)
    shutil.rmtree(sources, ignore_errors=True)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("_cuda.*", "__pycache__"))
    shutil.copy(ROOT / "quiet_tensorflow.py", sources)
    return Environment(python, libraries, sources)


def default() -> Path:
    """The folder of the environment, beside the cached wheels."""
    return overlay.default("gpu-trials")


def add_nccl(environment: Environment) -> str | None:
    """Installs a Horovod with NCCL into the environment, by the script that users have for it.

    Returns:
        None, or what the script says is missing.
    """
    script = ROOT / "tools" / "horovod" / "build_wheel.sh"
    variables = {**os.environ, "HOROVOD_GPU_OPERATIONS": "NCCL"}
    done = subprocess.run([script, environment.python], env=variables, stderr=subprocess.PIPE, text=True)
    return done.stderr if done.returncode else None


def _install(python: Path) -> None:
    wanted = ("tensorflow==2.21.0", "nvidia-cuda-runtime-cu12", "nvidia-nccl-cu12")
    overlay.run(python, "-m", "pip", "install", "--quiet", "--no-deps", *wanted)


def _build(tensorflow: Path, folder: Path) -> None:
    """Compiles the driver; what TensorFlow looks up and the sources do not have is a stub."""
    folder.mkdir(exist_ok=True)
    stubs = folder / "stubs.c"
    if not stubs.exists():
        stubs.write_text(_stubs(tensorflow))
    headers = tensorflow / "include" / "third_party" / "gpus" / "cuda" / "include"
    library = folder / "libtrial.so"
    overlay.run("gcc", "-w", "-O1", "-fPIC", "-c", stubs, "-o", folder / "stubs.o")
    sources = sorted(SOURCES.glob("*.cc"))
    overlay.run(
        *("g++", "-std=c++17", "-O1", "-Wall", "-fPIC", "-shared", "-pthread", f"-I{headers}"),
        *(*sources, folder / "stubs.o", "-o", library, "-ldl"),
    )
    for name in LIBRARIES:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)


def _stubs(tensorflow: Path) -> str:
    """C functions, which give way to those of the sources, for all that TensorFlow's libraries look up by name."""
    names: set[str] = set()
    for library in tensorflow.glob("libtensorflow_*.so.2"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            names.update(name.decode() for name in _NAME.findall(content))
    lines = ["int trial_stub(const char*, int);"]
    for name in sorted(names):
        fails = int(_UNSUPPORTED.match(name) is not None)
        lines.append(f'__attribute__((weak)) int {name}() {{ return trial_stub("{name}", {fails}); }}')
    return "\n".join([*lines, ""])

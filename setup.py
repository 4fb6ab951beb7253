"""Builds the native libraries in ops/ with the flags of the TensorFlow that is there; the rest is in pyproject.toml.

ops/ has a folder for each subject, and ops/common/ under them. X_op.cc registers operations with TensorFlow and is
compiled with its flags; every other X.cc is a kernel and is compiled without TensorFlow in sight, so that it stays
usable without it. Both go into hvd_sparse/_ops.so. Where nvcc is found, and HVD_SPARSE_WITH_CUDA is not 0, X_gpu.cu
go into hvd_sparse/_cuda.so, a plain C library. A package that is to be usable alone has a `Library` of its own: the
kernels of ops/datacache/ go into datacache/_native.so, which is compiled and loaded without TensorFlow, and its
operations, with those kernels that they call, into datacache/_ops.so; the same holds for ops/lars/ and lars/.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
OBJECTS = ROOT / "build" / "native"
CXX = os.environ.get("CXX", "c++")
NVCC = os.environ.get("NVCC", "nvcc")
OLDEST_TENSORFLOW = (2, 21)  # the sources for GPUs use names that 2.20 does not have
WITH_CUDA = shutil.which(NVCC) is not None and os.environ.get("HVD_SPARSE_WITH_CUDA", "1") != "0"
# No contraction to fused multiply-adds and no -march: results must not depend on the machine that compiles.
CXX_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fno-semantic-interposition", "-Wall", "-Wextra"]
CXX_FLAGS += ["-Wno-maybe-uninitialized"]  # GCC before 13 sees it in every AVX-512 intrinsic of its own headers
NVCC_FLAGS = ["-std=c++17", "-O3", "--fmad=false", "-Xcompiler=-fPIC", "-Xcompiler=-ffp-contract=off"]
GPU_GENERATIONS = {"Volta or Turing": (70, 75), "Ampere or Ada": (80,), "Hopper": (90,)}


class Library(NamedTuple):
    """A shared library of one package: where it goes and what it is made of."""

    module: str
    sources: tuple[Path, ...]


class TensorFlow(NamedTuple):
    """What TensorFlow says about itself."""

    version: str
    include: str
    compile_flags: list[str]
    link_flags: list[str]


def is_registration(source):
    """Whether a source registers operations with TensorFlow."""
    return source.stem.endswith("_op")


def sources_of(*folders, pattern="*.cc"):
    """The sources in folders of ops/."""
    return tuple(path for folder in folders for path in sorted(ROOT.glob(f"ops/{folder}/{pattern}")))


def kernels_of(*folders):
    return tuple(path for path in sources_of(*folders) if not is_registration(path))


def cuda_of(*folders):
    return sources_of(*folders, pattern="*_gpu.cu") if WITH_CUDA else ()


EXCHANGE = ("blocks", "common", "datagrams", "exchange", "momentum", "pipeline", "quantize", "select", "servers")
EXCHANGE += ("shared_memory", "streams")
LIBRARIES = (
    Library("hvd_sparse._ops", sources_of(*EXCHANGE)),
    Library("hvd_sparse._cuda", cuda_of(*EXCHANGE)),
    Library("datacache._native", kernels_of("datacache")),
    Library("datacache._ops", sources_of("datacache")),
    Library("lars._cuda", cuda_of("lars")),
    Library("lars._native", kernels_of("common", "lars")),
    Library("lars._ops", sources_of("common", "lars")),
)


class Build(build):
    """`build` that begins with an empty folder: a wheel would contain modules that were deleted since the last one."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class NamedWheel(bdist_wheel):
    """A wheel for every Python 3 that the metadata allow: TensorFlow and ctypes load the libraries, not Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class BuildLibraries(build_ext):
    """`build_ext` that compiles by object file, in parallel, and renames each finished library into its place."""

    def run(self):
        for extension in self.extensions:
            self.build_extension(extension)

    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        sources = [ROOT / source for source in extension.sources]
        if sources[0].suffix == ".cu":
            build_cuda(sources, target)
        elif any(is_registration(source) for source in sources):
            build_tensorflow(sources, target)
        else:
            build_plain(sources, target)

    def get_ext_filename(self, fullname):
        return fullname.replace(".", os.sep) + ".so"

    def get_outputs(self):
        libraries = [self.get_ext_fullpath(extension.name) for extension in self.extensions]
        return [path for library in libraries for path in (library, *notes_of(library))]

    def get_output_mapping(self):
        return {}


def build_tensorflow(sources, target):
    tensorflow = find_tensorflow()
    refuse_old(tensorflow.version)
    register = [*CXX_FLAGS]
    for include in ("", "external/highwayhash", "external/farmhash_archive/src"):
        register += ["-isystem", str(Path(tensorflow.include, include))]
    register += [flag for flag in tensorflow.compile_flags if not flag.startswith(("-I", "--std"))]
    commands = {
        source: [CXX, *(register if is_registration(source) else CXX_FLAGS), "-pthread", "-MMD"] for source in sources
    }
    objects = compile_all(commands)
    link = [CXX, "-shared", "-pthread", "-Wl,--no-undefined", *map(str, objects), *tensorflow.link_flags]
    if link_library(link, objects, target):
        write_renamed(notes_of(target)[0], json.dumps({"tensorflow": tensorflow.version}) + "\n")


def build_plain(sources, target):
    objects = compile_all(dict.fromkeys(sources, [CXX, *CXX_FLAGS, "-pthread", "-MMD"]))
    link_library([CXX, "-shared", "-pthread", "-Wl,--no-undefined", *map(str, objects)], objects, target)


def build_cuda(sources, target):
    command = [NVCC, *NVCC_FLAGS, *gpu_targets(), "-MMD"]
    objects = compile_all(dict.fromkeys(sources, command))
    link_library([NVCC, "-shared", *gpu_targets(), *map(str, objects)], objects, target)


def notes_of(library):
    """The file beside a library in which ops.py reads what it was built for, also when it cannot be loaded."""
    path = Path(library)
    return [path.with_suffix(".json")] if path.stem == "_ops" else []


@functools.cache
def find_tensorflow():
    """Asks the TensorFlow of the environment that is installed into, which pip's build isolation hides from here."""
    cache = OBJECTS / "tensorflow.json"
    if cache.exists():
        known = json.loads(cache.read_text())
        if known["stamp"] == stamp_of(known["answer"]["include"]):
            return TensorFlow(**known["answer"])
    question = (
        "import json, tensorflow as tf; c = tf.sysconfig; print(json.dumps(dict(version=tf.__version__, "
        "include=c.get_include(), compile_flags=c.get_compile_flags(), link_flags=c.get_link_flags())))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    found = subprocess.run([sys.executable, "-c", question], env=environment, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(
            f"hvd_sparse is compiled against TensorFlow, which {sys.executable} cannot import "
            f"({found.stderr.strip()[-300:]}). Install it first (pip install tensorflow==2.21.0, or "
            "tensorflow-cpu==2.21.0), then try again."
        )
    answer = json.loads(found.stdout.splitlines()[-1])
    write_renamed(cache, json.dumps({"stamp": stamp_of(answer["include"]), "answer": answer}))
    return TensorFlow(**answer)


def refuse_old(version):
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TENSORFLOW:
        oldest = ".".join(map(str, OLDEST_TENSORFLOW))
        sys.exit(
            f"hvd_sparse works with TensorFlow {oldest}, and {sys.executable} has {version}: install "
            f"tensorflow=={oldest}.0, or tensorflow-cpu=={oldest}.0, then try again."
        )


def stamp_of(include):
    """Changes when another Python asks or another TensorFlow is installed; None when it is gone."""
    library = Path(include).parent / "libtensorflow_framework.so.2"
    return [sys.executable, library.stat().st_mtime_ns, library.stat().st_size] if library.exists() else None


@functools.cache
def gpu_targets():
    """Code for the oldest member of each generation that this nvcc knows, and PTX of the newest for what is to come."""
    listed = subprocess.run([NVCC, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    known = {int(name.removeprefix("compute_")) for name in listed if name.removeprefix("compute_").isdigit()}
    members = [[number for number in generation if number in known] for generation in GPU_GENERATIONS.values()]
    chosen = [generation[0] for generation in members if generation]
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in chosen]
    return [*codes, f"-gencode=arch=compute_{chosen[-1]},code=compute_{chosen[-1]}"]


def compile_all(commands):
    """Compiles what is out of date, as many files at once as there are cores; returns the object files."""
    objects = {source: object_of(source, command) for source, command in commands.items()}
    stale = [source for source, target in objects.items() if is_stale(target)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: compile_one(source, commands[source], objects[source]), stale))
    return list(objects.values())


def object_of(source, command):
    """The object file, in a folder named after all that decides its content but the sources."""
    key = hashlib.sha256("\0".join([compiler_version(command[0]), *command]).encode()).hexdigest()[:12]
    return OBJECTS / key / source.relative_to(ROOT / "ops").with_suffix(".o")


@functools.cache
def compiler_version(compiler):
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"hvd_sparse needs a C++17 compiler, and {compiler!r} does not run ({error}): install g++ or set CXX.")


def is_stale(target):
    """Whether an object file is missing or older than a file that it was made from."""
    dependencies = target.with_suffix(".d")
    if not target.exists() or not dependencies.exists():
        return True
    names = dependencies.read_text().replace("\\\n", " ").partition(": ")[2].split()
    made = target.stat().st_mtime_ns
    return any(not (ROOT / name).exists() or (ROOT / name).stat().st_mtime_ns > made for name in names)


def compile_one(source, command, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    name = str(source.relative_to(ROOT))  # so that the list of dependencies holds in a copy of the checkout too
    print(f"compiling {name}", flush=True)
    started = time.time_ns()
    produce([*command, "-MF", str(target.with_suffix(".d")), "-c", name], target)
    os.utime(target, ns=(started, started))  # a source that was changed meanwhile is newer


def link_library(command, objects, target):
    """Links where an object is newer or the list of objects is another; returns whether it did."""
    recipe = OBJECTS / f"{target.stem}-{hashlib.sha256(str(target).encode()).hexdigest()[:12]}.link"
    wanted = "\n".join(command)
    if target.exists() and recipe.exists() and recipe.read_text() == wanted:
        if all(path.stat().st_mtime_ns < target.stat().st_mtime_ns for path in objects):
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"linking {os.path.relpath(target, ROOT)}", flush=True)
    produce(command, target)
    write_renamed(recipe, wanted)
    return True


def produce(command, target):
    """Runs a compiler; what it makes appears under its name when it is whole."""
    part = target.with_name(f".{os.getpid()}.{target.name}")
    done = subprocess.run([*command, "-o", str(part)], cwd=ROOT, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        way_out = "; HVD_SPARSE_WITH_CUDA=0 leaves out what nvcc compiles" if command[0] == NVCC else ""
        raise SystemExit(f"This did not compile: {' '.join(command)}{way_out}.")
    part.replace(target)


def write_renamed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.{path.name}")
    part.write_text(text)
    part.replace(path)


setup(
    cmdclass={"bdist_wheel": NamedWheel, "build": Build, "build_ext": BuildLibraries},
    ext_modules=[
        Extension(library.module, [str(source.relative_to(ROOT)) for source in library.sources])
        for library in LIBRARIES
        if library.sources
    ],
)

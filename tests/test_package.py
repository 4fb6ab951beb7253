"""The wheel: built from the sources, installed into an otherwise empty folder and used from there."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "quiet_tensorflow.py",
    "datacache",
    "hvd_sparse",
    "lars",
    "link",
    "ops",
    "tools/horovod",
)
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

USE = """
import pathlib, sys
import datacache.native
assert datacache.native.crc32c(b"123456789") == 0xE3069283 and "tensorflow" not in sys.modules
import hvd_sparse
from hvd_sparse import ops
values, indices = ops.topk([1.0, -3.0, 2.0], 2)
assert values.numpy().tolist() == [-3.0, 2.0], values
assert indices.numpy().tolist() == [1, 2], indices
print(pathlib.Path(hvd_sparse.__file__).parent)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built in a copy of the sources; files that the checkout has already compiled are reused."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = ROOT / name
        without = shutil.ignore_patterns("__pycache__", "_ops.*", "_cuda.so", "_native.so")
        shutil.copytree(source, copy / name, ignore=without) if source.is_dir() else shutil.copy2(source, copy / name)
    if (ROOT / "build" / "native").exists():
        shutil.copytree(ROOT / "build" / "native", copy / "build" / "native")
    use(copy)
    wheels = copy / "wheels"
    run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), "."], copy)
    (built,) = wheels.iterdir()
    return built


def use(checkout):
    """Leaves what a used checkout has: modules of an earlier build, since deleted, and tests."""
    platform = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for folder in ("lib", platform):
        (checkout / "build" / folder / "hvd_sparse").mkdir(parents=True)
        (checkout / "build" / folder / "hvd_sparse" / "deleted_since.py").touch()
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_stray.py").touch()


def run(command, folder, **environment):
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_for_every_python_and_named_after_its_platform(wheel):
    assert wheel.name.startswith("hvd_sparse-0.1.0-py3-none-linux_")
    metadata = zipfile.ZipFile(wheel).read("hvd_sparse-0.1.0.dist-info/METADATA").decode()
    assert "Requires-Python: <3.14,>=3.11\n" in metadata


def test_the_wheel_carries_package_and_operations_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    packages = [ROOT / name for name in ("hvd_sparse", "datacache", "lars", "link")]
    modules = {str(path.relative_to(ROOT)) for package in packages for path in package.rglob("*.py")}
    native = {"hvd_sparse/_ops.so", "hvd_sparse/_ops.json", "datacache/_native.so", "datacache/_ops.so"}
    native |= {"datacache/_ops.json", "lars/_native.so", "lars/_ops.so", "lars/_ops.json"}
    beside = {"quiet_tensorflow.py", *(f"{package.name}/py.typed" for package in packages)}
    carried = {name for name in names if ".dist-info/" not in name}
    assert carried - {"hvd_sparse/_cuda.so", "lars/_cuda.so"} == modules | native | beside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_source_archive_has_what_builds_and_no_tests(wheel):
    sources = wheel.parents[1]
    run([sys.executable, "setup.py", "--quiet", "sdist"], sources)
    (archive,) = (sources / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"setup.py", "ops/common/op_support.h", "tools/horovod/build_wheel.sh"} <= names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".so")]


def test_the_installed_wheel_works_away_from_the_checkout(wheel, tmp_path):
    target = tmp_path / "installed"
    run([*PIP, "install", "--no-deps", "--target", str(target), str(wheel)], tmp_path)
    printed = run([sys.executable, "-c", USE], tmp_path, PYTHONPATH=str(target))
    assert Path(printed.strip().splitlines()[-1]) == target / "hvd_sparse"


@pytest.fixture
def stray(tmp_path):
    """A copy of ops.py in its own folder, without the compiled library beside it."""
    spec = importlib.util.spec_from_file_location("stray_ops", shutil.copy2(ROOT / "hvd_sparse" / "ops.py", tmp_path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_library_that_is_not_compiled_is_an_error_in_words(stray, tmp_path):
    with pytest.raises(ImportError, match="are not compiled .*make build") as raised:
        stray.sum_parts([[1.0]])
    assert str(tmp_path / "_ops.so") in str(raised.value)


def test_a_library_for_another_tensorflow_is_an_error_in_words(stray, tmp_path):
    (tmp_path / "_ops.json").write_text('{"tensorflow": "1.15.0"}')
    (tmp_path / "_ops.so").write_text("of another time")
    with pytest.raises(ImportError, match="for TensorFlow 1.15.0, this is TensorFlow .*compile them again"):
        stray.sum_parts([[1.0]])

"""Bugs in what is done first after an installation: examples started by their path, folders that are not compiled."""

import os
import shutil
import subprocess
import sys

from tests.parallel.launch import QUIET, ROOT

EPOCH = ("--epochs", "1")
MISSING = "import sys; sys.modules['sklearn'] = None; from examples import digits; digits.load(0)"


def python(*arguments, **variables):
    """Runs Python in the repository's folder; returns the exit status and all output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment = {**environment, **QUIET, **variables}
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def test_an_example_is_started_by_its_path():
    status, output = python("examples/keras_digits.py", *EPOCH, PYTHONPATH=str(ROOT))  # as if it were installed
    trained = status == 0 and "test accuracy" in output
    assert trained, repr(output)


def test_an_example_names_the_package_that_it_lacks():
    status, output = python("-c", MISSING)
    told = "This example uses scikit-learn" in output and "pip install '.[examples]'" in output
    assert status == 1 and told, repr(output)


def test_an_uncompiled_folder_says_so(tmp_path):
    shutil.copytree(ROOT / "hvd_sparse", tmp_path / "hvd_sparse", ignore=shutil.ignore_patterns("*.so", "_ops.json"))
    status, output = python("-P", "-c", "import hvd_sparse", PYTHONPATH=f"{tmp_path}:{ROOT}")
    told = f"{tmp_path / 'hvd_sparse' / '_ops.so'} is missing" in output and "make build" in output
    assert status == 1 and told, repr(output)


def test_control_an_example_is_started_as_a_module():
    status, output = python("-m", "examples.keras_digits", *EPOCH)
    assert status == 0 and "test accuracy" in output, repr(output)

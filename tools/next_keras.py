"""What another version of Keras changes of what we use though it is private, and whether the tests of that pass there.

    python -m tools.next_keras ENV/bin/python            compares the private members that `KERAS_INSIDES` use
    python -m tools.next_keras ENV/bin/python --tests    and compiles a copy of the sources there and runs their tests

ENV has TensorFlow, Keras and Horovod, and what requirements-dev.txt names; `make next-keras` makes one with the newest.
Status 1 if a member is gone or takes other arguments, or a test fails; a body that changed is listed and wants reading.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import keras

from tests import test_house_rules as rules
from tools.mutants import copies

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("hvd_sparse", "lars")
TESTS = ("tests/optimizers", "tests/keras", "tests/lars", "tests/servers", "tests/averaging", "tests/pipeline")


def members() -> dict[str, list[str]]:
    """The private members of this version: arguments and digest of the source, by class and name."""
    found = {}
    for cls in rules.CLASSES_OF_KERAS:
        for name, value in vars(cls).items():
            if rules.is_private(name) and inspect.isfunction(value):
                source = hashlib.sha256(inspect.getsource(value).encode()).hexdigest()
                found[f"{cls.__name__}.{name}"] = [str(inspect.signature(value)), source]
    attributes = filter(rules.is_private, vars(keras.optimizers.SGD()))
    return found | {f"Optimizer.{name}": ["", ""] for name in attributes}


def used() -> set[str]:
    """The private names of Keras that the modules use or override which may know them."""
    methods, attributes = rules.private_to_keras()
    modules = {name: tree for each in PACKAGES for name, tree in rules.package(each).items()}
    return {
        name
        for module, tree in modules.items()
        if module in rules.KERAS_INSIDES
        for name in _names(tree)
        if name in methods | attributes
    }


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        if isinstance(node, ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # as for getattr, and as keys of vars


def changes(here: dict[str, list[str]], there: dict[str, list[str]], names: set[str]) -> dict[str, str]:
    """What became of each member with one of the names, if anything did."""
    told = {}
    for member, (arguments, source) in sorted(here.items()):
        if member.partition(".")[2] not in names or there.get(member) == [arguments, source]:
            continue
        if member not in there:
            told[member] = "gone"
        elif there[member][0] != arguments:
            told[member] = f"takes {there[member][0]}, took {arguments}"
        else:
            told[member] = "another body"
    return told


def of_another(python: pathlib.Path) -> tuple[str, dict[str, list[str]]]:
    """Version and members of the Keras of another interpreter."""
    program = (
        "import json, keras; from tools import next_keras as n; print(json.dumps([keras.__version__, n.members()]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run([python, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{python} cannot import Keras, or pytest is missing there:\n{ended.stderr[-2000:]}")
    version, found = json.loads(ended.stdout.splitlines()[-1])
    return version, found


def tests_pass(python: pathlib.Path) -> bool:
    """Compiles a copy of the sources for the other TensorFlow, and runs the tests there."""
    build, test = ["setup.py", "--quiet", "build_ext", "--inplace"], ["-m", "pytest", "-m", "not thorough", *TESTS]
    with copies.made(ROOT) as copy:
        runs = (subprocess.run([python, *each], cwd=copy.folder, env=copy.environment) for each in (build, test))
        return all(run.returncode == 0 for run in runs)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=pathlib.Path, help="the interpreter of the other environment")
    parser.add_argument("--tests", action="store_true", help="compile a copy of the sources there, and run its tests")
    options = parser.parse_args()
    version, there = of_another(options.python.absolute())
    names = used()
    told = changes(members(), there, names)
    print(f"Keras {keras.__version__} and {version}: {len(names)} private names are used, {len(told)} members differ.")
    for member, what in told.items():
        print(f"  {member}: {what}")
    serious = any(what != "another body" for what in told.values())
    sys.exit(serious or (options.tests and not tests_pass(options.python.absolute())))


if __name__ == "__main__":
    main()

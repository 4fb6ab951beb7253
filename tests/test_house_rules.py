"""Coding rules, checked on the sources; each rule is also shown to reject a small example."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hvd_sparse", "datacache", "lars", "link")
# The modules that may use what is private to Keras's optimizers and models.
KERAS_INSIDES = ("keras.hooks", "optimizers.attached", "optimizers.copies", "optimizers.slots", "layerwise")
CLASSES_OF_KERAS = {*keras.optimizers.Optimizer.__mro__, *keras.Model.__mro__}
NOT_OURS_TO_READ = ("tensorflow.python", "tf.python", "tf.__internal__", "tf._api", "keras.src")
UNSAFE_TO_LOAD = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
OF_PYTHON = {"_replace", "_asdict", "_fields", "_make", "_current_frames"}  # underscored but public in Python
# Users pickle models, and these tests do so with their own.
PICKLED = {f"tests/{name} imports pickle" for name in ("faults/actors_copies.py", "keras/test_copies.py")}
LONGEST = 400
LONGER: dict[str, str] = {}  # file -> why it is not split
FOLDERS = ("hvd_sparse", "datacache", "lars", "link", "ops", "tests", "examples", "benchmarks", "tools", "docs")
TEXTS = {".py", ".cc", ".h", ".cu", ".cuh", ".inc", ".sh", ".md"}

Sources = dict[str, ast.Module]


# ---- reading the sources ----


def parse(sources: dict[str, str]) -> Sources:
    """Parses modules given as {name ("aggregators.base"): text}."""
    return {name: ast.parse(text) for name, text in sources.items()}


def package(name: str) -> Sources:
    """The modules of a package by name; the package itself is ""."""
    folder = ROOT / name
    texts = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        texts[".".join(parts).removesuffix("__init__").rstrip(".")] = path.read_text()
    return parse(texts)


def files() -> Iterator[Path]:
    """The text files of the repository."""
    for path in [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]:
        if path.is_file() and path.suffix in TEXTS:
            yield path


def imports(tree: ast.Module) -> Iterator[str]:
    """Everything that is imported, as dotted names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text; if the chain does not begin with a name, its beginning is left out."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# ---- the rules: each returns its violations ----


def undocumented(modules: Sources) -> list[str]:
    """Public modules, classes, functions and methods without a docstring; overriding methods need none."""
    classes = {node.name: node for tree in modules.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    broken = []
    for name, tree in modules.items():
        if not ast.get_docstring(tree):
            broken.append(f"{name or 'the package'} itself")
        for node in _public(tree.body):
            if not ast.get_docstring(node):
                broken.append(f"{name}.{node.name}")
            for method in _public(node.body) if isinstance(node, ast.ClassDef) else ():
                if not ast.get_docstring(method) and not _overrides(method.name, node, classes):
                    broken.append(f"{name}.{node.name}.{method.name}")
    return broken


def _public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    return (node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"))


def _overrides(method: str, child: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    for base in child.bases:
        parent = classes.get(dotted(base).rpartition(".")[2])
        if parent is None and dotted(base) not in ("NamedTuple", "abc.ABC", "tf.Module", "object"):
            return True  # base class from Keras, whose documentation is inherited
        if parent is None:
            continue
        documented = {each.name for each in _public(parent.body) if ast.get_docstring(each)} | _documented_names(parent)
        if method in documented or _overrides(method, parent, classes):
            return True
    return False


def _documented_names(parent: ast.ClassDef) -> set[str]:
    """Attributes of a class that are mentioned in its docstring."""
    attributes = {dotted(target) for node in parent.body for target in _targets(node)}
    return attributes & set(re.findall(r"\w+", ast.get_docstring(parent) or ""))


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    return node.targets if isinstance(node, ast.Assign) else []


def private_interfaces(modules: Sources) -> list[str]:
    """Internals of TensorFlow and Keras that are used, by their path."""
    broken = []
    for name, tree in modules.items():
        used = {*imports(tree), *(dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))}
        found = (path for path in sorted(used) if any(f"{path}.".startswith(f"{bad}.") for bad in NOT_OURS_TO_READ))
        broken += [f"{name} uses {path}" for path in found]
    return broken


def private_names_of_others(modules: Sources) -> list[str]:
    """Underscored attributes used but not defined in the package: they are private to Keras or TensorFlow."""
    ours = {defined for tree in modules.values() for defined in _defined(tree)} | OF_PYTHON
    return [
        f"{name} line {line} uses {attribute}"
        for name, tree in modules.items()
        if name not in KERAS_INSIDES
        for attribute, line in _private_uses(tree)
        if attribute not in ours
    ]


def private_members_of_keras(modules: Sources) -> list[str]:
    """Private members of Keras's optimizers and models that are used or overridden, though we may have the name too.

    A module's own attributes of `self` may have the name of an attribute that Keras's objects have.
    """
    methods, attributes = private_to_keras()
    broken = []
    for name, tree in modules.items():
        nodes = [] if name in KERAS_INSIDES else list(ast.walk(tree))
        own = {node.attr for node in nodes if _is_of_self(node) and isinstance(node.ctx, ast.Store)}
        broken += [
            f"{name} line {node.lineno} overrides {node.name}"
            for node in nodes
            if isinstance(node, ast.FunctionDef) and node.name in methods
        ]
        broken += [
            f"{name} line {node.lineno} uses {node.attr}"
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr in methods | attributes
            if not (_is_of_self(node) and node.attr in own)
        ]
    return broken


@functools.cache
def private_to_keras() -> tuple[frozenset[str], frozenset[str]]:
    """The members of the classes, and the attributes of an optimizer."""
    methods = {name for cls in CLASSES_OF_KERAS for name in vars(cls) if is_private(name)}
    attributes = set(filter(is_private, vars(keras.optimizers.SGD()))) - {"_lock"}  # what everybody calls a lock
    return frozenset(methods), frozenset(attributes)


def _is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _private_uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_private(node.attr):
            yield node.attr, node.lineno
        if isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr", "setattr", "delattr"):
            named = node.args[1]
            if isinstance(named, ast.Constant) and is_private(str(named.value)):
                yield str(named.value), node.lineno


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def changed_classes(modules: Sources) -> list[str]:
    """Objects whose class is changed, but for optimizers to which something is attached."""
    return [
        f"{name} line {node.lineno} changes a class"
        for name, tree in modules.items()
        if name != "optimizers.attached"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Store)
    ]


def unsafe_loading(modules: Sources) -> list[str]:
    broken = []
    for name, tree in modules.items():
        broken += [f"{name} imports {each}" for each in imports(tree) if each.partition(".")[0] in UNSAFE_TO_LOAD]
        broken += [
            f"{name} line {node.value.lineno} sets allow_pickle"
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", True)
        ]
    return broken


def framework_headers(sources: dict[str, str]) -> list[str]:
    """TensorFlow headers, and those of its dependencies, that kernels include; kernels are plain C++."""
    pattern = re.compile(r'^\s*#\s*include\s*[<"]((?:tensorflow|tsl|xla|absl|Eigen|unsupported)/[^>"]*)', re.MULTILINE)
    return [f"{name} includes {header}" for name, text in sources.items() for header in pattern.findall(text)]


def long_files(lengths: dict[str, int]) -> list[str]:
    broken = [
        f"{name} has {length} lines, more than {LONGEST}: make it a folder of the same name, or several files"
        for name, length in lengths.items()
        if length > LONGEST and name not in LONGER
    ]
    return broken + [f"{name} is short again: take it out of LONGER" for name in LONGER if lengths[name] <= LONGEST]


# ---- the rules are kept ----

RULES_OF_PACKAGES = [
    undocumented,
    private_interfaces,
    private_names_of_others,
    private_members_of_keras,
    changed_classes,
    unsafe_loading,
]


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("rule", RULES_OF_PACKAGES)
def test_the_package_keeps_the_rule(rule, name):
    assert rule(package(name)) == []


@pytest.mark.parametrize("rule", [private_interfaces, unsafe_loading])
def test_all_other_python_keeps_the_rule(rule):
    others = {str(path.relative_to(ROOT)): path.read_text() for path in files() if path.suffix == ".py"}
    assert len(others) > 10
    broken = [each for each in rule(parse(others)) if each not in PICKLED]
    assert broken == []


def test_kernels_know_no_tensorflow():
    kernels = {
        path.name: path.read_text()
        for path in (ROOT / "ops").rglob("*")
        if path.suffix in TEXTS and not path.stem.endswith("_op") and path.name != "op_support.h"
    }
    assert len(kernels) > 5
    assert framework_headers(kernels) == []


def test_no_file_is_long():
    code = [path for path in files() if path.suffix != ".md"]
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in code}
    assert long_files(lengths) == []


# ---- each rule can fail ----

DOCUMENTED = '"""A module."""\n'
BASE = DOCUMENTED + 'class B:\n    """B."""\n    def m(self):'
CHILD = 'class C(B):\n    """C."""\n    def m(self): ...'
BROKEN = [
    (undocumented, {"ops": "x = 1"}, "ops itself"),
    (undocumented, {"ops": DOCUMENTED + "def f(): ..."}, "ops.f"),
    (undocumented, {"ops": DOCUMENTED + 'class C:\n    """C."""\n    def m(self): ...'}, "ops.C.m"),
    (undocumented, {"ops": f"{BASE} ...\n{CHILD}"}, "ops.C.m"),
    (private_interfaces, {"ops": "from tensorflow.python.framework import ops"}, "tensorflow.python.framework.ops"),
    (private_interfaces, {"ops": "tf.__internal__.distribute.x()"}, "tf.__internal__.distribute"),
    (private_interfaces, {"ops": "import keras.src.optimizers"}, "keras.src.optimizers"),
    (private_names_of_others, {"tape": "optimizer._clip_gradients(g)"}, "tape line 1 uses _clip_gradients"),
    (private_names_of_others, {"tape": "getattr(optimizer, '_variables')"}, "tape line 1 uses _variables"),
    (private_names_of_others, {"tape": "class C(K):\n    def m(self):\n        self._track(1)"}, "uses _track"),
    (private_members_of_keras, {"a": "optimizer._iterations\nself._iterations = 1"}, "a line 1 uses _iterations"),
    (private_members_of_keras, {"a": "class C(K):\n    def _var_key(self): ..."}, "a line 2 overrides _var_key"),
    (changed_classes, {"a": "optimizer.__class__ = B"}, "a line 1 changes a class"),
    (unsafe_loading, {"ops": "import pickle"}, "ops imports pickle"),
    (unsafe_loading, {"ops": "np.load(path, allow_pickle=True)"}, "ops line 1 sets allow_pickle"),
    (framework_headers, {"a.cc": '#include "a.h"\n#include "tensorflow/core/x.h"'}, "includes tensorflow/core/x.h"),
    (framework_headers, {"a.cc": "# include <absl/strings/str_cat.h>"}, "a.cc includes absl/strings/str_cat.h"),
    (long_files, {"a.py": LONGEST + 1}, "a.py has 401 lines"),
]


@pytest.mark.parametrize("rule, example, complaint", BROKEN)
def test_a_broken_rule_is_seen(rule, example, complaint):
    found = rule(parse(example) if rule not in (framework_headers, long_files) else example)
    assert any(complaint in each for each in found)


KEPT = [
    (undocumented, {"ops": DOCUMENTED + 'def f():\n    """Does f."""\ndef _g(): ...'}),
    (undocumented, {"ops": f"{BASE}\n        'M.'\n{CHILD}"}),
    (undocumented, {"ops": DOCUMENTED + 'class C(keras.callbacks.Callback):\n    """C."""\n    def on_x(self): ...'}),
    (private_interfaces, {"ops": "import tensorflow as tf\ntf.pythonic\nkeras.srcs"}),
    (
        private_names_of_others,
        {"tape": "class C:\n    def _mine(self): ...\nC()._mine()\npoint._replace(x=1)\nf.__name__"},
    ),
    (private_names_of_others, {KERAS_INSIDES[0]: "optimizer._clip_gradients(g)"}),
    (private_members_of_keras, {"a": "self._variables = 1\nself._variables.x\ndef _of(): ..."}),
    (private_members_of_keras, {"layerwise": "optimizer._iterations"}),
    (changed_classes, {"a": "class A:\n    __class__ = property(B)\nA().__class__.x = 1"}),
    (unsafe_loading, {"ops": "import json\nnp.load(path, allow_pickle=False)"}),
    (framework_headers, {"a.cc": '#include "select.h"\n#include <vector>\n// see tensorflow/core'}),
    (long_files, {"a.py": LONGEST}),
]


@pytest.mark.parametrize("rule, example", KEPT)
def test_a_kept_rule_is_left_alone(rule, example):
    assert rule(parse(example) if rule not in (framework_headers, long_files) else example) == []

"""Imports in a decode function: what they import is part of the fingerprint; what cannot be resolved is refused."""

import subprocess
import sys

import pytest

from datacache import fingerprint, imports

SCRIPT = """
import importlib
for name in {before}:
    importlib.import_module(name)
from datacache import fingerprint
def decode(payload):
    import os.path, json as js
    from PIL import Image, ImageOps
    import google.protobuf
    import own_place.inside
    from own_helper import resize
    return resize(payload)
print(fingerprint.of(decode))
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Writes modules of the user's own, and removes them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for name in set(sys.modules) - before:
            if name.startswith("own_"):
                del sys.modules[name]

    yield write
    write()


def made(body, scope=None):
    """A decode function with this body."""
    scope = {"__name__": "script", **(scope or {})}
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    exec(compile(f"def decode(payload):\n{lines}", "script.py", "exec"), scope)
    return scope["decode"]


def test_statements_are_found_as_they_are_written():
    def code():
        import a.b as c

        from .. import d

        try:
            from .e import f, g
        except ImportError:
            import h
        return c, d, f, g, h

    body = "\n".join(f"x{number} = {number}.5" for number in range(300)) + "\nimport after"  # with longer instructions
    found = [*imports.found_in(code.__code__), *imports.found_in(made(body).__code__)]
    assert [(str(each), each.names, each.may_fail) for each in found] == [
        ("a.b", (), False),
        ("..", ("d",), False),
        (".e", ("f", "g"), True),
        ("h", (), True),
        ("after", (), False),
    ]


def test_every_process_finds_the_same_whatever_it_has_loaded(modules, tmp_path):
    modules(own_helper="def resize(x): return x", own_place__inside="x = 1")
    found = set()
    for before in ([], ["PIL.Image", "json", "own_helper"], ["google.protobuf", "own_place.inside"]):
        command = [sys.executable, "-c", SCRIPT.format(before=before)]
        environment = {"PYTHONPATH": ":".join(sys.path)}
        found.add(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment).stdout)
    assert len(found) == 1 and len(found.pop()) == 33


def test_installed_packages_are_not_loaded_for_it(monkeypatch):
    def decode(payload):
        import tensorflow.no_such_module

        return tensorflow.no_such_module

    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    fingerprint.of(decode)
    assert "tensorflow" not in sys.modules


def test_versions_are_those_of_the_distribution():
    import importlib.metadata

    assert imports.installed_version("PIL") == f"pillow {importlib.metadata.version('pillow')}"
    assert imports.installed_version("numpy") == importlib.metadata.version("numpy")
    assert imports.installed_version("json") == ""


def test_only_what_is_taken_of_a_module_counts(modules):
    found, ways = [], ("from own_helper import f", "import own_helper")
    for text in ("def f(x): return x", "def f(x): return x\ndef g(x): return 1", "def f(x): return 2"):
        modules(own_helper=text)
        found.append([fingerprint.of(made(f"{way}\nreturn f(1)")) for way in ways])
    assert found[0][0] == found[1][0] != found[2][0]
    assert len({whole for _, whole in found}) == 3


def test_a_module_of_ones_own_with_a_name_of_pythons_is_ones_own(modules, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    found = []
    for number in (1, 2):
        modules(this=f"x = {number}")
        found.append(fingerprint.of(made("from this import x")))
        monkeypatch.delitem(sys.modules, "this")
    assert found[0] != found[1]


def test_what_may_be_absent_may_be(modules):
    body = "try:\n    import own_fast as f\nexcept ImportError:\n    f = None\nreturn f"
    absent = fingerprint.of(made(body))
    modules(own_fast="x = 1")
    assert fingerprint.of(made(body)) != absent


def test_what_a_module_does_not_use_may_be_absent(modules):
    plot = "def plot(x):\n    import own_absent\n    import importlib\n    importlib.import_module(x)"
    modules(own_helper=f"def f(x): return x\n{plot}")
    fingerprint.of(made("import own_helper\nreturn own_helper.f(1)"))


@pytest.mark.parametrize(
    "body, told",
    [
        ("import own_absent", r"decode imports own_absent, which fails here \(ModuleNotFoundError"),
        ("from own_broken import f", r"decode imports own_broken, which fails here \(RuntimeError: no device"),
        ("from own_helper import absent", "decode imports own_helper, which fails here"),
        ("from . import sibling", r"decode imports \., which fails here"),
        ("import importlib\nreturn importlib.import_module('own_helper')", "decode calls import_module, and"),
        ("return __import__('own_helper')", "decode calls __import__, and the module"),
        ("from own_helper import lock", "own_helper.lock in decode, a lock"),
    ],
)
def test_what_cannot_be_told_is_refused_with_a_remedy(body, told, modules):
    modules(own_helper="import threading\nlock = threading.Lock()", own_broken="raise RuntimeError('no device')")
    with pytest.raises(ValueError, match=told) as raised:
        fingerprint.of(made(body))
    assert "datacache_fingerprint" in str(raised.value)
    known = made(body)
    known.datacache_fingerprint = "version 1"
    fingerprint.of(known)


def test_a_relative_import_is_of_the_function_s_own_package(modules):
    found = []
    for number in (1, 2):
        modules(own_place__inside=f"x = {number}", own_place____init__="")
        for scope in ({"__package__": "own_place"}, {"__name__": "own_place.decoding"}):
            found.append(fingerprint.of(made("from .inside import x\nreturn x", scope)))
    assert found[0] == found[1] != found[2] == found[3]


def test_a_module_that_nothing_has_found_counts_by_its_file(modules, monkeypatch, tmp_path):
    import types

    loose = types.ModuleType("own_loose")
    loose.__spec__, loose.__file__ = None, str(tmp_path / "own_loose.py")
    found = []
    for text in ("x = 1", "x = 2"):
        modules(own_loose=text)
        monkeypatch.setitem(sys.modules, "own_loose", loose)
        found.append(fingerprint.of(made("import own_loose")))
    assert found[0] != found[1]

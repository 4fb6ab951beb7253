"""The fingerprint of a decode function: the same in every process, and different after every change that matters."""

import dataclasses
import enum
import functools
import io
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from datacache import fingerprint

BASE = """
import functools, io
import numpy as np
from PIL import Image

SIZE = (96, 96)
MEAN = np.array([0.5, 0.25])

def helper(image, mode="RGB"):
    return image.convert(mode).resize(SIZE)

class Scale:
    factor = 2
    def __init__(self, by): self.by = by
    def __call__(self, x): return x * self.by

def decode(payload, scale=1.0, *, flip=False):
    with Image.open(io.BytesIO(payload)) as image:
        return np.asarray(helper(image)) * scale - MEAN[0]

made = decode
"""
CHANGES = {
    "a constant of the module": ("(96, 96)", "(96, 97)"),
    "an array of the module": ("0.25", "0.26"),
    "a helper's code": ("convert(mode)", "convert('L')"),
    "a helper's default": ('mode="RGB"', 'mode="L"'),
    "a default": ("scale=1.0", "scale=2.0"),
    "a keyword default": ("flip=False", "flip=True"),
    "an operation": ("* scale", "/ scale"),
    "another attribute": ("Image.open(", "Image.frombytes("),
    "bound arguments": ("made = decode", "made = functools.partial(decode, scale=3)"),
    "a method": ("made = decode", "made = Scale(1)"),
    "an attribute of the object": ("made = decode", "made = Scale(2)"),
    "an attribute of its class": ("made = decode", "made = Scale(2)\nScale.factor = 3"),
    "a closure": ("made = decode", "made = (lambda by: lambda payload: decode(payload, by))(2)"),
    "another closure": ("made = decode", "made = (lambda by: lambda payload: decode(payload, by))(3)"),
}


def loaded(text):
    """The function that a script with this text would pass."""
    scope = {"__name__": "script"}
    exec(compile(text, "script.py", "exec"), scope)
    return scope["made"]


def test_every_change_that_matters_is_another():
    texts = {"nothing": BASE, **{name: BASE.replace(*change) for name, change in CHANGES.items()}}
    assert all(text != BASE for name, text in texts.items() if name != "nothing")
    found = {name: fingerprint.of(loaded(text)) for name, text in texts.items()}
    assert len(set(found.values())) == len(found), found


def test_comments_and_lines_do_not_matter():
    assert fingerprint.of(loaded(BASE)) == fingerprint.of(
        loaded("# a comment\n\n" + BASE.replace("\nclass", "\n\n\nclass"))
    )


def test_every_process_finds_the_same(tmp_path):
    (tmp_path / "script.py").write_text(BASE + "from datacache import fingerprint\nprint(fingerprint.of(made))\n")
    command = [sys.executable, "-c", "import script"]
    found = {
        subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")  # the first process compiles the module, the others load it
    }
    assert len(found) == 1 and len(found.pop()) == 33


def test_a_module_of_ones_own_counts_by_its_text(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = set()
    for number in (1, 2):
        (tmp_path / "own_helpers.py").write_text(f"def resize(x):\n    return x * {number}\n")
        sys.modules.pop("own_helpers", None)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        found.add(fingerprint.of(loaded("import own_helpers\ndef made(payload): return own_helpers.resize(payload)")))
        sys.dont_write_bytecode = before
    sys.modules.pop("own_helpers")
    assert len(found) == 2


class Mode(enum.Enum):
    RED = 1
    GREEN = 2


@dataclasses.dataclass
class Settings:
    size: int
    mode: Mode


def decode(payload, settings):
    return np.asarray(Image.open(io.BytesIO(payload)))


def test_values_that_can_be_bound():
    values = [
        None,
        1,
        1.0,
        True,
        "x",
        b"x",
        (1, 2),
        [1, 2],
        {"a": 1},
        {"a": 2},
        {1, 2},
        frozenset({1}),
        Mode.RED,
        Mode.GREEN,
    ]
    values += [
        np.arange(3),
        np.arange(3.0),
        np.float32(1),
        np.dtype("float32"),
        Settings(1, Mode.RED),
        Settings(2, Mode.RED),
    ]
    values += [int, Settings, np, np.add, len, Image.open, Settings(1, Mode.GREEN), ..., 1j]
    found = [fingerprint.of(functools.partial(decode, settings=value)) for value in values]
    assert len(set(found)) == len(values)
    assert found == [fingerprint.of(functools.partial(decode, settings=value)) for value in values]


def test_what_cannot_be_described_is_named_with_a_remedy():
    with pytest.raises(ValueError, match=r"depends on partial\['settings'\], a lock.*datacache_fingerprint") as raised:
        fingerprint.of(functools.partial(decode, settings=threading.Lock()))
    assert "pass plain values" in str(raised.value)
    with pytest.raises(ValueError, match="an array of objects"):
        fingerprint.of(functools.partial(decode, settings=np.array([object()])))
    with pytest.raises(ValueError, match="Expected a function"):
        fingerprint.of(3)


def test_whoever_knows_better_says_so():
    def one(payload):
        return lock

    lock = threading.Lock()
    one.datacache_fingerprint = "version 1"
    before = fingerprint.of(one)
    one.datacache_fingerprint = "version 2"
    assert fingerprint.of(one) != before


def test_functions_that_call_each_other_come_to_an_end():
    assert fingerprint.of(loaded("def a(x): return b(x)\ndef b(x): return a(x)\nmade = a"))

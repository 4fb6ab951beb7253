"""datacache: samples decoded before a change are not served after it; ordinary decode functions are accepted."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import datacache

SAMPLES = 3
HEAD = "import collections, contextlib, dataclasses, enum, functools, threading\nimport numpy as np\n"
# Two scripts, which differ in the number $, make a function `decode` that returns this number.
CHANGES = {
    "an attribute of a list": "class V(list): pass\nv = V([0]); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of a tuple": "class V(tuple): pass\nv = V([0]); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of a dict": "class V(dict): pass\nv = V(x=0); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of a set": "class V(set): pass\nv = V([0]); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of a text": "class V(str): pass\nv = V('x'); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of bytes": "class V(bytes): pass\nv = V(b'x'); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of an integer": "class V(int): pass\nv = V(0); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of a float": "class V(float): pass\nv = V(0); v.a = $\ndef decode(x): return np.array([v.a])",
    "an attribute of an array": "class V(np.ndarray): pass\nv = np.zeros(2).view(V); v.a = $\n"
    "def decode(x): return np.array([v.a])",
    "a method of a list": "class V(list):\n    def f(self): return $\nv = V()\ndef decode(x): return np.array([v.f()])",
    "a factory": "v = collections.defaultdict(lambda: $)\ndef decode(x): return np.array([v[x]])",
    "a slot beside a dict": "class B: __slots__ = 'a'\n"
    "class V(B):\n    def __call__(self, x): return np.array([self.a])\ndecode = V(); decode.a = $; decode.b = 0",
    "an attribute of a function": "def decode(x): return np.array([decode.a])\ndecode.a = $",
    "an attribute of a partial": "class V(functools.partial): pass\nv = V(len); v.a = $\n"
    "def decode(x): return np.array([v.a])",
    "a context manager": "@contextlib.contextmanager\ndef f(): yield $\n"
    "def decode(x):\n    with f() as v: return np.array([v])",
    "a function for a class": "@functools.singledispatch\ndef f(x): return 0\nf.register(bytes, lambda x: $)\n"
    "def decode(x): return np.array([f(bytes(x))])",
    "a method that is a partial": "class V:\n    def f(self, x, a): return np.array([a])\n"
    "    __call__ = functools.partialmethod(f, a=$)\ndecode = V()",
    "a class made from a list": "V = dataclasses.make_dataclass('V', [('a', int, $)])\n"
    "def decode(x): return np.array([V().a])",
    "a metaclass": "class M(type): a = $\nclass V(metaclass=M): pass\ndef decode(x): return np.array([V.a])",
    "a method of an enumeration": "class V(enum.Enum):\n    A = 0\n    def f(self): return $\nv = V.A\n"
    "def decode(x): return np.array([v.f()])",
}


def read(folder, decode, payload=b"x"):
    """The first sample, and how many came from the samples that were kept decoded."""
    source = datacache.Indexed(lambda index: payload, SAMPLES, "bytes", labels=range(SAMPLES))
    alone = datacache.World()
    local = folder / "local"
    with datacache.DataCache(source, decode, local, memory_bytes=0, keep_decoded=True, world=alone) as cache:
        samples = [sample for batch, _ in cache.batches(1, 0) for sample in batch]
        return samples[0], cache.counters.numbers().get("samples.decoded", 0)


def made(text):
    scope = {"__name__": "script"}
    exec(compile(HEAD + text, "script.py", "exec", dont_inherit=True), scope)
    return scope["decode"]


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_what_was_decoded_before_a_change_is_not_served_after_it(text, tmp_path):
    for number in (1, 2):
        sample, _ = read(tmp_path, made(text.replace("$", str(number))))
        assert list(sample) == [number]


def test_a_setting_that_a_module_has_made_is_not_served_after_it(tmp_path, monkeypatch):
    (tmp_path / "own_setting.py").write_text("import os\nsize = int(os.environ['OWN_SIZE'])\n")
    monkeypatch.syspath_prepend(tmp_path)
    for number in (1, 2):
        monkeypatch.setenv("OWN_SIZE", str(number))
        monkeypatch.delitem(sys.modules, "own_setting", raising=False)
        sample, _ = read(tmp_path, made("import own_setting as s\ndef decode(x): return np.array([s.size])"))
        assert list(sample) == [number]


ORDINARY = [
    "a compiled pattern",
    "a path",
    "a logger",
    "a namespace of options",
    "a namespace as a default",
    "dates",
    "decimals and fractions",
    "methods of Python and a sentinel",
    "a table of bytes, a slice, the keys of a dict",
    "what each thread has",
    "bound settings",
    "a tokenizer",
    "a method of a tokenizer",
    "transforms in an object",
    "an object with a state of its own",
    "an identifier",
    "a tf.io specification",
    "a constant of TensorFlow",
    "a specification of ragged tensors",
    "a tf.function",
]


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_function_decodes_once(name, tmp_path):
    from tests.datacache.decoders import DECODERS  # takes as long as TensorFlow

    decode, payload = DECODERS[name]
    expected = decode(payload)
    for kept in (0, SAMPLES):
        sample, decoded = read(tmp_path, decode, payload)
        np.testing.assert_array_equal(sample, expected)
        assert decoded == kept


def test_an_attribute_with_the_name_of_a_global_is_not_the_global(tmp_path):
    text = "size = threading.Lock()\ndef decode(x): return np.array([np.zeros(4).size])"
    assert list(read(tmp_path, made(text))[0]) == [4]


def test_use_changes_nothing(tmp_path):
    decode = made(
        "class V:\n    @functools.cached_property\n    def table(self): return np.arange(256)\n"
        "    def __call__(self, x): return self.table[np.frombuffer(x, np.uint8)]\ndecode = V()"
    )
    assert read(tmp_path, decode)[1] == 0
    assert read(tmp_path, decode)[1] == SAMPLES


PROCESS = """
import sys
import numpy as np
import datacache
GROUPS = {frozenset(["red", "green"]), frozenset(["blue", "grey", "black"]), frozenset(["white", "pink"])}
NAMES = {"red", "green", "blue"}
def decode(payload):
    print("decodes", flush=True)
    return np.array([len(WHAT)])
source = datacache.Indexed(lambda index: b"x", 3, "bytes", labels=range(3))
cache = datacache.DataCache(
    source, decode, sys.argv[1], memory_bytes=0, keep_decoded=True, world=datacache.World()
)
assert len(list(cache.batches(1, 0))) == 3
print(int(cache.counters.numbers().get("samples.decoded", 0)))
"""


def processes(folder, what):
    """What three processes print, which read the same samples under different seeds of Python's hashes."""
    (folder / "script.py").write_text(PROCESS.replace("WHAT", what))
    for seed in ("1", "2", "3"):
        path = os.pathsep.join(filter(None, (os.getcwd(), *sys.path)))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
        command = [sys.executable, str(folder / "script.py"), str(folder / "local")]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        yield ended.stdout.split()


def test_a_set_of_sets_is_the_same_in_every_process(tmp_path):
    first, *others = processes(tmp_path, "GROUPS")
    assert "decodes" in first and others == [[str(SAMPLES)]] * 2


def test_what_is_refused_is_named_by_its_path(tmp_path):
    decode = made(
        "class V:\n    def __init__(self): self.parts = [threading.Lock()]\n"
        "    def f(self, x): return x\ndecode = V().f"
    )
    with pytest.raises(ValueError, match=re.escape("V.f.self.parts[0], a lock")) as raised:
        read(tmp_path, decode)
    assert "datacache_fingerprint" in str(raised.value)


def test_control_what_was_seen_before_still_is(tmp_path):
    text = "class V:\n    def __call__(self, x): return np.array([self.a])\ndecode = V(); decode.a = $"
    for number in (1, 2):
        assert list(read(tmp_path, made(text.replace("$", str(number))))[0]) == [number]
    first, *others = processes(tmp_path, "NAMES")
    assert "decodes" in first and others == [[str(SAMPLES)]] * 2

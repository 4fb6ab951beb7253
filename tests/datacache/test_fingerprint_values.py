"""What a decode function depends on: every change of it is another fingerprint, and what does not matter is none."""

import functools
import subprocess
import sys
import threading

import pytest

from datacache import fingerprint

HEAD = """
import abc, array, collections, contextlib, dataclasses, enum, functools, operator, random, re, threading, types, typing
import numpy as np
def use(payload, value=None): return value
"""
# Two scripts, which differ in the number $, make `made`; what they make must differ.
CHANGES = {
    "an attribute of a list": "class L(list): pass\nv = L([1]); v.a = $",
    "an attribute of a tuple": "class L(tuple): pass\nv = L([1]); v.a = $",
    "an attribute of a named tuple": "class L(typing.NamedTuple('N', [('x', int)])): pass\nv = L(1); v.a = $",
    "an attribute of a dict": "class L(dict): pass\nv = L(x=1); v.a = $",
    "an attribute of a set": "class L(set): pass\nv = L([1]); v.a = $",
    "an attribute of a frozenset": "class L(frozenset): pass\nv = L([1]); v.a = $",
    "an attribute of a text": "class L(str): pass\nv = L('x'); v.a = $",
    "an attribute of bytes": "class L(bytes): pass\nv = L(b'x'); v.a = $",
    "an attribute of an integer": "class L(int): pass\nv = L(1); v.a = $",
    "an attribute of a float": "class L(float): pass\nv = L(1); v.a = $",
    "an attribute of an array": "class L(np.ndarray): pass\nv = np.zeros(2).view(L); v.a = $",
    "an attribute of a deque": "class L(collections.deque): pass\nv = L([1]); v.a = $",
    "an attribute of a counter": "class L(collections.Counter): pass\nv = L('x'); v.a = $",
    "an attribute of a path": "import pathlib\nclass L(pathlib.PosixPath): pass\nv = L('x'); v.a = $",
    "an attribute of a date": "import datetime\nclass L(datetime.date): pass\nv = L(2020, 1, 1); v.a = $",
    "an attribute of a slot of a date": "import datetime\nclass L(datetime.date): __slots__ = 'a'\n"
    "v = L(2020, 1, 1); v.a = $",
    "an attribute of a partial": "v = functools.partial(use); v.a = $",
    "an attribute of a partial's class": "class L(functools.partial): a = $\nv = L(use)",
    "an attribute of a function": "def v(x): return v.a\nv.a = $",
    "a method of a list": "class L(list):\n    def f(self): return $\nv = L()",
    "the content of a list": "class L(list): pass\nv = L([$])",
    "the content of a dict": "class L(dict): pass\nv = L(x=$)",
    "the content of an array": "class L(np.ndarray): pass\nv = np.full(2, $).view(L)",
    "the content of an integer": "class L(int): pass\nv = L($)",
    "a mask": "v = np.ma.array([1, 2, 3], mask=[0, $ - 1, 1])",
    "a factory": "v = collections.defaultdict(lambda: $)",
    "a factory of Python": "v = collections.defaultdict([list, dict][$ - 1])",
    "the length of a deque": "v = collections.deque([1], maxlen=$)",
    "a slot": "class L: __slots__ = 'a'\nv = L(); v.a = $",
    "a slot beside a dict": "class B: __slots__ = 'a'\nclass L(B): pass\nv = L(); v.a = $; v.b = 1",
    "a dict beside a slot": "class B: __slots__ = 'a'\nclass L(B): pass\nv = L(); v.a = 1; v.b = $",
    "a private slot": "class L:\n    __slots__ = '__a'\n    def __init__(self, a): self.__a = a\nv = L($)",
    "an attribute of the class": "class L: a = $\nv = L()",
    "an attribute of a base": "class B: a = $\nclass L(B): pass\nv = L()",
    "an attribute of a metaclass": "class M(type): a = $\nclass L(metaclass=M): pass\nv = L()",
    "a property": "class L:\n    @property\n    def a(self): return $\nv = L()",
    "a setter": "class L:\n    a = property(lambda self: 1, lambda self, x: $)\nv = L()",
    "a cached property": "class L:\n    @functools.cached_property\n    def a(self): return $\nv = L()",
    "a class method": "class L:\n    @classmethod\n    def a(cls): return $\nv = L()",
    "a bound class method": "class L:\n    @classmethod\n    def a(cls): return $\nv = L.a",
    "the object of a method": "class L:\n    def f(self): pass\nx = L(); x.a = $; v = x.f",
    "the object of a method of Python": "v = {'x': $}.get",
    "a special method that is no function": "class L: __call__ = functools.partialmethod(use, value=$)\nv = L()",
    "a descriptor": "class D:\n    def __init__(self, a): self.a = a\n    def __get__(self, o, t): return self.a\n"
    "class L: x = D($)\nv = L()",
    "a state of its own": "class L:\n    def __getstate__(self): return $\nv = L()",
    "what it is made of": "class L:\n    def __reduce__(self): return L, (), {'x': $}\nv = L()",
    "a default": "def v(x, *, a=$): return a",
    "a value closed over": "v = (lambda a: lambda x: a)($)",
    "a value closed over by a function of a package": "@contextlib.contextmanager\ndef v(x): yield $",
    "a function for a class": "@functools.singledispatch\ndef v(x): return x\nv.register(int, lambda x: $)",
    "a cached function": "@functools.lru_cache\ndef v(x): return $",
    "a member of an enumeration": "class L(enum.Enum): A = $\nv = L.A",
    "another member": "class L(enum.Enum):\n    A = 1\n    B = $ + 1\nv = L",
    "a method of an enumeration": "class L(enum.Enum):\n    A = 1\n    def f(self): return $\nv = L.A",
    "an attribute of a member": "class L(enum.Enum):\n    A = 1\n    def __init__(self, x): self.more = $\nv = L.A",
    "a flag": "class L(enum.Flag):\n    A = 1\n    B = 2\n    C = 4\nv = [L.A | L.B, L.A | L.C][$ - 1]",
    "a field's default": "v = dataclasses.make_dataclass('C', [('x', int, $)])",
    "an item of an ordered dict": "v = collections.OrderedDict(a=1, b=2)\nv.move_to_end('ab'[$ - 1])",
    "the order of a dict": "v = [{'a': 1, 'b': 2}, {'b': 2, 'a': 1}][$ - 1]",
    "the sign of zero": "v = [0.0, -0.0][$ - 1]",
    "not a number": "v = [float('inf'), float('nan')][$ - 1]",
    "a bit of a large integer": "v = 10**5000 + $",
    "a kind of zero": "v = [0, False][$ - 1]",
    "a kind of number": "v = [np.float32(1), np.float64(1)][$ - 1]",
    "a number and an array": "v = [np.float32(1), np.array(1, np.float32)][$ - 1]",
    "the order of bytes": "v = np.zeros(2, ['<i4', '>i4'][$ - 1])",
    "a shape": "v = np.zeros([(2, 3), (3, 2)][$ - 1])",
    "a field": "v = np.array([(1, $)], [('a', 'i1'), ('b', 'f8')])",
    "a text in an array": "v = np.array(['a', 'b$'], object)",
    "a pattern": "v = re.compile('a$')",
    "the flags of a pattern": "v = re.compile('a', [0, re.IGNORECASE][$ - 1])",
    "a getter": "v = operator.itemgetter($)",
    "a range": "v = range($)",
    "a vectorized function": "v = np.vectorize(lambda x: $)",
    "a name in a class": "class L:\n    class M: a = $\nv = L()",
    "a global of a nested function": "A = $\ndef v(x):\n    def f(): return A\n    return f()",
    "a global that it assigns, too": "A = $\ndef v(x):\n    global A\n    A = A or 3\n    return A",
}


def made(text, **more):
    scope = {"__name__": "script", **more}
    exec(compile(HEAD + text + "\nmade = functools.partial(use, value=v)", "script.py", "exec"), scope)
    return scope["made"]


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_a_change_is_another_fingerprint(text):
    one, again, other = (fingerprint.of(made(text.replace("$", number))) for number in "112")
    assert one == again != other


SAME = {
    "the order of attributes": (
        "class L: pass\nv = L(); v.a = 1; v.b = 2",
        "class L: pass\nv = L(); v.b = 2; v.a = 1",
    ),
    "the order of a set": ("v = set(range(8, 80, 8))", "v = set(range(72, 0, -8))"),
    "the order of a set of sets": (
        "v = {frozenset([1, 9]), frozenset([17, 25])}",
        "v = {frozenset([25, 17]), frozenset([9, 1])}",
    ),
    "the layout of an array": ("v = np.ones((2, 3))", "v = np.ones((3, 2)).T"),
    "one object or two equal ones": ("a = [1]; v = [a, a]", "v = [[1], [1]]"),
    "the logger": ("import logging\nv = logging.getLogger('a')", "import logging\nv = logging.getLogger('b')"),
    "bytes between fields": (
        "v = np.zeros(1, np.dtype([('a', 'i1'), ('b', 'f8')], align=True))",
        "v = np.frombuffer(b'\\0' + b'x' * 7 + b'\\0' * 8, np.dtype([('a', 'i1'), ('b', 'f8')], align=True))",
    ),
    "what a thread keeps": ("v = threading.local()", "v = threading.local()\nv.session = threading.Lock()"),
}


@pytest.mark.parametrize("texts", SAME.values(), ids=SAME)
def test_what_does_not_matter_changes_nothing(texts):
    one, other = (fingerprint.of(made(text)) for text in texts)
    assert one == other


REFUSED = {
    "class L: pass\nv = L(); v.a = [1, {'x': threading.Lock()}]": r"partial\['value'\].a\[1\]\['x'\], a lock",
    "v = threading.Lock()\ndef v(x, lock=v): return lock": r"partial\['value'\].__defaults__\[0\], a lock",
    "lock = threading.Lock()\ndef v(x): return lock": r"depends on lock in partial\['value'\], a lock",
    "class L: lock = threading.Lock()\nv = L()": r"partial\['value'\].__class__.lock, a lock",
    "v = open('/dev/null')": "an open file",
    "v = (x for x in [1])": "an iterator, which is used up",
    "v = random.Random(1)": "a Random, whose values differ from call to call, and random augmentation belongs after",
    "v = [np.random.default_rng(1)]": "a Generator, whose values differ",
    "v = types.SimpleNamespace(r=random.Random(1))": "a Random, whose values differ",
    "v = np.frompyfunc(use, 1, 1)": "a ufunc, made of a function that it does not show",
    "import socket\nv = socket.socket()": "a socket, whose content",
    "class L:\n    def __reduce__(self): raise OSError('gone')\nv = L()": "a L, whose content",
    "v = []\nfor _ in range(9999): v = [v]": "nested too deeply",
}


@pytest.mark.parametrize("text, told", REFUSED.items())
def test_what_cannot_be_described_is_named_by_its_path(text, told):
    with pytest.raises(ValueError, match=told) as raised:
        fingerprint.of(made(text))
    assert "datacache_fingerprint" in str(raised.value)


def test_the_path_begins_with_the_function():
    class Decoder:
        def __init__(self):
            self.pattern = threading.Lock()

        def decode(self, payload):
            return payload

    with pytest.raises(ValueError, match=r"depends on .*Decoder\.decode\.self\.pattern, a lock"):
        fingerprint.of(Decoder().decode)


def test_a_name_is_a_global_only_where_the_code_loads_one():
    text = "np = size = threading.Lock()\ndef v(x): return x.np.size"
    assert fingerprint.of(made(text)) == fingerprint.of(made(text.replace("threading.Lock()", "1")))


def test_an_object_that_answers_to_every_name_has_given_no_fingerprint():
    class Everything:
        def __init__(self, value):
            self.value = value

        def __getattr__(self, name):
            return "anything"

    class Items(dict):
        __getattr__ = dict.__getitem__

    def use(payload, value):
        return value

    values = [Everything(1), Everything(2), Items(a=1), Items(a=2)]
    assert len({fingerprint.of(functools.partial(use, value=value)) for value in values}) == 4


def test_each_object_can_say_its_own():
    class Vocabulary:
        def __init__(self, version):
            self.handle, self.datacache_fingerprint = threading.Lock(), version

    def use(payload, value):
        return value

    found = [fingerprint.of(functools.partial(use, value=Vocabulary(version))) for version in "112"]
    assert found[0] == found[1] != found[2]


MODULE = (
    "import os\nsize = int(os.environ['OWN_SIZE'])\ndef get(): return lock\nimport threading\nlock = threading.Lock()"
)
USES = {
    "a module's alias": "import own_settings as s\ndef v(x): return s.size",
    "a module that is imported inside": "def v(x):\n    import own_settings as s\n    return s.size",
    "a name of it": "def v(x):\n    from own_settings import size\n    return size",
    "a package's module": "import own_folder.settings\ndef v(x): return own_folder.settings.size",
    "a package's module, inside": "def v(x):\n    import own_folder.settings\n    return own_folder.settings.size",
    "a module of a package": "def v(x):\n    from own_folder import settings\n    return settings.size",
    "a module closed over": "def f():\n    import own_settings\n    return lambda x: own_settings.size\nv = f()",
    "a module in a module": "import own_other\ndef v(x): return own_other.own_settings.size",
}


@pytest.mark.parametrize("text", USES.values(), ids=USES)
def test_a_value_that_is_reached_through_a_module_counts(text, tmp_path, monkeypatch):
    (tmp_path / "own_folder").mkdir()
    for name in ("own_settings.py", "own_folder/settings.py"):
        (tmp_path / name).write_text(MODULE)
    (tmp_path / "own_other.py").write_text("import own_settings")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for size in "112":
        monkeypatch.setenv("OWN_SIZE", size)
        for name in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[name]
        found.append(fingerprint.of(made(text)))
    assert found[0] == found[1] != found[2]


def test_data_of_a_module_that_is_passed_on_count(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text("size = 1\ngates = [open('/dev/null')]")
    monkeypatch.syspath_prepend(tmp_path)
    function = made("import own_data\ndef v(x): return getattr(own_data, x)")
    before = fingerprint.of(function)
    sys.modules["own_data"].size = 2
    assert fingerprint.of(function) != before
    del sys.modules["own_data"]


def test_sets_are_the_same_in_every_process(tmp_path):
    (tmp_path / "script.py").write_text(
        f"{HEAD}from datacache import fingerprint\n"
        "@dataclasses.dataclass(frozen=True)\nclass P:\n    name: str\n    more: frozenset\n"
        "class N: pass\n"
        "words = 'red green blue grey black white'.split()\n"
        "v = {P(w, frozenset(words)) for w in words} | {frozenset(words[:n]) for n in range(6)} | set(words)\n"
        "def f(x): return x in {'red', 'green', 'blue', 'grey'}\n"
        "print(fingerprint.of(functools.partial(f, value=v)))\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    found = {
        subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "012"
    }
    assert len(found) == 1 and len(found.pop()) == 33

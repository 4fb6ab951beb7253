"""The fingerprint of a decode function: it changes with everything that decides what the function returns.

That is its code, its defaults, its attributes and the values it closes over; the user's functions and constants that
it names or imports when it runs, and theirs in turn; the versions of the installed packages whose functions it names;
and Python's version. A value that has no lasting description is an error, not a guess.

An object counts by its class and by its attributes, in `__dict__` and `__slots__`; a subclass of a container, number,
string or array by its content, too. If its class has `__getstate__` or `__reduce__`, what these return counts. Order
counts in lists, tuples and dicts, and neither in sets nor among attributes.

What a function keeps for later calls does not count: results of `functools.cached_property` and `functools.lru_cache`,
the content of `threading.local`, and global names that the function assigns itself, unless they hold a number or a
string. Any other attribute that is made at the first call counts: leave it out of `__getstate__`, or make it at once.
Files that the function reads and environment variables do not count.
"""

from __future__ import annotations

import collections
import enum
import functools
import io
import logging
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, MappingView
from typing import Any

import numpy as np
import xxhash

from datacache import imports, names, packages, states
from datacache.digests import PLAIN, REMEDY, Place, digest, given, plain, refusal

_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_WHOLE: names.Chains = {()}


def of(function: Callable) -> str:
    """32 hexadecimal digits for a function, a `functools.partial`, or a callable object.

    To set the fingerprint by hand, set the attribute `datacache_fingerprint` (a string) on the function; then only this
    counts. The same holds for every object that the function depends on.

    Raises:
        ValueError: if it depends on a value that cannot be described; the message names it and says what to do.
    """
    if not callable(function):
        raise ValueError(f"Expected a function, got {function!r}.")
    where = Place(getattr(function, "__qualname__", type(function).__qualname__))
    try:
        return digest(f"{sys.implementation.cache_tag}", _Walk().describe(function, where)).hex()
    except RecursionError as error:
        raise ValueError(f"{where} depends on values that are nested too deeply to be described: {REMEDY}") from error


def with_shape(fingerprint: str, shape: tuple[int | None, ...] | None) -> str:
    """The fingerprint of a function whose samples have this shape; the function's own if no shape is given."""
    return fingerprint if shape is None else xxhash.xxh3_128(f"{fingerprint} {shape}".encode()).hexdigest()


class _Walk:
    """One traversal of everything that a function depends on; each value has a digest of its own."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # values that are being described, and their depth
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the values, as their ids must stay theirs
        self._listing = 0  # depth of modules that are described whole, used or not
        self._packaged = False  # whether the object around is of an installed class

    def describe(self, value: Any, where: Place) -> bytes:
        """The digest of a value; `where` names it in an error."""
        if type(value) in PLAIN:
            return plain(value)
        own = given(value)
        if own is not None:
            return digest("given", own)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            return digest("around", str(len(self._open) - self._open[id(value)]))
        self._open[id(value)] = len(self._open)
        try:
            found = self._describe_compound(value, where)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, found
        return found

    def _describe_compound(self, value: Any, where: Place) -> bytes:
        for kinds, describe in _DESCRIBED:
            if isinstance(value, kinds):
                return describe(self, value, where)
        return self._object(value, where)

    # ---- code ----

    def _function(self, value: types.FunctionType, where: Place) -> bytes:
        if packages.provides(value):
            return self._package(value.__module__, value.__qualname__)
        if packages.is_dispatch(value):  # what it has found for a class it keeps
            return digest("dispatch", self._mapping(dict(value.registry), where))  # type: ignore[attr-defined]
        if imports.is_installed(value.__code__.co_filename):  # made by a package of what the user gave it
            code = self._package(str(value.__globals__.get("__name__")), value.__code__.co_qualname)
        else:
            code = digest(value.__qualname__, self._code(value.__code__, value.__globals__, where))
        parts = [
            self.describe(value.__defaults__, where.attribute("__defaults__")),
            self.describe(value.__kwdefaults__, where.attribute("__kwdefaults__")),
            self._attributes(vars(value), where),
        ]
        chains, assigned = names.of_locals(value.__code__), names.assigned(value.__code__)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            parts.append(self._cell(cell, chains.get(name, _WHOLE), name in assigned, where.name(name)))
        return digest("function", code, *parts)

    def _cell(self, cell: types.CellType, chains: names.Chains, assigned: bool, where: Place) -> bytes:
        try:
            content = cell.cell_contents
        except ValueError:
            return digest("empty")
        return digest("kept") if assigned and _is_kept(content) else self._used(content, chains, where)

    def _code(self, code: types.CodeType, scope: dict[str, Any], where: Place) -> bytes:
        counts = f"{code.co_flags} {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
        parts: list[str | bytes] = [code.co_code, code.co_exceptiontable, counts, *code.co_varnames, *code.co_names]
        for number, constant in enumerate(code.co_consts):
            if isinstance(constant, types.CodeType):
                parts.append(self._code(constant, scope, where))
            else:
                parts.append(self.describe(constant, where.attribute("co_consts").item(number)))
        assigned = names.assigned(code)
        for name, chains in names.of_globals(code).items():
            if name in scope and not (name in assigned and _is_kept(scope[name])):
                parts += [name, self._used(scope[name], chains, where.name(name))]
        chains_of = names.of_locals(code)
        for wanted in imports.found_in(code):
            parts.append(self._import(wanted, scope, chains_of, where))
        by_name = [name for name in imports.BY_NAME if name in code.co_names]
        if by_name and not self._listing:
            raise ValueError(
                f"{where} calls {by_name[0]}, and the module that it imports is unknown until it runs: write an "
                f"import statement, or {REMEDY}"
            )
        return digest("code", *parts)

    def _import(
        self, wanted: imports.Import, scope: dict[str, Any], chains: dict[str, names.Chains], where: Place
    ) -> bytes:
        """Describes what is imported when the code runs: the user's by content, an installed package by its version."""
        head = [str(wanted), *wanted.names]
        try:
            module = wanted.resolve(scope)
            if imports.is_packaged(module):
                return digest("import", *head, imports.installed_version(module.partition(".")[0]))
            taken = list(imports.load(wanted, module))
            root = imports.bound_module(wanted, module)
        except Exception as error:  # a module of one's own may raise anything
            if isinstance(error, ImportError) and (wanted.may_fail or self._listing):
                return digest("absent", *head)
            raise ValueError(
                f"{where} imports {wanted}, which fails here ({type(error).__name__}: {error}), so a later change "
                f"of it could not be detected: make it importable before the cache is made, or {REMEDY}"
            ) from error
        used = [chains.get(name, _WHOLE) for name in wanted.bound]
        if wanted.names:
            parts = [self._used(value, each, where.name(name)) for (name, value), each in zip(taken, used, strict=True)]
        elif () in used[0]:
            parts = [self.describe(value, where.name(name)) for name, value in taken]
        else:
            parts = [_text(value, where.name(name)) for name, value in taken]
            parts.append(self._used(root, used[0], where.name(root.__name__)))
        return digest("import", *head, *parts)

    def _used(self, value: Any, chains: names.Chains, where: Place) -> bytes:
        """Describes what code reaches by a name: of a module of one's own its text, and the values that are taken."""
        of_ones_own = isinstance(value, types.ModuleType) and not imports.is_installed(packages.file_of(value.__name__))
        if not of_ones_own or () in chains or given(value) is not None:
            return self.describe(value, where)
        parts: list[str | bytes] = [_text(value, where) if getattr(value, "__file__", None) else b""]
        for name, rest in names.below(chains).items():
            member = getattr(value, name, _text)
            parts += [name, b"" if member is _text else self._used(member, rest, where.attribute(name))]
        return digest("taken", *parts)

    def _module(self, value: types.ModuleType, where: Place) -> bytes:
        if imports.is_installed(packages.file_of(value.__name__)):
            return self._package(value.__name__, "")
        parts: list[str | bytes] = [_text(value, where)]
        self._listing += 1
        try:
            for name, member in sorted(vars(value).items()):
                if not name.startswith("__"):
                    parts += [name, self._listed(member, where.attribute(name))]
        finally:
            self._listing -= 1
        return digest("module", *parts)

    def _listed(self, member: Any, where: Place) -> bytes:
        """A member of a module that is described whole; its data may be of any kind, as they may not be used."""
        if isinstance(member, types.ModuleType | types.FunctionType | type):
            return self.describe(member, where)
        try:
            return self.describe(member, where)
        except ValueError:
            return b""

    def _builtin(self, value: Any, where: Place) -> bytes:
        module = getattr(value, "__module__", None) or type(value).__module__
        name = getattr(value, "__qualname__", value.__name__)
        bound = getattr(value, "__self__", None)
        if isinstance(bound, types.ModuleType):
            return self._package(module, name)
        return digest(self._package(module, name), self.describe(bound, where.attribute("self")))

    def _ufunc(self, value: np.ufunc, where: Place) -> bytes:
        home = packages.home_of(value)
        if home is None:
            raise refusal(value, where, "made of a function that it does not show")
        return self._package(home, value.__name__)

    def _descriptor(self, value: Any, where: Place) -> bytes:
        return self._package(value.__objclass__.__module__, value.__qualname__)

    def _method(self, value: types.MethodType, where: Place) -> bytes:
        function = self.describe(value.__func__, where)
        return digest("method", function, self.describe(value.__self__, where.attribute("self")))

    def _partial(self, value: functools.partial, where: Place) -> bytes:
        parts = [self.describe(part, where) for part in (value.func, value.args, value.keywords)]
        return digest("partial", *parts, self.describe(type(value), where), self._attributes(vars(value), where))

    def _package(self, module: str, name: str) -> bytes:
        """Describes what is installed by its package's version."""
        return digest("package", module, name, packages.version(module))

    # ---- classes and objects ----

    def _class(self, value: type, where: Place) -> bytes:
        if packages.provides(value):
            return self._package(value.__module__, value.__qualname__)
        parts: list[str | bytes] = [self.describe(value.__bases__, where.attribute("__bases__"))]
        for name, member in states.of_class(value):
            parts += [name, self.describe(member, where.attribute(name))]
        return digest("class", value.__qualname__, self.describe(type(value), where), *parts)

    def _member(self, member: Any, where: Place) -> bytes:
        if isinstance(member, property):
            return self.describe((member.fget, member.fset, member.fdel), where)
        if isinstance(member, functools.cached_property):
            return self.describe(member.func, where)
        if isinstance(member, staticmethod | classmethod):
            return digest(type(member).__name__, self.describe(member.__func__, where))
        return b""  # of a slot, which has its value in the object

    def _enum(self, value: Any, where: Place) -> bytes:
        added = {name: each for name, each in vars(value).items() if not name.startswith("_")}
        parts = [self.describe(each, where.attribute("value")) for each in (type(value), value.name, value.value)]
        return digest("enum", *parts, self._attributes(added, where))

    def _object(self, value: Any, where: Place) -> bytes:
        reason = self._why_not(value)
        if reason:
            raise refusal(value, where, reason)
        before = self._packaged
        self._packaged = before if packages.is_of_python(type(value)) else packages.provides(type(value))
        try:
            kind = self.describe(type(value), where.attribute("__class__"))
            if value is os.environ or isinstance(value, threading.local):  # each process or thread has its own
                return digest("object", kind)
            shown = packages.shown_by(value)
            if shown is not None:
                return digest("object", kind, self._attributes(shown, where))
            return digest("object", kind, *self._state(value, where))
        finally:
            self._packaged = before

    def _why_not(self, value: Any) -> str:
        if isinstance(value, _RANDOM) and not self._packaged:  # a package's object has its seed as well
            return "whose values differ from call to call, and random augmentation belongs after the cache"
        if isinstance(value, io.IOBase):
            return "an open file, whose content is read when the function runs"
        if isinstance(value, Iterator) and packages.provides(type(value)):
            return "an iterator, which is used up by its use"
        return ""

    def _state(self, value: Any, where: Place) -> Iterable[bytes]:
        for kinds, content in _CONTENTS:
            if isinstance(value, kinds):
                attributes, other = ({}, None) if type(value) in _ALONE else states.attributes(value)
                return content(self, value, where), self._attributes(attributes, where), self.describe(other, where)
        if isinstance(value, (*_RANDOM, logging.Logger)):  # a random one of a package's object, see `_why_not`
            return ()
        try:
            state = states.of(value)
            made = [self.describe(state.maker, where), *self._parts(state.arguments, where)]
        except Exception as error:  # an object may raise anything
            raise refusal(value, where) from error
        return *made, self._attributes(state.attributes, where), *self._parts(state.rest, where)

    def _attributes(self, found: dict[str, Any], where: Place) -> bytes:
        parts = {name: self.describe(found[name], where.attribute(name)) for name in sorted(found)}
        return digest(*(each for part in parts.items() for each in part))

    # ---- values ----

    def _parts(self, values: Iterable[Any], where: Place) -> list[bytes]:
        return [self.describe(each, where.item(number)) for number, each in enumerate(values)]

    def _sequence(self, value: Any, where: Place) -> bytes:
        kind = next((kind for kind in (tuple, list, collections.deque) if isinstance(value, kind)), type(value))
        limit = str(value.maxlen) if isinstance(value, collections.deque) else ""
        return digest(limit, *self._parts(kind.__iter__(value), where))

    def _set(self, value: Any, where: Place) -> bytes:
        found, known = [], self._known
        for each in value:
            self._known = dict(known)  # what an element makes known must not depend on those before it
            found.append(self.describe(each, where.item(each)))
        self._known = known
        return digest(*sorted(found))

    def _mapping(self, value: Any, where: Place) -> bytes:
        factory = value.default_factory if isinstance(value, collections.defaultdict) else None
        parts = [self.describe(factory, where.attribute("default_factory"))]
        kind = next(kind for kind in (collections.OrderedDict, dict, types.MappingProxyType) if isinstance(value, kind))
        for key, each in kind.items(value):
            parts += [self.describe(key, where.item(key)), self.describe(each, where.item(key))]
        return digest(*parts)

    def _array(self, value: Any, where: Place) -> bytes:
        array = np.asarray(value)
        if array.dtype.names:  # bytes between the fields are nobody's
            fields = [self._array(array[name], where.item(name)) for name in array.dtype.names]
            return digest(str(array.dtype), *fields)
        content: bytes = b"" if array.dtype.hasobject else array.tobytes()
        if array.dtype.hasobject:
            elements = array.ravel().tolist()
            if any(type(each) not in PLAIN for each in elements):
                raise ValueError(f"The decode function depends on {where}, an array of objects: pass numbers.")
            content = digest(*self._parts(elements, where))
        return digest(str(array.dtype), str(array.shape), content)

    def _number(self, value: Any, where: Place) -> bytes:
        exact = next(exact for kind, exact in _EXACT.items() if isinstance(value, kind))
        return plain(exact(value))

    def _cached(self, value: Any, where: Place) -> bytes:
        return digest("cached", self.describe(value.__wrapped__, where))


_EXACT: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: lambda value: str.__getitem__(value, slice(None)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}
_ALONE = (tuple, list, dict, set, frozenset, np.memmap)  # whose objects have no attributes that count
_Table = tuple[tuple[Any, Callable[[_Walk, Any, Place], bytes]], ...]
_DESCRIBED: _Table = (
    (types.FunctionType, _Walk._function),
    (types.BuiltinFunctionType | types.MethodWrapperType, _Walk._builtin),
    (np.ufunc, _Walk._ufunc),
    (types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType, _Walk._descriptor),
    (types.MethodType, _Walk._method),
    (functools.partial, _Walk._partial),
    (type(functools.cache(len)), _Walk._cached),
    (enum.Enum, _Walk._enum),
    (type, _Walk._class),
    (types.ModuleType, _Walk._module),
    (property | functools.cached_property | staticmethod | classmethod, _Walk._member),
    (types.MemberDescriptorType | types.GetSetDescriptorType, _Walk._member),
)
_CONTENTS: _Table = (
    (np.ndarray | np.generic, _Walk._array),
    (tuple(_EXACT), _Walk._number),
    (tuple | list | collections.deque | MappingView, _Walk._sequence),
    (set | frozenset, _Walk._set),
    (dict | types.MappingProxyType, _Walk._mapping),
)


def _is_kept(value: Any) -> bool:
    """Whether a name that a function assigns itself holds what it keeps for later calls, or will."""
    return value is None or type(value) not in PLAIN


def _text(module: types.ModuleType, where: Place) -> bytes:
    file = packages.file_of(module.__name__)
    if not os.path.isfile(file):
        raise ValueError(
            f"The decode function depends on {where}, a module without a file: import what it uses by name."
        )
    with open(file, "rb") as text:
        return digest("text", text.read())

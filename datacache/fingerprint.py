"""The fingerprint of a decode function: it changes with everything that decides what the function returns.

That is its code, its defaults and the values it closes over; the user's functions and constants that it names or
imports when it runs, and theirs in turn; the versions of the installed packages whose functions it names; and Python's
version. A value that has no lasting description is an error, not a guess.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from datacache import imports

_ATTRIBUTE = "datacache_fingerprint"
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


def of(function: Callable) -> str:
    """32 hexadecimal digits for a function, a `functools.partial`, or a callable object of a user's class.

    To set the fingerprint by hand, set the attribute `datacache_fingerprint` (a string) on the function; then only this
    counts.

    Raises:
        ValueError: if it depends on a value that cannot be described; the message names it and says what to do.
    """
    if not callable(function):
        raise ValueError(f"Expected a function, got {function!r}.")
    walk = _Walk()
    walk.describe(function, getattr(function, "__qualname__", type(function).__qualname__))
    return walk.digest.hexdigest()


def with_shape(fingerprint: str, shape: tuple[int | None, ...] | None) -> str:
    """The fingerprint of a function whose samples have this shape; the function's own if no shape is given."""
    return fingerprint if shape is None else xxhash.xxh3_128(f"{fingerprint} {shape}").hexdigest()


class _Walk:
    """One traversal of everything that a function depends on."""

    def __init__(self) -> None:
        self.digest = xxhash.xxh3_128(f"{sys.implementation.cache_tag}")
        self._seen: dict[int, int] = {}
        self._listing = 0  # depth of modules that are described whole, used or not

    def describe(self, value: Any, where: str) -> None:
        """Adds a value; `where` names it in an error."""
        own = getattr(value, _ATTRIBUTE, None)
        if isinstance(own, str):
            return self._add("given", own)
        if isinstance(value, _PLAIN):
            return self._add(type(value).__name__, repr(value))
        if id(value) in self._seen:
            return self._add("seen", str(self._seen[id(value)]))
        if not isinstance(value, tuple | frozenset):  # Python decides which equal ones are one
            self._seen[id(value)] = len(self._seen)
        return self._describe_compound(value, where)

    def _describe_compound(self, value: Any, where: str) -> None:
        for kinds, describe in _DESCRIBED:
            if isinstance(value, kinds):
                return describe(self, value, where)
        if hasattr(value, "__dict__") and (dataclasses.is_dataclass(value) or callable(value)):
            return self._object(value, where)
        raise ValueError(
            f"The decode function depends on {where}, a {type(value).__name__}, whose content cannot be compared with "
            f"a later one's: pass plain values (numbers, strings, arrays) to it, or set the function's attribute "
            f"{_ATTRIBUTE} to a string that you change whenever its results change."
        )

    def _add(self, *words: str) -> None:
        for word in words:
            encoded = word.encode("utf-8", "surrogatepass")
            self.digest.update(len(encoded).to_bytes(8, "little"))
            self.digest.update(encoded)

    def _function(self, value: types.FunctionType, where: str) -> None:
        if imports.is_installed(value.__code__.co_filename):
            return self._package(value.__module__, value.__qualname__)
        self._add("function", value.__qualname__)
        self._code(value.__code__, value.__globals__, where)
        self.describe(value.__defaults__, f"a default of {where}")
        self.describe(value.__kwdefaults__, f"a default of {where}")
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self.describe(cell.cell_contents, f"{name} in {where}")
        return None

    def _code(self, code: types.CodeType, scope: dict[str, Any], where: str) -> None:
        self._add(
            "code",
            code.co_code.hex(),
            code.co_exceptiontable.hex(),
            str(code.co_flags),
            *code.co_varnames,
            *code.co_names,
        )
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, scope, where)
            else:
                self.describe(constant, f"a constant of {where}")
        for name in code.co_names:
            if name in scope:
                self.describe(scope[name], f"{name} in {where}")
        for wanted in imports.found_in(code):
            self._import(wanted, scope, where)
        by_name = [name for name in imports.BY_NAME if name in code.co_names]
        if by_name and not self._listing:
            raise ValueError(
                f"{where} calls {by_name[0]}, and the module that it imports is unknown until it runs: write an "
                f"import statement, or set the function's attribute {_ATTRIBUTE} to a string that you change whenever "
                "its results change."
            )

    def _import(self, wanted: imports.Import, scope: dict[str, Any], where: str) -> None:
        """Describes what is imported when the code runs: the user's by content, an installed package by its version."""
        self._add("import", str(wanted), *wanted.names)
        try:
            module = wanted.resolve(scope)
            if imports.is_packaged(module):
                return self._add("package", imports.installed_version(module.partition(".")[0]))
            taken = list(imports.load(wanted, module))
        except Exception as error:  # a module of one's own may raise anything
            if isinstance(error, ImportError) and (wanted.may_fail or self._listing):
                return self._add("absent")
            raise ValueError(
                f"{where} imports {wanted}, which fails here ({type(error).__name__}: {error}), so a later change "
                f"of it could not be detected: make it importable before the cache is made, or set the function's "
                f"attribute {_ATTRIBUTE} to a string that you change whenever its results change."
            ) from error
        for name, value in taken:
            self.describe(value, f"{name} in {where}")
        return None

    def _builtin(self, value: Any, where: str) -> None:
        self._package(value.__module__ or type(value).__module__, getattr(value, "__qualname__", value.__name__))
        bound = getattr(value, "__self__", None)
        if not isinstance(bound, types.ModuleType):
            self.describe(bound, f"the object of {where}")

    def _method(self, value: types.MethodType, where: str) -> None:
        self.describe(value.__func__, where)
        self.describe(value.__self__, f"the object of {where}")

    def _partial(self, value: functools.partial, where: str) -> None:
        self._add("partial")
        for part in (value.func, value.args, value.keywords):
            self.describe(part, where)

    def _class(self, value: type, where: str) -> None:
        if imports.is_installed(_file_of(value.__module__)):
            return self._package(value.__module__, value.__qualname__)
        self._add("class", value.__qualname__)
        for name, member in sorted(vars(value).items()):
            if isinstance(member, types.FunctionType) or not name.startswith(("__", "_abc_")):
                self._add(name)
                self._member(member, f"{where}.{name}")
        for base in value.__bases__:
            self.describe(base, where)
        return None

    def _member(self, member: Any, where: str) -> None:
        if isinstance(member, property):
            member = member.fget
        if not isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
            self.describe(getattr(member, "__func__", member), where)

    def _module(self, value: types.ModuleType, where: str) -> None:
        file = _file_of(value.__name__)
        if imports.is_installed(file):
            return self._package(value.__name__, "")
        if not os.path.isfile(file):
            raise ValueError(
                f"The decode function depends on {where}, a module without a file: import what it uses by name."
            )
        with open(file, "rb") as text:
            self._add("module", text.read().hex())
        self._listing += 1
        for name, member in sorted(vars(value).items()):
            if isinstance(member, types.ModuleType | types.FunctionType | type):
                self.describe(member, f"{where}.{name}")
        self._listing -= 1
        return None

    def _sequence(self, value: Any, where: str) -> None:
        self._add(type(value).__name__, str(len(value)))
        for each in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            self.describe(each, where)

    def _mapping(self, value: dict, where: str) -> None:
        self._add("dict", str(len(value)))
        for key, each in value.items():
            self.describe(key, where)
            self.describe(each, f"{where}[{key!r}]")

    def _array(self, value: np.ndarray | np.generic, where: str) -> None:
        if value.dtype.hasobject:
            raise ValueError(f"The decode function depends on {where}, an array of objects: pass numbers.")
        self._add("array", str(value.dtype), str(value.shape), value.tobytes().hex())

    def _dtype(self, value: np.dtype, where: str) -> None:
        self._add("dtype", str(value))

    def _enum(self, value: enum.Enum, where: str) -> None:
        self._add("enum", type(value).__qualname__, value.name, repr(value.value))

    def _object(self, value: Any, where: str) -> None:
        self.describe(type(value), where)
        self._mapping(vars(value), where)

    def _package(self, module: str, name: str) -> None:
        """Describes what is installed by its package's version."""
        self._add("package", module, name, _version(module.partition(".")[0]))


_DESCRIBED: tuple[tuple[Any, Callable[[_Walk, Any, str], None]], ...] = (
    (types.FunctionType, _Walk._function),
    (types.BuiltinFunctionType | types.MethodWrapperType | np.ufunc, _Walk._builtin),
    (types.MethodType, _Walk._method),
    (functools.partial, _Walk._partial),
    (enum.Enum, _Walk._enum),
    (type, _Walk._class),
    (types.ModuleType, _Walk._module),
    (tuple | list | set | frozenset, _Walk._sequence),
    (dict, _Walk._mapping),
    (np.ndarray | np.generic, _Walk._array),
    (np.dtype, _Walk._dtype),
)


def _file_of(module: str) -> str:
    """The file of a module; "" for a user's module without one, such as a notebook."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file or ("<frozen" if module.partition(".")[0] in sys.stdlib_module_names else "")


@functools.cache
def _version(package: str) -> str:
    loaded = sys.modules.get(package)
    version = getattr(loaded, "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # of the standard library, whose version is Python's

"""Which modules a piece of code imports when it runs, as its bytecode tells, and what there is of them."""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
BY_NAME = ("__import__", "import_module")  # import what only a run can tell


class Import(NamedTuple):
    """A statement.

    Attributes:
        module: as it is written, without the dots of a relative one.
        level: how many dots.
        names: that are taken from the module; empty where it is imported itself.
        may_fail: whether it stands in a `try` or a `with`, so that it may be absent.
    """

    module: str
    level: int
    names: tuple[str, ...]
    may_fail: bool

    def __str__(self) -> str:
        return "." * self.level + self.module

    def resolve(self, scope: dict[str, Any]) -> str:
        """The module's full name, for code with these globals.

        Raises:
            ImportError: where it is relative and they belong to no package.
        """
        package = scope.get("__package__")
        if package is None:
            name = str(scope.get("__name__", ""))
            package = name if "__path__" in scope else name.rpartition(".")[0]
        return importlib.util.resolve_name(str(self), package) if self.level else self.module


def found_in(code: types.CodeType) -> Iterator[Import]:
    """The import statements of a piece of code, in order, without those of functions defined in it."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    entries = getattr(dis.Bytecode(code), "exception_entries", ())  # has no word in the documentation of dis
    guarded = [(entry.start, entry.end) for entry in entries]
    for number, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, names = (each.argval for each in steps[number - 2 : number])  # which are put on the stack for it
            may_fail = any(start <= step.offset < end for start, end in guarded)
            yield Import(step.argval, level, tuple(names or ()), may_fail)


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to an installed package, or to Python."""
    return file.startswith(("<frozen", *_INSTALLED))


def is_packaged(module: str) -> bool:
    """Whether a module belongs to an installed package, or to Python; tells it without running any.

    Raises:
        ImportError: where there is none of that name.
    """
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # it is loaded, and nothing has found it, such as __main__
        return is_installed(getattr(sys.modules[top], "__file__", None) or "")
    if spec is None:
        raise ModuleNotFoundError(f"No module named {top!r}")
    file = spec.origin or next(iter(spec.submodule_search_locations or [""]))
    return file in ("built-in", "frozen") or is_installed(file)


def load(wanted: Import, module: str) -> Iterator[tuple[str, Any]]:
    """What a statement brings: the modules on the way to the last one, or the names that are taken from it.

    A folder that is a package without a file brings nothing of its own.

    Raises:
        ImportError: as the statement itself.
    """
    if not wanted.names:
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            loaded = importlib.import_module(name)
            if getattr(loaded, "__file__", None) or not hasattr(loaded, "__path__"):
                yield name, loaded
        return
    loaded = importlib.import_module(module)
    for name in wanted.names:
        if not hasattr(loaded, name):
            importlib.import_module(f"{module}.{name}")
        yield f"{module}.{name}", getattr(loaded, name)


@functools.cache
def installed_version(package: str) -> str:
    """The version of an installed package, whether it is loaded or not; "" for the standard library."""
    if package in sys.stdlib_module_names:
        return ""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = sorted(set(_distributions().get(package, ())))
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


@functools.cache
def _distributions() -> Any:
    """By the names of their modules, as PIL of pillow; looking takes most of a second."""
    return importlib.metadata.packages_distributions()

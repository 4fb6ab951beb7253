"""Which modules a piece of code imports when it runs, according to its bytecode, and what they provide."""

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
BY_NAME = ("__import__", "import_module")  # these import something that only a run can show


class Import(NamedTuple):
    """An import statement.

    Attributes:
        module: as written, without the dots of a relative import.
        level: number of dots.
        names: taken from the module; empty if the module itself is imported.
        may_fail: whether it is inside a `try` or a `with`, so that the module may be missing.
        bound: the names under which the code knows them; for a module itself one name.
        whole: whether a module itself is bound, as by `import a.b as c`, and not the first one on the way to it.
    """

    module: str
    level: int
    names: tuple[str, ...]
    may_fail: bool
    bound: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return "." * self.level + self.module

    def resolve(self, scope: dict[str, Any]) -> str:
        """The module's full name, for code with these globals.

        Raises:
            ImportError: if it is relative and the globals belong to no package.
        """
        package = scope.get("__package__")
        if package is None:
            name = str(scope.get("__name__", ""))
            package = name if "__path__" in scope else name.rpartition(".")[0]
        return importlib.util.resolve_name(str(self), package) if self.level else self.module


def found_in(code: types.CodeType) -> Iterator[Import]:
    """The import statements of a piece of code, in order, without those of functions defined in it."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    entries = getattr(dis.Bytecode(code), "exception_entries", ())  # undocumented in dis
    guarded = [(entry.start, entry.end) for entry in entries]
    for number, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, names = (each.argval for each in steps[number - 2 : number])  # pushed on the stack for it
            may_fail = any(start <= step.offset < end for start, end in guarded)
            after = steps[number + 1 :]
            bound = tuple(each.argval for each in after if each.opname.startswith("STORE_"))[: len(names or " ")]
            yield Import(step.argval, level, tuple(names or ()), may_fail, bound, after[0].opname == "IMPORT_FROM")


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to an installed package, or to Python."""
    return file.startswith(("<frozen", *_INSTALLED))


def is_packaged(module: str) -> bool:
    """Whether a module belongs to an installed package, or to Python; finds out without running any code.

    Raises:
        ImportError: if there is no module of that name.
    """
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # loaded without a finder, such as __main__
        return is_installed(getattr(sys.modules[top], "__file__", None) or "")
    if spec is None:
        raise ModuleNotFoundError(f"No module named {top!r}")
    file = spec.origin or next(iter(spec.submodule_search_locations or [""]))
    return file in ("built-in", "frozen") or is_installed(file)


def load(wanted: Import, module: str) -> Iterator[tuple[str, Any]]:
    """What a statement provides: the modules on the way to the last one, or the names taken from it.

    A folder that is a package without a file provides nothing of its own.

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


def bound_module(wanted: Import, module: str) -> types.ModuleType:
    """The module that a statement without names binds, after `load`."""
    return importlib.import_module(module if wanted.whole else module.partition(".")[0])


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
    """Distributions by the names of their modules, such as PIL of pillow; the search takes most of a second."""
    return importlib.metadata.packages_distributions()

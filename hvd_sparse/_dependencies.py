"""What must be installed before this package, as pip cannot do it; and the error that says so.

Modules are looked for without being imported: `quiet_tensorflow` waits for TensorFlow's import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder

HOW = {
    "tensorflow": "pip install tensorflow==2.21.0, or tensorflow-cpu==2.21.0 on machines without a GPU",
    "horovod.tensorflow": (
        "run `make install PYTHON=ENV/bin/python` in hvd_sparse's source, or `tools/horovod/build_wheel.sh "
        "ENV/bin/python` there, which compiles Horovod for the TensorFlow of that environment"
    ),
}


def missing() -> dict[str, str]:
    """The modules that Python does not find, and how to get each."""
    return {name: how for name, how in HOW.items() if name not in sys.modules and _found(name) is None}


def require() -> None:
    """Raises an error if one is missing.

    Raises:
        ImportError: naming what is missing and how to get it.
    """
    for name, how in missing().items():
        taken = _instead(name)
        if taken:
            how = f"start the script as a module (python -m ...), or take the folder of {taken} from Python's path"
        reason = f"but Python finds {taken} by this name" if taken else "which Python does not find"
        raise ImportError(f"hvd_sparse needs {name}, {reason}: {how}.", name=name)


def _found(name: str) -> ModuleSpec | None:
    """Where a module is, if it is in one of the folders that Python searches."""
    folders: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = PathFinder.find_spec(".".join(parts[:depth]), folders)
        if parent is None or not parent.submodule_search_locations:
            return None
        folders = list(parent.submodule_search_locations)
    return PathFinder.find_spec(name, folders)


def _instead(name: str) -> str | None:
    """The folder that hides a package because it has the same name, as one beside a script can."""
    parent = _found(name.partition(".")[0])
    return None if parent is None else next(iter(parent.submodule_search_locations or ()), None)

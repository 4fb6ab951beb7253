"""Sources whose operations are not compiled raise an error when imported, not when the first operation is called.

A script that is started in the folder of the sources imports this package from there, even if it is installed
elsewhere.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

_LIBRARY = Path(__file__).with_name("_ops.so")


def check() -> None:
    """Raises an error if the operations of this folder are not compiled.

    Raises:
        ImportError: naming the folder, another one in which the package is installed, and what to do.
    """
    if _LIBRARY.exists():
        return
    elsewhere = _installed()
    way_out = f", or start the script from another folder: hvd_sparse is installed in {elsewhere}" if elsewhere else ""
    raise ImportError(
        f"hvd_sparse was imported from {_LIBRARY.parent.parent}, where its operations are not compiled ({_LIBRARY} is "
        "missing): run `make build` there, or `make install PYTHON=ENV/bin/python` to install it into your own "
        f"environment{way_out}."
    )


def _installed() -> Path | None:
    """The folder of a compiled installation."""
    for found in importlib.metadata.distributions(name="hvd-sparse"):
        library = Path(str(found.locate_file("hvd_sparse/_ops.so")))
        if library.exists():
            return library.parent.parent
    return None

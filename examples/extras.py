"""Packages that only the examples use; `pip install '.[examples]'` installs them."""

from __future__ import annotations

import importlib
from types import ModuleType

NAMES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # where a package is not installed under the name of its module


def need(module: str) -> ModuleType:
    """Imports a module.

    Raises:
        ModuleNotFoundError: if its package is not installed, naming it and what to do.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"This example uses {NAMES.get(package, package)}, which is not installed: run `pip install '.[examples]'` "
            "in the checkout, which installs what the examples use.",
            name=package,
        ) from None
    return importlib.import_module(module)

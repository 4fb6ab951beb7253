"""Fingerprints of stored runs, by the code of their sources without comments, docstrings and layout.

As only code is hashed, an edited docstring does not make a day of trainings invalid.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def code_of(path: pathlib.Path) -> bytes:
    """The code of a Python file as `ast.unparse` writes it, without comments and docstrings.

    Args:
        path: the file; it is read once per process.
    """
    tree = ast.parse(path.read_text(encoding="utf8"))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree).encode()


def fingerprint_of(described: Any, sources: Iterable[str]) -> str:
    """A hash that identifies a run: 16 hexadecimal digits.

    Args:
        described: what determines the run beside the sources, as JSON takes it.
        sources: Python files that determine it, relative to the repository's root.
    """
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sources:
        digest.update(code_of(ROOT / name))
    return digest.hexdigest()[:16]

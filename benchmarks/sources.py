"""The code of source files without what does not change a run: comments, docstrings and layout.

Stored runs are identified by a hash of the sources that determine them. Hashing code only, an edited docstring does not
make a day of trainings invalid.
"""

from __future__ import annotations

import ast
import functools
import pathlib

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

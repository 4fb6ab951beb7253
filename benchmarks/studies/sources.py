"""Fingerprints of stored runs, by the code of their sources without what cannot change an outcome.

That is comments, docstrings, layout, imports, and what errors say: a day of trainings stays valid when a docstring is
edited or a module moves.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTING = ("extras.need", "importlib.import_module")


class Identity(NamedTuple):
    """What a fingerprint stands for: see `fingerprint_of`."""

    described: Any
    sources: tuple[str, ...]


_known: dict[str, Identity] = {}


@functools.cache
def code_of(path: pathlib.Path) -> bytes:
    """The code of a Python file as `ast.unparse` writes it, without what cannot change an outcome.

    Args:
        path: the file; it is read once per process.
    """
    tree = _Bare().visit(ast.parse(path.read_text(encoding="utf8")))
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, imports, and the arguments of errors."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        if isinstance(node, _DOCUMENTED):
            node.body = [each for each in node.body if not _imports(each)] or [ast.Pass()]
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return ast.Raise(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)


def _imports(node: ast.stmt) -> bool:
    called = node.value if isinstance(node, ast.Assign) else None
    by_call = isinstance(called, ast.Call) and ast.unparse(called.func) in _IMPORTING
    return by_call or isinstance(node, ast.Import | ast.ImportFrom)


def fingerprint_of(described: Any, sources: Iterable[str], root: pathlib.Path = ROOT) -> str:
    """A hash that identifies a run: 16 hexadecimal digits.

    Args:
        described: what determines the run beside the sources, as JSON takes it.
        sources: Python files that determine it, relative to the root.
        root: of the tree that has them.
    """
    identity = Identity(described, tuple(sources))
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in identity.sources:
        digest.update(code_of(root / name))
    _known[digest.hexdigest()[:16]] = identity
    return digest.hexdigest()[:16]


def identity_of(fingerprint: str) -> Identity:
    """What a fingerprint stands for that this process has computed."""
    return _known[fingerprint]

"""Files that are kept between runs; they are replaced as a whole, so that they are never incomplete."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any


def read(path: pathlib.Path) -> dict[str, Any]:
    """The contents of a file; empty if there is none."""
    return json.loads(path.read_text(encoding="utf8")) if path.exists() else {}


def write(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes a file under a temporary name and renames it when it is complete."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text in the same way as `write`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.{path.name}")
    part.write_text(text, encoding="utf8")
    part.replace(path)

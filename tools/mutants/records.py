"""What is kept between runs: files that are whole whenever they are there."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any


def read(path: pathlib.Path) -> dict[str, Any]:
    """What a file holds; nothing where there is none."""
    return json.loads(path.read_text(encoding="utf8")) if path.exists() else {}


def write(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes a file, which gets its name when it is whole."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text as `write` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.{path.name}")
    part.write_text(text, encoding="utf8")
    part.replace(path)

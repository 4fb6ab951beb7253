"""Files of measured figures, changed so that the recipe that auto chooses is known."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from hvd_sparse.tuning.cache import CACHE_VARIABLE


@contextlib.contextmanager
def kept_in(folder: pathlib.Path) -> Iterator[None]:
    """Lets measurements be kept in a folder."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before


def read(folder: pathlib.Path) -> dict[str, Any]:
    """What the only file in a folder holds."""
    (path,) = (folder / "clusters").iterdir()
    return json.loads(path.read_text())


def copy(source: pathlib.Path, target: pathlib.Path, change: Callable[[dict[str, Any]], Any] | None = None) -> None:
    """Copies the only file in a folder to another folder, changed in place or to what `change` returns."""
    (path,) = (source / "clusters").iterdir()
    content = json.loads(path.read_text())
    changed = change(content) if change else None
    (target / "clusters").mkdir(parents=True)
    text = changed if isinstance(changed, str) else json.dumps(content if changed is None else changed)
    (target / "clusters" / path.name).write_text(text)


def trials_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The times of trials in a cache, by vector."""
    return [figures for subject, figures in content["figures"].items() if subject != "cluster"]


def won_by(winner: str, *others: str) -> Callable[[dict[str, Any]], None]:
    """A change after which one recipe was the faster of those that were tried, for every vector."""

    def change(content: dict[str, Any]) -> None:
        for figures in trials_of(content):
            figures["seconds"] = {name: [2.0] * 5 for name in others} | {winner: [1.0] * 5}
            figures["sent"] = dict.fromkeys(figures["seconds"], 1e6)

    return change

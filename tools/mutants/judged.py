"""Which tests saw which fault, kept in the repository so that a stopped run can resume, even on another machine."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from tools.mutants import records
from tools.mutants.faults import Fault
from tools.mutants.judging import EQUAL, LATER

_KEPT = ("seen by", "test", "seconds")


class Judged:
    """The records of faults; a record is dropped once the text of its file has changed.

    Args:
        root: root of the repository.
        path: a file of JSON lines, one per fault; it is replaced as a whole, so it is never incomplete.
    """

    def __init__(self, root: pathlib.Path, path: pathlib.Path):
        self._root, self._path = root, path
        lines = path.read_text(encoding="utf8").splitlines() if path.exists() else []
        self._lines = {line["key"]: line for line in map(json.loads, lines)}

    def of(self, faults: Iterable[Fault]) -> dict[str, Any]:
        """The existing records of these faults, by key."""
        found = {}
        for fault in faults:
            line, text = self._lines.get(fault.key), self._text(fault)
            if line is not None and line["of"] == _digest(text):
                found[fault.key] = {**fault.told(text), **{name: line[name] for name in _KEPT}}
        return found

    def add(self, fault: Fault, record: dict[str, Any]) -> None:
        """Writes a record, except one that is made anew each time: of an equal program, or judged `LATER`."""
        if record["seen by"] in (EQUAL, LATER):
            return
        kept = {name: record[name] for name in _KEPT}
        told = {"fault": f"{fault.path}: {fault.name}", "key": fault.key, "of": _digest(self._text(fault))}
        self._lines[fault.key] = {**told, **kept}
        lines = sorted(json.dumps(line) for line in self._lines.values())
        records.write_text(self._path, "".join(f"{line}\n" for line in lines))

    def _text(self, fault: Fault) -> str:
        return (self._root / fault.path).read_text(encoding="utf8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""The store of a study's finished runs: a line of a file in the repository for each, by its fingerprint.

So an interrupted study can be resumed, here or on another machine. A run is a dataclass with `fingerprint()`, of which
a run with other settings or sources has another one.
"""

from __future__ import annotations

import fcntl
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Make = Callable[[Sequence[Any], pathlib.Path], None]  # makes runs and adds them to a store


def load(store: pathlib.Path, wanted: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """The outcomes of the wanted runs that are in the store; a truncated line is ignored."""
    kept = {}
    for line in store.read_text(encoding="utf8").splitlines(keepends=True) if store.exists() else []:
        if line.endswith("\n"):
            outcome = json.loads(line)
            kept[outcome["fingerprint"]] = outcome
    prints = {run: run.fingerprint() for run in wanted}
    return {run: kept[each] for run, each in prints.items() if each in kept}


def append(store: pathlib.Path, outcome: dict[str, Any]) -> None:
    """Adds a finished run in one write, after removing a truncated line. Processes take turns."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with open(store, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(json.dumps(outcome, sort_keys=True).encode() + b"\n")


def finished(wanted: Sequence[Any], store: pathlib.Path, make: Make | None) -> dict[Any, dict[str, Any]]:
    """The outcomes of all wanted runs, made if missing in the store; without `make` only those in the store."""
    found = load(store, wanted)
    missing = [run for run in wanted if run not in found]
    print(f"{len(wanted)} runs, {len(missing)} of them {'to be made' if make else 'missing'}", flush=True)
    if missing and make is not None:
        began = time.perf_counter()
        make(missing, store)
        print(f"{len(missing)} runs took {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
        found = load(store, wanted)
    return found

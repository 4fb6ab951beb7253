"""Gives stored runs the fingerprints of today's sources, where these determine the same runs as those of a commit.

    python -m benchmarks.studies.adopt COMMIT             says how many runs of each study can be adopted
    python -m benchmarks.studies.adopt COMMIT --write     and stamps them
    python -m benchmarks.studies.adopt COMMIT --moved examples/b.py=examples/a.py     where a.py is b.py today

A stored run is adopted if its fingerprint is the one that the commit gives it, computed by the commit's own
`sources.py` on its sources, and if today's fingerprint is the same on both trees. Runs whose sources
differ have to be made again; a difference without effect is shown by making one of them and comparing.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import importlib.util
import json
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks.averaging import runs as averaging_runs
from benchmarks.convergence import runs as convergence_runs
from benchmarks.dct import quality as dct_quality
from benchmarks.dct import translation as dct_translation
from benchmarks.dropping import runs as dropping_runs
from benchmarks.reporting import writing
from benchmarks.studies import sources
from examples.recommenders import index


class Study(NamedTuple):
    """A file of runs, and the fingerprint of a row by today's sources; None if the run is none of today's."""

    store: pathlib.Path
    fingerprint: Callable[[Mapping[str, Any]], str | None]


def _of(run: Any) -> Callable[[Mapping[str, Any]], str | None]:
    """The fingerprint of a row with the fields of a dataclass."""

    def fingerprint(row: Mapping[str, Any]) -> str | None:
        given = {field.name: row[field.name] for field in dataclasses.fields(run) if field.name in row}
        if "cluster" in given:
            given["cluster"] = convergence_runs.Cluster(**given["cluster"])
        try:
            return run(**given).fingerprint()
        except KeyError:  # an arm or a model that there is no more
            return None

    return fingerprint


def _of_dct(row: Mapping[str, Any]) -> str | None:
    arms, digest = {arm.name: arm for arm in dct_quality.ARMS}, _digest_of_the_index()
    return arms[row["arm"]].fingerprint(digest, row["seed"]) if digest and row["arm"] in arms else None


@functools.cache
def _digest_of_the_index() -> str | None:
    """The digest of this machine's package index, which these runs are trained on; None if there is none."""
    try:
        return index.read().digest
    except RuntimeError:
        return None


STUDIES = {
    "averaging": Study(averaging_runs.STORE, _of(averaging_runs.Run)),
    "convergence": Study(convergence_runs.STORE, _of(convergence_runs.Run)),
    "dct": Study(dct_quality.STORE, _of_dct),
    "dct_translation": Study(dct_translation.STORE, _of(dct_translation.Run)),
    "dropping": Study(dropping_runs.STORE, _of(dropping_runs.Run)),
}


class Tree(NamedTuple):
    """A commit's files, its own way to make fingerprints, and the names that today's sources have there."""

    root: pathlib.Path
    own: ModuleType
    names: Mapping[str, str]

    def adopts(self, stored: str, now: str) -> bool:
        """Whether a stored run is the commit's, and determined by the same as the one of this fingerprint today."""
        described, files = sources.identity_of(now)
        there = [self.names.get(file, file) for file in files]
        if not all((self.root / file).exists() for file in there):
            return False
        same = sources.fingerprint_of(described, there, self.root) == now
        return same and self.own.fingerprint_of(described, there) == stored


def tree(folder: pathlib.Path, names: Mapping[str, str] = {}) -> Tree:
    """The tree in a folder."""
    (own_sources,) = (folder / "benchmarks").glob("**/sources.py")
    spec = importlib.util.spec_from_file_location("sources_of_the_commit", own_sources)
    assert spec is not None and spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    return Tree(folder, own, names)


def adopt(rows: Sequence[Mapping[str, Any]], study: Study, commit: Tree) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows with today's fingerprints where they can be adopted, and how many there are of each kind."""
    made, kinds = [], collections.Counter({"current": 0, "adopted": 0, "stale": 0})
    for row in rows:
        now = study.fingerprint(row)
        if now == row["fingerprint"]:
            kind = "current"
        else:
            kind = "adopted" if now is not None and commit.adopts(row["fingerprint"], now) else "stale"
        kinds[kind] += 1
        made.append({**row, "fingerprint": now} if kind == "adopted" else dict(row))
    return made, dict(kinds)


def write(store: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replaces a store."""
    writing.replace(store, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit whose fingerprints the stored runs have")
    parser.add_argument("--write", action="store_true", help="stamp what can be adopted")
    parser.add_argument(
        "--moved", action="append", default=[], metavar="NOW=THEN", help="a source that had another path"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", options.commit], cwd=sources.ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        commit = tree(pathlib.Path(folder), dict(each.split("=", 1) for each in options.moved))
        for name, study in STUDIES.items():
            rows = [json.loads(line) for line in study.store.read_text(encoding="utf8").splitlines()]
            made, kinds = adopt(rows, study, commit)
            print(f"{name}: {len(rows)} runs, {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
            if options.write and kinds["adopted"]:
                write(study.store, made)


if __name__ == "__main__":
    main()

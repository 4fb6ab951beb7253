"""The processor time of the tests: that of each file, by tier, as measured in the last run and as budgeted.

Each run of pytest writes one record for each tier whose tests it ran, `results/tests/quick.json` and
`results/tests/thorough.json`; `tests/budget.json` holds the files of both tiers and is committed.

    python -m tests.budget            compares the records of the last runs with the budget; status 1 if they exceed it
    python -m tests.budget --renew    makes the records of the last runs the new budget of their tiers
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
COMMITTED = ROOT / "tests" / "budget.json"
RECORDS = ROOT / "results" / "tests"
TIERS = ("quick", "thorough")
PARTS = ("files", "functions", "cases")
SHOWN = 30
MORE = 1.25  # a file exceeds its budget by this factor and at least SECONDS; machines and runs differ
SECONDS = 10.0


class Spent:
    """Processor seconds: `tiers` maps a tier to "files", "functions" and multi-rank "cases", each a map by name."""

    def __init__(self, tiers: Mapping[str, Any] = {}):
        self.tiers: dict[str, dict[str, dict[str, float]]] = {}
        self.update(tiers)

    def _of(self, tier: str) -> dict[str, dict[str, float]]:
        return self.tiers.setdefault(tier, {part: {} for part in PARTS})

    def add(self, tier: str, function: str, seconds: float) -> None:
        """Adds the seconds of one test of a function."""
        for part, name in (("files", function.partition("::")[0]), ("functions", function)):
            self._of(tier)[part][name] = self._of(tier)[part].get(name, 0.0) + seconds

    def add_case(self, tier: str, case: str, seconds: float) -> None:
        """Records a multi-rank case's share of its launch; the launch is already counted with its file."""
        self._of(tier)["cases"][case] = seconds

    def update(self, tiers: Mapping[str, Any]) -> None:
        """Adds what another process has counted."""
        for tier, parts in tiers.items():
            for part, times in parts.items():
                own = self._of(tier)[part]
                for name, seconds in times.items():
                    own[name] = seconds if part == "cases" else own.get(name, 0.0) + seconds

    def total(self, tier: str | None = None) -> float:
        """The total of one tier, or of all."""
        return sum(sum(parts["files"].values()) for name, parts in self.tiers.items() if tier in (None, name))

    def of_file(self, file: str) -> float:
        """The total of a file over all tiers; 0 for an unknown file."""
        return sum(parts["files"].get(file, 0.0) for parts in self.tiers.values())

    def told(self) -> Iterator[str]:
        """Lines with the totals and with what took longest."""
        for tier, parts in self.tiers.items():
            yield f"{self.total(tier):7.0f} s  all that is {tier}, of it"
            for part, title in (("files", ""), ("cases", "multi-rank case ")):
                for name, seconds in _most(parts[part]):
                    if seconds >= 1:
                        yield f"{seconds:7.0f} s  {title}{name}"

    def write(self, folder: pathlib.Path) -> None:
        """Writes a record for each tier that has any times."""
        folder.mkdir(parents=True, exist_ok=True)
        for tier, parts in self.tiers.items():
            _write(folder / f"{tier}.json", {tier: parts})

    @classmethod
    def read(cls, *paths: pathlib.Path) -> Spent:
        """Reads files; a missing file counts as empty."""
        spent = cls()
        for path in paths:
            if path.exists():
                spent.update(json.loads(path.read_text())["tiers"])
        return spent


def _most(times: Mapping[str, float]) -> list[tuple[str, float]]:
    return collections.Counter(times).most_common(SHOWN)


def _write(path: pathlib.Path, tiers: Mapping[str, Any]) -> None:
    rounded = {
        tier: {
            part: {name: round(seconds, 1) for name, seconds in sorted(times.items())} for part, times in kept.items()
        }
        for tier, kept in tiers.items()
    }
    record = {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "tiers": rounded}
    path.write_text(json.dumps(record, indent=1) + "\n")


def exceeded(run: Spent, budget: Spent) -> list[str]:
    """One line for each file that exceeded its budget in a run; files that did not run are left out."""
    lines = []
    for tier, parts in run.tiers.items():
        allowed = budget.tiers.get(tier, {}).get("files", {})
        for file, seconds in parts["files"].items():
            if seconds > MORE * allowed.get(file, 0.0) + SECONDS:
                lines.append(
                    f"{file}, {tier}: {seconds:.0f} s of processor time where {allowed.get(file, 0.0):.0f} s are agreed"
                )
    return sorted(lines)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Compares the processor time of the last runs with the budget.")
    parser.add_argument("--renew", action="store_true", help="make the records of the last runs the budget")
    options = parser.parse_args()
    paths = [RECORDS / f"{tier}.json" for tier in TIERS]
    missing = [path.name for path in paths if not path.exists()]
    if len(missing) == len(paths):
        sys.exit(f"There is no record {' and '.join(missing)} in {RECORDS}: run `make test-all` before.")
    run, budget = Spent.read(*paths), Spent.read(COMMITTED)
    if options.renew:
        renewed = {**budget.tiers, **run.tiers}
        _write(COMMITTED, {tier: {"files": parts["files"]} for tier, parts in renewed.items()})
        return
    for tier in run.tiers:
        print(f"{tier}: {run.total(tier):.0f} s of processor time; the budget is {budget.total(tier):.0f} s.")
    lines = exceeded(run, budget)
    print("\n".join(lines or ["No file takes much more than its budget."]))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()

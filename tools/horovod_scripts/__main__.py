"""The command line: which source, which scripts, on how many ranks, and where to write the report."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import hvd_sparse
from tools.horovod_scripts import report, running
from tools.horovod_scripts.changes import Applied
from tools.horovod_scripts.scripts import SCRIPTS, TESTS, Script, Tests
from tools.horovod_scripts.source import Source

COMMAND = "python -m tools.horovod_scripts --source CHECKOUT --report docs/horovod_scripts.md"


def main() -> int:
    """Runs what was selected; returns 1 if there is a failure for which `reasons.py` has no sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, type=pathlib.Path, help="checkout or archive of Horovod")
    parser.add_argument(
        "--np", nargs="+", type=int, default=[2, 4], metavar="RANKS", help="numbers of ranks (default: 2 4)"
    )
    parser.add_argument("--only", default="", help="run only scripts and tests whose path contains this")
    parser.add_argument("--report", type=pathlib.Path, help="write the report here, as Markdown")
    parser.add_argument("--results", type=pathlib.Path, help="JSON file of results; further runs add to it")
    options = parser.parse_args()
    results = report.load(options.results) if options.results else {"scripts": {}, "tests": {}}
    with tempfile.TemporaryDirectory(prefix="horovod_source.") as unpacked:
        source = Source(options.source, pathlib.Path(unpacked))
        results["version"] = source.version
        results["with"] = f"hvd_sparse {hvd_sparse.__version__}, TensorFlow {_tensorflow()}, Keras {version('keras')}"
        results["date"] = datetime.date.today().isoformat()
        for kind, path, ranks, outcomes, changes in _run_all(source, options):
            item = results[kind].setdefault(path, {"changes": [], "ranks": {}})
            item["changes"] = [dataclasses.asdict(change) for change in changes]
            item["ranks"][str(ranks)] = {name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}
            if options.results:
                options.results.write_text(json.dumps(results, indent=1))
    if options.report:
        options.report.write_text(report.write(results, COMMAND), encoding="utf8")
    missing = report.unexplained(results)
    if missing:
        print("failed without a known reason in reasons.py:", *missing, sep="\n  ", file=sys.stderr)
    return 1 if missing else 0


def _run_all(source: Source, options: Any) -> Iterator[tuple[str, str, int, dict[str, running.Outcome], list[Applied]]]:
    """Yields kind, path, ranks, outcomes by name and changes of everything selected, one launch after another."""
    work: list[Script | Tests] = [each for each in (*SCRIPTS, *TESTS) if options.only in each.path]
    for item in work:
        for ranks in options.np:
            if isinstance(item, Script):
                outcome, changes = running.run_script(item, source, ranks)
                outcomes, kind = {item.path: outcome}, "scripts"
            else:
                outcomes, changes = running.run_tests(item, source, ranks)
                kind = "tests"
            ways = [outcome.outcome for outcome in outcomes.values()]
            counts = ", ".join(f"{ways.count(way)} {way}" for way in dict.fromkeys(ways)) or "absent"
            print(f"{item.path}, {ranks} ranks: {counts}", flush=True)
            for name, outcome in outcomes.items():
                if outcome.outcome == "failed":
                    print(f"  {name}: {outcome.text.strip()[-600:]}", flush=True)
            yield kind, item.path, ranks, outcomes, changes


def _tensorflow() -> str:
    import tensorflow as tf

    return tf.__version__


if __name__ == "__main__":
    sys.exit(main())

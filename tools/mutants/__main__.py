"""The command line: which faults to plant, how many at a time, and where the results go."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import signal
import sys
from collections.abc import Iterable
from typing import Any

from tools.mutants import copies, equal, planting, report
from tools.mutants.baseline import Baseline
from tools.mutants.faults import Fault
from tools.mutants.judged import Judged
from tools.mutants.judging import EQUAL, LATER, NOBODY, TEST_ALL, Judge, judge_of
from tools.mutants.listed import LISTED
from tools.mutants.listed_native import NATIVE

ROOT = pathlib.Path(__file__).parents[2]
STORE = ROOT / "tools" / "mutants" / "judged.jsonl"
BASELINE = ROOT / "results" / "mutants" / "baseline.json"  # this machine's baseline
JOBS = 2


def main() -> int:
    """Judges the faults that have no record yet; returns 1 if the tests see too few of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="random seed of the drawn faults (default: 1)")
    parser.add_argument("--draw", type=int, default=40, metavar="N", help="number of faults to draw (default: 40)")
    parser.add_argument("--of", nargs="+", metavar="MODULES", help="draw only from these, as 'hvd_sparse/keras/*'")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"number of faults to judge at a time (default: {JOBS})")
    parser.add_argument("--only", default="", metavar="NAME", help="only faults whose name or room contains this")
    parser.add_argument(
        "--own", action="store_true", help="run only the rooms' own tests; the faults they miss are not recorded"
    )
    parser.add_argument("--again", action="store_true", help="judge again the faults that make test missed")
    parser.add_argument("--fresh", action="store_true", help="judge all faults again, even those with a record")
    parser.add_argument("--list", action="store_true", help="only list the faults to plant, and the results so far")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # cleans up child processes, as Ctrl-C does
    store = Judged(ROOT, STORE)
    if options.of:
        faults = planting.draw(ROOT, options.seed, options.draw, options.of)
    else:
        faults = [*LISTED, *NATIVE, *planting.draw(ROOT, options.seed, options.draw)]
    known = {} if options.fresh else store.of(faults)
    faults = [fault for fault in faults if options.only in fault.name or options.only in fault.room]
    if options.again:
        known = {key: record for key, record in known.items() if record["seen by"] not in (TEST_ALL, NOBODY)}
    if options.list:
        return told([known[fault.key] for fault in faults if fault.key in known], faults)
    tiers = json.loads((ROOT / "tests/budget.json").read_text())["tiers"]
    costs = {tier: parts["files"] for tier, parts in tiers.items()}
    judge = judge_of(ROOT, costs, Baseline(ROOT, BASELINE), options.own)
    records = judge_all(faults, known, judge, store, options.jobs)
    return told([record for record in records if record["seen by"] != LATER], ())


def judge_all(
    faults: Iterable[Fault], known: dict[str, Any], judge: Judge, store: Judged, jobs: int
) -> list[dict[str, Any]]:
    """The records of faults; each new one is written at once, so that a stopped run can resume."""
    faults = list(faults)
    new = [fault for fault in faults if fault.key not in known]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_record, fault, judge): fault for fault in new}
        try:
            for done in concurrent.futures.as_completed(running):
                fault, record = running[done], done.result()
                known[fault.key] = record
                store.add(fault, record)
                place = f"{sum(each.key in known for each in faults)}/{len(faults)}"
                print(f"{place} {fault.name}: {record['seen by']} {record['test']}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            copies.end_processes()  # otherwise a stopped run would continue to the end of its tests
            raise
    return [known[fault.key] for fault in faults]


def _record(fault: Fault, judge: Judge) -> dict[str, Any]:
    reason = equal.reason(fault)
    if reason is None:
        return judge(fault)
    return {"name": fault.name, "room": fault.room, "seen by": EQUAL, "test": "", "reason": reason}


def told(found: list[dict[str, Any]], faults: Iterable[Fault]) -> int:
    """Prints the faults and the table; returns the exit status."""
    for fault in faults:
        print(f"{fault.room}: {fault.name}\n{fault.difference((ROOT / fault.path).read_text())}")
    print(*report.lines(found), sep="\n")
    return 0 if report.is_enough(found) else 1


if __name__ == "__main__":
    sys.exit(main())

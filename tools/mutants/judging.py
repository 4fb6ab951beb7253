"""Which tests see a fault: the room's own, the other quick ones, or the thorough ones; stops at the first that do."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tools.mutants import copies, rooms
from tools.mutants.baseline import Baseline
from tools.mutants.faults import Fault
from tools.mutants.rooms import ROOMS, Room
from tools.mutants.running import run_tests

OWN, TEST, TEST_ALL, NOBODY, EQUAL = "own tests", "make test", "make test-all", "nobody", "equal"
LATER = "not yet told"
LEAST, TIMES = 180.0, 5.0  # a run is a hang after LEAST seconds plus TIMES its duration without a fault


class Stage(NamedTuple):
    """Some of the tests, and the name under which a fault counts as seen if they fail."""

    seer: str
    tier: str
    files: list[str]


def stages(root: pathlib.Path, room: Room, costs: Mapping[str, Mapping[str, float]]) -> list[Stage]:
    """The stages in order; each runs its cheapest files first, by the budget of the tests."""
    own, others = rooms.own_tests(root, room), rooms.other_tests(root, room)
    quick = [(OWN, "quick", own), (TEST, "quick", others)]
    planned = [*quick, (TEST_ALL, "thorough", own), (TEST_ALL, "thorough", others)]
    return [Stage(seer, tier, _cheapest_first(files, costs.get(tier, {}))) for seer, tier, files in planned if files]


def _cheapest_first(files: Sequence[str], costs: Mapping[str, float]) -> list[str]:
    return sorted(files, key=lambda file: (costs.get(file, 0.0), file))


def judge(root: pathlib.Path, fault: Fault, planned: Sequence[Stage], baseline: Baseline) -> dict[str, Any]:
    """The record of a fault: which tests saw it, the test that failed, seconds per stage, and the lines that differ."""
    record = fault.told((root / fault.path).read_text(encoding="utf8"))
    with copies.made(root) as copy:
        copy.check_imports()
        refused = copy.plant(fault)
        if refused is not None:
            raise RuntimeError(f"{fault.name} does not compile: choose another replacement.\n{refused}")
        seen_by, test, seconds = _seen_by(copy, planned, baseline)
    return {**record, "seen by": seen_by, "test": test, "seconds": seconds}


def _seen_by(copy: copies.Copy, planned: Sequence[Stage], baseline: Baseline) -> tuple[str, str, list[float]]:
    seconds = []
    for stage in planned:
        known = baseline.of(stage.tier, stage.files)
        limit = LEAST + TIMES * sum(each["seconds"] for each in known.values())
        left_out = [name for each in known.values() for name in each["failed"]]
        started = time.monotonic()
        seen = _first_failure(copy, stage, limit, left_out)
        seconds.append(round(time.monotonic() - started, 1))
        if seen:
            return stage.seer, seen, seconds
    return NOBODY, "", seconds


def _first_failure(copy: copies.Copy, stage: Stage, limit: float, left_out: Sequence[str]) -> str:
    """The first test that fails, and fails again when run alone: otherwise the busy machine may have been the cause."""
    files, left_out = stage.files, list(left_out)
    while True:
        ran = run_tests(copy, stage.tier, files, limit, left_out)
        if not ran.failed:
            return ran.seen
        name = ran.failed[0]
        if run_tests(copy, stage.tier, [name], limit).seen:
            return name
        left_out.append(name)
        files = files[files.index(name.partition("::")[0]) :]


Judge = Callable[[Fault], dict[str, Any]]


def judge_of(
    root: pathlib.Path, costs: Mapping[str, Mapping[str, float]], baseline: Baseline, own_alone: bool = False
) -> Judge:
    """`judge` for faults of all rooms; with `own_alone`, runs only a room's quick tests and marks others `LATER`."""

    def judged(fault: Fault) -> dict[str, Any]:
        planned = stages(root, ROOMS[fault.room], costs)
        if not own_alone:
            return judge(root, fault, planned, baseline)
        record = judge(root, fault, [stage for stage in planned if stage.seer == OWN], baseline)
        return {**record, "seen by": LATER} if record["seen by"] == NOBODY else record

    return judged

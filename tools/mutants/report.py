"""The table of results, and the faults that no test saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tools.mutants.judging import EQUAL, NOBODY, OWN, TEST, TEST_ALL

WANTED_OF_TEST, WANTED_OF_ALL = 0.90, 1.0
COLUMNS = (OWN, TEST, TEST_ALL)  # each includes the tests of those before it


def shares(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of faults, equal programs excluded, that each of `COLUMNS` sees; 1 if there are none."""
    by = [record["seen by"] for record in records if record["seen by"] != EQUAL]
    seers = [COLUMNS[: number + 1] for number in range(len(COLUMNS))]
    return {own[-1]: sum(each in own for each in by) / len(by) if by else 1.0 for own in seers}


def is_enough(records: Sequence[dict[str, Any]]) -> bool:
    """Whether both tiers see the required share."""
    seen = shares(records)
    return seen[TEST] >= WANTED_OF_TEST and seen[TEST_ALL] >= WANTED_OF_ALL


def lines(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table by room, the shares, and each fault that `make test` does not see."""
    yield f"{'room':20}{'planted':>9}{'equal':>7}" + "".join(f"{name:>15}" for name in COLUMNS) + f"{'survive':>9}"
    for room in [*dict.fromkeys(record["room"] for record in records), "all"]:
        own = [record["seen by"] for record in records if room in (record["room"], "all")]
        counts = [sum(each in COLUMNS[: number + 1] for each in own) for number in range(len(COLUMNS))]
        counted = "".join(f"{count:15}" for count in counts)
        yield f"{room:20}{len(own):9}{own.count(EQUAL):7}{counted}{own.count(NOBODY):9}"
    told = ", ".join(f"{name} sees {share:.1%}" for name, share in shares(records).items())
    yield f"{told}; required: {WANTED_OF_TEST:.0%} by make test, {WANTED_OF_ALL:.0%} by make test-all."
    for record in records:
        if record["seen by"] in (TEST_ALL, NOBODY):
            yield from ("", f"{record['place']} ({record['name']}) is seen by {record['seen by']} {record['test']}")
            yield record["difference"]

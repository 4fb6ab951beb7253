"""What changes of the ranks cost: the arithmetic on what ranks have written, the tables, and a small run for real."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.elastic import changes, costs, goodput, recovery, small
from benchmarks.elastic.changes import DEATH, JOIN, REMOVAL, Change
from benchmarks.reporting import writing

STAYS, GOES = "127.0.1.2", "127.0.1.3"


def event(time, kind, host=STAYS, **more):
    return {"time": time, "event": kind, "host": host, "pid": 1 if host == STAYS else 2, **more}


def steps(begin, count, each, size, first, host=STAYS):
    """Events of steps, the first one after `each` seconds, with the number `first`."""
    return [event(begin + each * (n + 1), "step", host, size=size, batch=first + n) for n in range(count)]


def change(kind, at=100.0, again=2.0, noticed=None, called=1.0, retrace=0.5, imported=None, paused=2.0):
    return Change(kind, at, again, noticed, called, retrace, imported, paused)


def test_the_parts_of_a_death():
    before = [event(0, "imported"), *steps(0, 10, 0.1, 2, 1)]  # to 1.0
    after = [event(1.5, "trains", size=1), event(3.0, "step", size=1, batch=10), *steps(3.0, 12, 0.1, 1, 11)]
    found = changes.change_of([*before, *after], DEATH, 1.05, 1, STAYS)
    assert (found.again, found.called) == (pytest.approx(1.95), pytest.approx(0.45))
    assert found.retrace == pytest.approx(1.4) and found.paused == pytest.approx(2.0)
    assert found.noticed is None and found.imported is None


def test_the_parts_of_a_join():
    before = [event(0, "imported"), *steps(0, 50, 0.1, 1, 1)]  # to 5.0, past the notice
    new = [event(6.0, "imported", GOES), event(6.5, "trains", GOES, size=2), *steps(6.5, 12, 0.2, 2, 51, GOES)]
    stays = [event(1.5, "noticed"), event(6.5, "trains", size=2), *steps(6.5, 12, 0.2, 2, 51)]
    found = changes.change_of([*before, *sorted([*new, *stays], key=lambda each: each["time"])], JOIN, 1.0, 2, STAYS)
    assert found.noticed == pytest.approx(0.5) and found.imported == pytest.approx(0.7)
    assert found.again == pytest.approx(5.7) and found.paused == pytest.approx(1.7)
    assert found.retrace == pytest.approx(0.0)


@pytest.mark.parametrize(
    "second, status, complaint",
    [({}, 0, None), ({"weights": "b"}, 0, "differ"), ({"steps": 11}, 0, "differ"), ({}, 1, "status 1")],
)
def test_a_job_has_to_end_in_order(second, status, complaint):
    end = {"weights": "a", "steps": 10}
    ends = [event(9, "trained", **end), event(9, "trained", GOES, **{**end, **second})]
    events = [*steps(0, 10, 0.1, 2, 1), *ends]
    if complaint is None:
        changes.require_in_order(events, 2, status)
        with pytest.raises(ValueError, match="all of 10 steps"):
            changes.require_in_order(events[1:], 2, status)
    else:
        with pytest.raises(ValueError, match=complaint):
            changes.require_in_order(events, 2, status)


def test_goodput_counts_each_step_once_and_leaves_out_tracing_if_asked():
    # 40 steps of 100 ms with two ranks; a death at 4.05, two steps lost; after 2 s 39 to 78 of 100 ms with one rank.
    two = steps(0.0, 40, 0.1, 2, 1)
    one = [event(6.1, "step", size=1, batch=39), *steps(6.1, 39, 0.1, 1, 40)]
    found = [change(DEATH, at=4.05, again=2.05, called=1.05, retrace=0.9)]
    made = goodput.goodput([*two, *one, *steps(0.0, 40, 0.1, 2, 1, GOES)], found, 0.0, 20.0, STAYS)
    assert (made.counted, made.repeated) == (77, 2)  # from the end of the first step on
    assert made.usual == {1: pytest.approx(0.1), 2: pytest.approx(0.1)}
    assert made.elapsed == pytest.approx(9.9) and made.share == pytest.approx(7.7 / 9.9)
    assert made.without_tracing == pytest.approx(7.7 / 9.0)
    section = goodput.section(made, found, 60)
    assert not section.verdicts[0].met and "| 10 | 1 | 77 | 2 | 0.9 | 0.778 | 0.856 |" in section.lines


def test_goodput_needs_undisturbed_steps():
    events = [*steps(0.0, 40, 0.1, 2, 1), *steps(6.0, 5, 0.1, 1, 41)]
    with pytest.raises(ValueError, match="--period longer"):
        goodput.goodput(events, [change(DEATH, at=4.05, again=2.05)], 0.0, 20.0, STAYS)


def test_medians_of_changes_meet_targets(tmp_path):
    found = {
        "2x1": [change(DEATH, again=again) for again in (7.0, 3.0, 20.0)],
        "2x2": [change(REMOVAL, again=2.5, noticed=0.75), change(JOIN, again=30.0, noticed=0.5, imported=9.0)],
    }
    section = recovery.section(found)
    assert [(each.wanted, each.met) for each in section.verdicts] == [("<= 8", True), ("<= 2", False), ("<= 10", True)]
    assert section.verdicts[0].measured == "7.0 (3.0 to 20.0); of it 0.5 of tracing"
    assert "of it 0.8 until the notice" in section.verdicts[1].measured
    assert any(line.startswith("| 2x1 | a rank gets SIGKILL | 3 |  | 1.0 (1.0 to 1.0) | 7.0") for line in section.lines)
    recovery.draw(section.figures, str(tmp_path / "elastic.png"))
    assert (tmp_path / "elastic.png").stat().st_size > 1000


def test_small_all_reduces_are_compared_launch_by_launch():
    arms = {small.FIXED: [1.0, 2.0, 1.0], small.ELASTIC: [1.0, 2.4, 1.3]}
    section = small.section({"2x1": {"1": arms, "1000": {**arms, small.ELASTIC: [1.0, 2.0, 1.3]}}})
    assert [each.met for each in section.verdicts] == [False, True]
    assert "| 2x1 | 1 | 1.00 | 1.30 | 3 | 1.20 (1.00 to 1.30) |" in section.lines


def test_a_check_is_what_guarded_steps_take_longer():
    commits = {"commit": 40.0, "share": 0.05, "steps": 8.0, "commits": 6}
    seconds = {"plain": [0.1, 0.1, 0.2], "guard": [0.12, 0.11, 0.23]}
    rank = {"weights": "a", "seconds": seconds, "commits": commits, "parameters": 1_000_000}
    row = costs.row([rank, rank])
    assert row["check"] == pytest.approx(100.0) and row["guard"] == pytest.approx(0.01)
    section = costs.section([{**row, "guard": 0.0101}])
    assert not section.verdicts[0].met and section.lines[-1].endswith("| 1.01% | 40.0 | 8 | 5.0% |")
    with pytest.raises(ValueError, match="they differ"):
        costs.row([rank, {**rank, "weights": "b"}])


@pytest.mark.thorough
def test_a_small_run_of_all_questions():
    words = ["--slots", "1", "--rounds", "1", "--minutes", "1", "--period", "20", "--launches", "1", "--calls", "20"]
    words += ["--sizes", "10000", "--phases", "1", "--seconds", "0.2", "--commits", "1", "--dry"]
    command = [sys.executable, "-m", "benchmarks", "elastic", *words]
    ended = subprocess.run(command, cwd=writing.ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    titles = [each.TITLE for each in (recovery, goodput, small, costs)]
    assert [line[3:] for line in ended.stdout.splitlines() if line.startswith("## ")] == ["Targets", *titles]
    assert ended.stdout.count("after join: ") == 4 and "after 20 s, removal: " in ended.stdout

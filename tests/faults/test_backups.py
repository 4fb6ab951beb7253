"""All ranks of a job end, by SIGTERM or because too few are left: the next job goes on where they were."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.elastic_job import running
from tests.parallel.launch import QUIET, ROOT

BUSY = 6.0  # how many times longer all may take on a machine that runs other tests
EPOCHS, STEPS = 3, 20
FIRST, SECOND = "127.0.0.2", "127.0.0.3"  # hosts


def trains(job, count, batch=4):
    """Waits until this many ranks are in the middle of an epoch."""
    job.wait_for(
        lambda: len({(each["host"], each["pid"]) for each in job.events("step") if each["batch"] > batch}) >= count
    )


def ends(job, ranks):
    """Waits for the end of training; returns what the ranks say of it."""
    assert job.wait(BUSY * 60) == 0, job.output()
    found = job.events("trained")
    assert len(found) == ranks and len({each["weights"] for each in found}) == 1, job.output()
    assert {each["steps"] for each in found} == {EPOCHS * STEPS}
    return found


def begins_at(job):
    """The epoch and the batch at which the ranks began."""
    (place,) = {(each["epoch"], each["batch"]) for each in job.events("trains")}
    return place


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", ["hitopk", "recommended"])
def test_all_are_told_to_end_and_the_next_job_has_fewer_ranks(tmp_path, recipe):
    backup = str(tmp_path / "backup")
    arguments = ["--recipe", recipe, "--backup-dir", backup]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    with running(first, {FIRST: 2, SECOND: 2}, *arguments) as job:
        trains(job, 4)
        job.signal(SECOND, signal.SIGSTOP, 1)  # so that no commit is made from the first notice to the last
        for host in (FIRST, SECOND):
            for slot in range(2):
                job.signal(host, signal.SIGTERM, slot)
        job.signal(SECOND, signal.SIGCONT, 1)
        assert job.wait(BUSY * 60) != 0
        assert re.search(r"the ranks have written commit \d+ to", job.output()), job.output()
        done = job.events("step")[-1]
    with running(second, {FIRST: 2}, *arguments) as job:
        ends(job, 2)
        assert begins_at(job) == (done["epoch"], done["batch"]) != (0, 0)
        assert re.search(r"training goes on from commit \d+ in .*, of 4 ranks\.", job.output()), job.output()
    assert not os.listdir(backup)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_falls_between_the_notices_of_two_ranks(tmp_path, moment):
    """One has said that it leaves when the other is told to: before or after they know of each other who leaves."""
    arguments = ["--recipe", "hitopk", "--backup-dir", str(tmp_path / "backup")]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    with running(first, {FIRST: 1, SECOND: 1}, *arguments, "--notice", moment) as job:
        trains(job, 2)
        job.signal(FIRST, signal.SIGTERM)
        assert job.wait(BUSY * 60) != 0
        assert ("the ranks have written commit" in job.output()) == (moment == "before"), job.output()
        done = job.events("step")[-1]
    with running(second, {FIRST: 1, SECOND: 1}, *arguments) as job:
        ends(job, 2)
        assert begins_at(job) == (done["epoch"], done["batch"]) != (0, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("told_first", [False, True], ids=["later", "before"])
def test_too_few_are_left_and_the_last_is_told_to_end(tmp_path, told_first):
    backup = str(tmp_path / "backup")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    arguments = ["--recipe", "hitopk", "--backup-dir", backup, "--pace", "0.2"]
    with running(first, {FIRST: 1, SECOND: 1}, *arguments, least=2) as job:
        trains(job, 2)
        if told_first:
            job.signal(SECOND, signal.SIGSTOP)  # so that nothing is handed over to it
            job.signal(FIRST, signal.SIGTERM)
        job.signal(SECOND, signal.SIGKILL)
        if not told_first:
            job.wait_for(lambda: "goes back to the last commit" in job.output())
            time.sleep(2)  # it waits for another host
            job.signal(FIRST, signal.SIGTERM)
        job.wait_for(lambda: re.search(r"this rank has written commit \d+ to", job.output()))
        done = max((each["epoch"], each["batch"]) for each in job.events("step"))
    with running(second, {FIRST: 1, SECOND: 1}, *arguments) as job:
        ends(job, 2)
        assert (0, 4) <= begins_at(job) <= done
        assert re.search(rf"rank [01] of {SECOND} had not written", job.output()), job.output()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_launcher_of_ranks_on_its_own_host_ends(tmp_path, number):
    arguments = ["--recipe", "recommended", "--backup-dir", str(tmp_path / "backup")]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    with running(first, {"localhost": 2}, *arguments) as job:
        trains(job, 2)
        job.signal_launcher(number)
        assert job.wait(BUSY * 60) != 0
        deadline = time.monotonic() + BUSY * 5
        while len(list((tmp_path / "backup").glob("commit-*of2"))) < 2:
            assert time.monotonic() < deadline, (os.listdir(tmp_path / "backup"), job.output())
            time.sleep(0.05)
        done = job.events("step")[-1]
    with running(second, {"localhost": 2}, *arguments) as job:
        ends(job, 2)
        assert begins_at(job) == (done["epoch"], done["batch"])


def start(folder, *arguments):
    """Ranks whose number is fixed, under horovodrun."""
    folder.mkdir()
    launcher = os.path.join(os.path.dirname(sys.executable), "horovodrun")
    program = [sys.executable, "-m", "tests.faults.elastic_rank", str(folder), *arguments]
    with open(folder / "output", "wb") as output:
        return subprocess.Popen(
            [launcher, "--gloo", "-np", "2", *program],
            cwd=ROOT,
            env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def told(folder):
    """What both ranks have printed, and their events so far."""
    events = "".join(each.read_text() for each in folder.glob("events.*"))
    return (folder / "output").read_text(errors="replace"), events


@pytest.mark.thorough
def test_a_job_of_a_fixed_number_of_ranks_is_told_to_end(tmp_path):
    arguments = ["--recipe", "hitopk", "--backup-dir", str(tmp_path / "backup")]
    job = start(tmp_path / "first", *arguments)
    try:
        deadline = time.monotonic() + BUSY * 60
        while told(tmp_path / "first")[1].count('"batch": 6') < 2:
            assert time.monotonic() < deadline and job.poll() is None, told(tmp_path / "first")
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(BUSY * 60) != 0
        assert "the ranks have written commit" in told(tmp_path / "first")[0], told(tmp_path / "first")
        job = start(tmp_path / "second", *arguments)
        assert job.wait(BUSY * 60) == 0, told(tmp_path / "second")
    finally:
        job.kill()
        job.wait()
    output, events = told(tmp_path / "second")
    assert "training goes on from commit" in output and f'"steps": {EPOCHS * STEPS}' in events

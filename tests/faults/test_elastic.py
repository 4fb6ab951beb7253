"""Real elastic jobs under horovodrun: hosts come and go, ranks die and stand still, and training goes on."""

import signal
import time

import pytest

from tests.faults.elastic_job import running

EPOCHS, STEPS = 3, 20
BUSY = 6.0  # how many times longer all may take on a machine that runs other tests
AFTER_DEATH, AFTER_STOP = 8.0, 15.0  # seconds until survivors make a step again
GLOO = 10  # seconds that ranks wait for one that stands still, here; 30 by default
FIRST, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"  # hosts


def quick(recipe, slots):
    """Cases, of which one is in the quick tier."""
    marks = [] if (recipe, slots) == ("recommended", 2) else [pytest.mark.thorough]
    return pytest.param(recipe, slots, id=f"{recipe}-2x{slots}", marks=marks)


CASES = [quick(recipe, slots) for recipe in ("dense", "hitopk", "recommended") for slots in (1, 2)]


def trains(job, count, batch=4):
    """Waits until this many ranks are in the middle of an epoch."""
    job.wait_for(
        lambda: len({(each["host"], each["pid"]) for each in job.events("step") if each["batch"] > batch}) >= count
    )


def steps_again(job, since, size):
    """Waits for the first step of this many ranks after a time; returns the seconds until then."""

    def found():
        return [each["time"] for each in job.events("step") if each["size"] == size and each["time"] > since]

    return job.wait_for(found, 120)[0] - since


def ended_alike(job, ranks, changes):
    """Checks that the job has ended in order, that each epoch had all its batches, and that the ranks are equal."""
    assert job.wait(BUSY * 60) == 0, job.output()
    ends = job.events("trained")
    assert len(ends) == ranks and {each["size"] for each in ends} == {ranks}, job.output()
    assert len({each["weights"] for each in ends}) == 1, ends
    assert {each["steps"] for each in ends} == {EPOCHS * STEPS}
    assert len({each["size"] for each in job.events("reset")}) == changes
    first, last = job.events("step")[0]["loss"], ends[0]["loss"]
    assert last < first / 4, (first, last)


@pytest.mark.parametrize("recipe, slots", CASES)
def test_after_a_death_the_others_go_on_from_their_last_commit(tmp_path, recipe, slots):
    with running(tmp_path, {FIRST: slots, SECOND: slots}, "--recipe", recipe) as job:
        trains(job, 2 * slots)
        killed = job.signal(SECOND, signal.SIGKILL)
        assert steps_again(job, killed, slots) < BUSY * AFTER_DEATH
        ended_alike(job, slots, changes=1)
    assert f"the ranks have changed from {2 * slots} to {slots} (" in job.output()
    assert f"of {SECOND} is gone" in job.output() and "goes on from commit" in job.output()


@pytest.mark.parametrize(
    "recipe", ["hitopk", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("dense", "recommended"))]
)
def test_hosts_leave_and_join(tmp_path, recipe):
    with running(tmp_path, {FIRST: 1, SECOND: 1}, "--recipe", recipe, "--pace", "0.2") as job:
        trains(job, 2)
        began = time.time()
        job.set_hosts({FIRST: 1})
        steps_again(job, began, 1)
        job.set_hosts({FIRST: 1, THIRD: 1})
        steps_again(job, began, 2)
        ended_alike(job, 2, changes=2)
    assert f"host {SECOND} has left the job" in job.output()
    assert job.output().count("hand over what they have") == 2 and "1 joined" in job.output()


@pytest.mark.thorough
def test_a_host_that_has_left_comes_back(tmp_path):
    with running(tmp_path, {FIRST: 2, SECOND: 2}, "--recipe", "recommended", "--pace", "0.2") as job:
        trains(job, 4)
        began = time.time()
        job.set_hosts({FIRST: 2})
        steps_again(job, began, 2)
        job.set_hosts({FIRST: 2, SECOND: 2})
        back = time.time()
        steps_again(job, back, 4)
        ended_alike(job, 4, changes=2)


@pytest.mark.thorough
@pytest.mark.parametrize("slots", [1, 2])
def test_a_host_that_is_told_to_end_hands_over(tmp_path, slots):
    with running(tmp_path, {FIRST: slots, SECOND: slots}, "--recipe", "recommended") as job:
        trains(job, 2 * slots)
        for slot in range(slots):
            told = job.signal(SECOND, signal.SIGTERM, slot)
        assert steps_again(job, told, slots) < BUSY * AFTER_DEATH
        ended_alike(job, slots, changes=1)
    assert job.output().count("this process leaves the job") == slots
    assert "hand over what they have" in job.output() and "is lost" not in job.output()


@pytest.mark.thorough
def test_the_host_of_rank_0_dies(tmp_path):
    with running(tmp_path, {FIRST: 1, SECOND: 1, THIRD: 1}, "--recipe", "hitopk") as job:
        trains(job, 3)
        victim = next(each["host"] for each in job.events("trains") if each["rank"] == 0)
        killed = job.signal(victim, signal.SIGKILL)
        steps_again(job, killed, 2)
        ended_alike(job, 2, changes=1)


@pytest.mark.thorough
@pytest.mark.parametrize("slots", [1, 2])
def test_a_rank_that_stands_still_is_ended(tmp_path, slots):
    hosts = {FIRST: slots, SECOND: slots}
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO), "HOROVOD_ELASTIC_BEAT_TIMEOUT": str(GLOO)}
    with running(tmp_path, hosts, "--recipe", "hitopk", environment=environment) as job:
        trains(job, 2 * slots)
        stopped = job.signal(SECOND, signal.SIGSTOP)
        assert steps_again(job, stopped, slots) < GLOO + BUSY * AFTER_STOP
        ended_alike(job, slots, changes=1)
    assert f"has not been heard of for {GLOO} s: it is ended" in job.output()


def test_a_worker_that_the_driver_has_ended_has_failed_whatever_its_status():
    """The status of a shell that was ended is lost now and then, and is 0 then; one that succeeds ends the job."""
    from horovod.runner.elastic.discovery import FixedHosts
    from horovod.runner.elastic.driver import ElasticDriver
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.http.http_server import RendezvousServer

    def work(slot, events):
        while not any(each.is_set() for each in events):
            time.sleep(0.01)
        return 0, time.time()

    server = RendezvousServer()
    driver = ElasticDriver(server, FixedHosts({FIRST: 1, SECOND: 1}), 1, 2)
    server.start(create_rendezvous_handler(driver))
    try:
        driver.start(2, work)
        driver._host_manager.get_host_event(SECOND).set()
        deadline = time.monotonic() + 60
        while driver._worker_registry.count("FAILURE") + driver._worker_registry.count("SUCCESS") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert driver._worker_registry.count("FAILURE") == 1 and not driver.finished()
    finally:
        driver.stop()


@pytest.mark.thorough
def test_one_that_joins_and_dies_before_it_is_connected_costs_seconds(tmp_path):
    with running(tmp_path, {FIRST: 1, SECOND: 1}, "--recipe", "hitopk", "--pace", "0.2") as job:
        trains(job, 2)
        (tmp_path / "doomed").touch()
        job.set_hosts({FIRST: 1, SECOND: 1, THIRD: 1})
        job.wait_for(lambda: not (tmp_path / "doomed").exists())
        died = time.time()
        assert steps_again(job, died, 2) < BUSY * AFTER_DEATH
        ended_alike(job, 2, changes=1)
    assert f"The process {THIRD}:0 (host and local rank) has ended while the ranks start" in job.output()


@pytest.mark.thorough
def test_a_second_death_while_the_first_is_dealt_with(tmp_path):
    with running(tmp_path, {FIRST: 1, SECOND: 1, THIRD: 1}, "--recipe", "recommended") as job:
        trains(job, 3)
        killed = job.signal(SECOND, signal.SIGKILL)
        job.wait_for(lambda: "goes back to the last commit" in job.output())
        job.signal(THIRD, signal.SIGKILL)
        steps_again(job, killed, 1)
        ended_alike(job, 1, changes=1)


@pytest.mark.thorough
def test_hosts_with_unequal_numbers_of_ranks_train_as_lone_ranks(tmp_path):
    with running(tmp_path, {FIRST: 2, SECOND: 2}, "--recipe", "hitopk", "--pace", "0.2") as job:
        trains(job, 4)
        began = time.time()
        job.set_hosts({FIRST: 2, SECOND: 2, THIRD: 1})
        steps_again(job, began, 5)
        ended_alike(job, 5, changes=1)
    assert "unequal numbers of ranks" in job.output()


@pytest.mark.thorough
@pytest.mark.parametrize("after", [{FIRST: 1}, {FIRST: 1, SECOND: 1, THIRD: 1}], ids=["leaves", "joins"])
def test_a_tape_averages_over_the_ranks_that_there_are(tmp_path, after):
    with running(tmp_path, {FIRST: 1, SECOND: 1}, "--tape", "--epochs", "6") as job:
        trains(job, 2)
        began = time.time()
        job.set_hosts(after)
        steps_again(job, began, len(after))
        assert job.wait(BUSY * 60) == 0, job.output()
        steps = job.events("step")
    assert len(job.events("trained")) == len(after) and {each["size"] for each in steps} == {2, len(after)}
    assert all(each["loss"] == (each["size"] - 1) / 2 for each in steps)


@pytest.mark.thorough
def test_errors_of_the_scripts_own_are_not_tried_again(tmp_path):
    with running(tmp_path, {FIRST: 1, SECOND: 1}, "--fault", "nan") as job:
        assert job.wait(BUSY * 60) != 0
    assert "not finite" in job.output() or "NaN" in job.output()
    assert not job.events("reset")

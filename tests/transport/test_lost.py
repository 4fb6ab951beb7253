"""Who is named once a collective has failed: by real processes, and by the answers in a real store."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import tensorflow as tf
from horovod.runner.http.http_server import KVStoreServer

from hvd_sparse.transport import background_loop, lost, processes
from hvd_sparse.transport.launcher_store import Store
from hvd_sparse.transport.lost import EXITED, HERE, RAISED, SILENT, Fate, Place, RankLostError, RollCall
from hvd_sparse.transport.processes import GONE, RUNS, STOPPED, Process

FAR = Place("far", Process(1, "1", "another host"))
SHUT_DOWN = tf.errors.UnknownError(None, None, "Horovod has been shut down. This was caused by an exception")


@pytest.fixture
def store():
    server = KVStoreServer(verbose=0)
    yield Store(f"http://127.0.0.1:{server.start_server()}/lost")
    server.shutdown_server()


@pytest.fixture
def near():
    """The place of a process on this host, and the process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = Process.own()._replace(number=child.pid, began=processes._stat(child.pid)[1])
    yield Place("near", process), child
    child.kill()
    child.wait()


def here() -> Place:
    return Place("near", Process.own())


def test_a_rank_is_known_by_its_own_word_before_what_others_see(store, near):
    place, child = near
    places = [here(), place, FAR, FAR]
    RollCall(1, places, store).answer(Fate(RAISED, "OSError: full"))
    child.kill()
    child.wait()
    RollCall(2, places, store).answer(Fate(HERE))
    RollCall(3, places, store).answer(Fate(EXITED))
    fates = RollCall(0, places, store).fates()
    assert fates == {1: Fate(RAISED, "OSError: full"), 2: Fate(HERE), 3: Fate(EXITED)}


def test_the_first_word_of_a_rank_counts(store):
    places = [here(), FAR]
    other = RollCall(1, places, store)
    other.answer(Fate(RAISED, "OSError: full"))
    other.answer(Fate(EXITED))
    assert RollCall(0, places, store).fates() == {1: Fate(RAISED, "OSError: full")}


@pytest.mark.parametrize("number, state", [(signal.SIGKILL, GONE), (signal.SIGSTOP, STOPPED)])
def test_what_another_rank_sees_on_its_host_is_known_everywhere(store, near, number, state):
    place, child = near
    child.send_signal(number)
    if number == signal.SIGKILL:
        child.wait()
    else:
        os.waitpid(child.pid, os.WUNTRACED)
    RollCall(1, [FAR, here(), place], store).answer(Fate(HERE))
    assert RollCall(0, [here(), FAR, FAR], store).fates() == {1: Fate(HERE), 2: Fate(state)}


def test_a_rank_without_a_word_is_silent_or_runs(store, near):
    fates = RollCall(0, [here(), FAR, near[0]], store).fates(patience=0.3)
    assert fates == {1: Fate(SILENT), 2: Fate(RUNS)}


def test_an_answer_that_comes_late_is_waited_for(store):
    places = [here(), FAR]
    threading.Timer(0.5, RollCall(1, places, store).answer, [Fate(HERE)]).start()
    assert RollCall(0, places, store).fates(patience=60) == {1: Fate(HERE)}


def test_without_a_store_the_ranks_of_this_host_are_seen(near):
    near[1].kill()
    near[1].wait()
    assert RollCall(0, [here(), near[0]], None).fates() == {1: Fate(GONE)}


def test_a_launcher_that_is_gone_is_no_error(near):
    unreachable = Store("http://127.0.0.1:9/lost")
    near[1].kill()
    near[1].wait()
    assert RollCall(0, [here(), near[0]], unreachable).fates() == {1: Fate(GONE)}


def text_of(monkeypatch, fates: dict[int, Fate]) -> str:
    roll = RollCall(0, [here(), *[Place(f"h{rank % 2}", FAR.process) for rank in range(1, 5)]], None)
    monkeypatch.setattr(roll, "fates", lambda: {rank: Fate(HERE) for rank in range(1, 5)} | fates)
    return roll.told("at noon")


@pytest.mark.parametrize(
    "fates, begins, remedy",
    [
        ({3: Fate(GONE)}, "Rank 3 on host h1 is gone:", "output of rank 3, and for the out-of-memory killer"),
        ({1: Fate(GONE), 2: Fate(GONE)}, "Each of the ranks 1, 2 on hosts h0, h1 is gone:", "the output of rank 1"),
        ({2: Fate(STOPPED)}, "Rank 2 on host h0 stands still:", "what has stopped the process of rank 2"),
        ({2: Fate(SILENT)}, "Rank 2 on host h0 does not answer: its host is down", "the host of rank 2 can be reached"),
        ({2: Fate(RUNS)}, "Rank 2 on host h0 does not answer, though its process runs", "at what rank 2 does"),
        ({2: Fate(EXITED)}, "Rank 2 on host h0 has ended without an error", "the same number of steps"),
        ({4: Fate(RAISED, "OSError: full")}, "Rank 4 on host h0 has ended with OSError: full.", "output of rank 4;"),
        ({1: Fate(EXITED), 4: Fate(RAISED, "E")}, "Rank 1 on host h1 has ended without", "the output of rank 4;"),
        ({1: Fate(RUNS), 4: Fate(GONE)}, "Rank 4 on host h0 is gone", "the output of rank 4,"),
        ({}, "The connection between ranks broke", "what interrupts the network"),
    ],
)
def test_the_text_names_who_where_what_and_what_to_do(monkeypatch, fates, begins, remedy):
    told = text_of(monkeypatch, fates)
    assert told.startswith(begins) and remedy in told
    assert "Rank 0 noticed it at noon." in told and told.endswith("then start the job again from its last checkpoint.")


@pytest.fixture
def started(monkeypatch, near):
    monkeypatch.setattr(lost, "_roll", RollCall(0, [here(), near[0]], None))
    near[1].kill()
    near[1].wait()


@pytest.mark.parametrize(
    "text",
    [
        str(SHUT_DOWN),
        "[pair.cc:598] Connection closed by peer [127.0.0.1]:61358",
        "Read error [127.0.0.1]:60814: Connection reset by peer",
        "[unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete",
        "The exchange node.a in shared memory failed: local rank 1 has ended: see its output",
        "The exchange node.a in shared memory failed: local rank 1 stands still: it was stopped",
        "The exchange node.a in shared memory failed: Horovod has ended on this rank, as when",
    ],
)
def test_errors_of_collectives_are_explained_with_the_place(started, text):
    with pytest.raises(RankLostError, match=r"^Rank 1 .* is gone.* noticed it at .*in step 7.*test_lost.py line"):
        with lost.explained(lambda: 7):
            raise tf.errors.UnknownError(None, None, text)


@pytest.mark.parametrize(
    "text",
    [
        "The exchange node.sgd.bucket0 in shared memory failed: local rank 1 has left [[{{node a/SharedExchange}}]]",
        "Horovod has been shut down. [[{{node sgd_1/scope.of_ours/node.sgd.bucket0}}]] [Op:__inference_multi_step_621]",
    ],
)
def test_the_collective_is_named(started, text):
    told = lost.explain(tf.errors.AbortedError(None, None, text))
    assert "in the collective node.sgd.bucket0, " in told


def test_a_process_set_that_ended_with_horovod_is_explained_and_a_wrong_one_is_not(started, monkeypatch):
    error = tf.errors.InvalidArgumentError(None, None, "Allgather: Process set provided does not exist, or has not")
    assert lost.explain(error) is None
    monkeypatch.setattr(background_loop, "has_ended", lambda: True)
    assert lost.explain(error).startswith("Rank 1 on host near is gone")


def test_other_errors_stay_as_they_are(started):
    for error in (ValueError("Horovod has been shut down"), tf.errors.InvalidArgumentError(None, None, "a NaN")):
        with pytest.raises(type(error)) as raised, lost.explained(lambda: 7):
            raise error
        assert raised.value is error


def test_nothing_is_explained_before_start_and_after_stop(started):
    lost.stop()
    assert lost.explain(SHUT_DOWN) is None

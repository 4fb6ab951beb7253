"""Real servers and clients, and what happens when either fails."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from link import LinkError, Patience, WireError
from tests.link.actors import ECHO, LIMIT, SAID, SECRET, Asker, Heard, echo, echoes, until

ROOT = Path(__file__).parents[2]
SECONDS = LIMIT / 1000


class Echo:
    """Controls the process of a server."""

    def __init__(self, place):
        command = [sys.executable, "-m", "tests.link", place]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("encrypt", [False, True], ids=["", "CURVE"])
def test_what_is_asked_is_answered(encrypt, serve, ask):
    serve(encrypt=encrypt)
    client = ask(encrypt=encrypt)
    sent = np.random.default_rng(0).bytes(1 << 19)
    for payload in (b"", b"x", sent):
        assert echoes(client, payload)


def test_arrays_go_and_come_without_copies_of_ours(serve, ask):
    seen = []

    def double(request):
        seen.append(type(request.payload))
        request.answer("said", 2 * np.frombuffer(request.payload, np.float32).reshape(3, -1), **request.fields)

    serve(double)
    sent = np.arange(30_000, dtype=np.float32).reshape(3, -1)
    answer = ask().ask(1, "say", sent, **SAID).result(SECONDS)
    assert seen == [memoryview] and isinstance(answer.payload, memoryview)
    np.testing.assert_array_equal(np.frombuffer(answer.payload, np.float32), 2 * sent.ravel())


def test_answers_come_in_any_order_and_from_any_thread(serve, ask):
    kept, all_there = [], threading.Event()

    def keep(request):
        kept.append(request)
        if len(kept) == 8:
            all_there.set()

    serve(keep)
    client = ask()
    answers = [client.ask(1, "say", b"%d" % each, **SAID) for each in range(8)]
    assert all_there.wait(SECONDS)
    order = np.random.default_rng(0).permutation(8)
    for count, each in enumerate(order):
        assert not answers[each].done()
        threading.Thread(target=echo, args=[kept[each]]).start()
        assert bytes(answers[each].result(SECONDS).payload) == b"%d" % each
        assert sum(answer.done() for answer in answers) == count + 1


def test_many_threads_ask_and_many_answer(serve, ask):
    with concurrent.futures.ThreadPoolExecutor(4) as working, concurrent.futures.ThreadPoolExecutor(4) as asking:
        serve(lambda request: working.submit(echo, request))
        client = ask()
        sent = [np.random.default_rng(each).bytes(each * 100) for each in range(300)]
        answers = list(asking.map(lambda payload: client.ask(1, "say", payload, **SAID), sent))
        assert [bytes(answer.result(SECONDS).payload) for answer in answers] == sent


def test_who_waits_for_long_sees_signs_of_life(serve, ask):
    timers = []

    def later(request):
        timers.append(threading.Timer(6, echo, [request]))
        timers[-1].start()

    serve(later)
    assert echoes(ask(silence=5))


def test_a_request_that_is_never_answered_is_given_up(serve, ask):
    serve(lambda request: None)
    client = ask(patience=Patience(20, work=1.5))
    with pytest.raises(LinkError, match=r"a request was not answered in 1\.5 s"):
        client.ask(1, "say", **SAID).result(SECONDS)


def test_a_request_is_answered_once_and_in_form(serve, ask, place):
    problems = []

    def wrong(request):
        for kind, payload, changed in [
            ("shout", b"", {}),
            ("said", b"", {"count": -1}),
            ("said", b"", {"more": 1}),
            ("said", bytes((1 << 19) + 1), {}),
        ]:
            with pytest.raises(ValueError) as raised:
                request.answer(kind, payload, **{**request.fields, **changed})
            problems.append(raised.value)
        echo(request)
        with pytest.raises(RuntimeError, match="Expected one answer"):
            echo(request)

    serve(wrong)
    assert echoes(ask()) and len(problems) == 4 and not any(isinstance(each, WireError) for each in problems)


@pytest.mark.parametrize(
    "kind, payload, changed",
    [
        ("shout", b"", {}),
        ("say", b"", {"count": 101}),
        ("say", b"", {"loud": None}),
        ("say", bytes((1 << 20) + 1), {}),
        ("say", np.zeros((4, 4))[:, ::2], {}),
    ],
    ids=["kind", "value", "type", "size", "strides"],
)
def test_a_wrong_request_is_an_error_of_who_asks(kind, payload, changed, serve, ask):
    serve()
    client = ask()
    with pytest.raises(ValueError, match="^Expected"):
        client.ask(1, kind, payload, **{**SAID, **changed})
    for server in (-1, 2):
        with pytest.raises(ValueError, match=r"the number of a server in \[0, 2\)"):
            client.ask(server, "say", **SAID)
    assert echoes(client)


def test_what_a_handler_raises_ends_that_connection_alone(serve, ask, place, heard, caplog):
    def choosy(request):
        if request.payload == b"bad":
            raise WireError("bad words")
        if request.payload == b"worse":
            raise KeyError("a fault of the service")
        echo(request)

    serve(choosy)
    client = ask()
    for payload, reason, told in [(b"bad", "message", "refused bad words"), (b"worse", "fault", "of the service")]:
        asker = Asker(place)
        asker.shake_hands()
        asker.send(asker.request(1, payload))
        assert asker.hear() == {"kind": "refuse", "reason": reason}
        assert heard.refusals[-1].reason == reason and told in caplog.text
        asker.close()
        assert echoes(client)
    with pytest.raises(LinkError, match="it failed to handle a request"):
        client.ask(1, "say", b"worse", **SAID).result(SECONDS)


def test_a_check_makes_the_result(serve, ask):
    serve()
    client = ask()
    assert client.ask(1, "say", b"abc", check=lambda kind, fields, payload: len(payload), **SAID).result(SECONDS) == 3

    def fails(kind, fields, payload):
        raise KeyError("of the check")

    with pytest.raises(KeyError, match="of the check"):
        client.ask(1, "say", check=fails, **SAID).result(SECONDS)
    assert echoes(client)

    def refuses(kind, fields, payload):
        raise WireError("what is no echo")

    with pytest.raises(LinkError, match="it sent what is no echo"):
        client.ask(1, "say", check=refuses, **SAID).result(SECONDS)


def test_an_answer_cannot_be_cancelled(serve, ask):
    kept = []
    serve(kept.append)
    client = ask()
    answer = client.ask(1, "say", **SAID)
    assert until(lambda: kept) and not answer.cancel()
    echo(kept[0])
    assert answer.result(SECONDS).fields == SAID


def test_a_server_that_is_killed_is_an_error_and_is_found_again(place, ask):
    server = Echo(place)
    events = Heard()
    client = ask(silence=5, events=events)
    assert echoes(client)
    server.kill()
    with pytest.raises(LinkError) as raised:
        while echoes(client):
            pass
    assert raised.value.server == 1 and isinstance(raised.value, ConnectionError)
    assert [server for server, _ in events.losses] == [1]
    server = Echo(place)
    assert until(lambda: client.ask(1, "say", **SAID).exception(SECONDS) is None)
    assert echoes(client) and len(events.losses) == 1
    server.kill()


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"protocol": ECHO._replace(name="chat")}, "it speaks another protocol"),
        ({"protocol": ECHO._replace(version=4)}, "it speaks another version"),
        ({"subject": "another job"}, "it belongs to another job"),
        ({"secret": b"of another job"}, "it refused this process's secret"),
    ],
    ids=["protocol", "version", "subject", "secret"],
)
def test_another_job_is_refused(changed, reason, serve, ask, heard):
    serve()
    with pytest.raises(LinkError, match=reason):
        ask(**changed).ask(1, "say", **SAID).result(SECONDS)
    assert len(heard.refusals) == 1 and echoes(ask())


def test_a_server_that_is_not_there_is_waited_for_twice_as_long(ask, place):
    client = ask(silence=0.5)
    started = time.monotonic()
    with pytest.raises(LinkError):
        client.ask(1, "say", **SAID).result(SECONDS)
    assert time.monotonic() - started >= 0.7


@pytest.mark.thorough
def test_a_process_that_was_stopped_holds_no_silence_against_a_server(serve, place):
    kept = []
    serve(kept.append)
    command = [sys.executable, "-m", "tests.link.question", place, "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as asker:
        assert until(lambda: kept)
        asker.send_signal(signal.SIGSTOP)
        time.sleep(7.0)  # longer than it takes a silent server to be lost
        asker.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        echo(kept[0])
        assert asker.communicate(timeout=SECONDS)[0] == "said\n"
    assert asker.returncode == 0


def test_late_answers_to_who_has_gone_or_after_closing_are_dropped(serve, ask):
    kept = []
    server = serve(kept.append)
    client = ask(number=5)
    client.ask(1, "say", **SAID)
    assert until(lambda: kept)
    assert kept[0].is_wanted and kept[0].asker == 5
    client.close()
    assert until(lambda: not kept[0].is_wanted)
    echo(kept[0])
    ask().ask(1, "say", **SAID)
    assert until(lambda: len(kept) == 2)
    server.close()
    echo(kept[1])


def test_who_has_gone_is_told_once_its_last_connection_has_ended(serve, place, heard):
    heeded = []
    serve(lambda request: heeded.append(request.asker))
    for each in range(20):
        askers = [Asker(place, number=each) for _ in range(2)]
        for asker in askers:
            asker.shake_hands()
        for asker in askers:
            asker.socket.linger = LIMIT
            asker.send(asker.request(1))
            asker.socket.close()
        assert until(lambda count=each: len(heard.departed) > count)
    assert heard.departed == list(range(20)) and sorted(heeded) == sorted(2 * list(range(20)))
    assert heard.refusals == []


def test_a_fault_in_hearing_of_it_ends_nothing(serve, place, heard, ask, caplog):
    def fails(asker):
        raise KeyError("a fault of the service")

    heard.gone = fails
    serve()
    asker = Asker(place, number=3)
    asker.shake_hands()
    asker.close()
    assert until(lambda: "The departure of process 3 could not be handled" in caplog.text)
    assert echoes(ask())


def test_who_stays_has_not_gone(serve, place, heard):
    serve()
    first, second = Asker(place, number=7), Asker(place, number=7)
    for asker in (first, second):
        asker.shake_hands()
    first.close()
    second.send(second.request(1))
    assert second.hear()["kind"] == "said" and heard.departed == []
    second.close()
    assert until(lambda: heard.departed == [7])


def test_a_forked_child_asks_nobody_and_disturbs_nobody(serve, ask):
    server, client = serve(), ask()
    assert echoes(client)
    child = os.fork()
    if child == 0:
        asked = client.ask(1, "say", **SAID)
        client.close()
        server.close()
        os._exit(0 if isinstance(asked.exception(0), LinkError) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert echoes(client)


def test_no_secret_is_shown(serve, ask, caplog):
    serve()
    with pytest.raises(LinkError) as raised:
        ask(secret=b"of another job").ask(1, "say", **SAID).result(SECONDS)
    assert SECRET.decode() not in f"{raised.value}{caplog.text}" and "of another job" not in caplog.text

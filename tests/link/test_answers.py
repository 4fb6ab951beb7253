"""Answers that a client accepts from a server: a real client and a raw socket that plays a cheating server."""

import time

import pytest

from link import LinkError, forms
from tests.link.actors import LIMIT, SAID, SECRET, Answerer, altered

SECONDS = LIMIT / 1000


@pytest.fixture
def server(place):
    made = Answerer(place)
    yield made
    made.close()


def asked_by(client, server, answers):
    """Makes a client ask, and a server send frames made from (server, request number)."""
    answer = client.ask(1, "say", b"words", **SAID)
    server.shake_hands()
    for frames in answers(server, server.hear()["number"]):
        server.send(frames)
    return answer.result(SECONDS)


def test_takes_what_is_as_it_was_sent(ask, server):
    answer = asked_by(ask(), server, lambda s, n: [s.tagged(forms.pack("wait")), s.answer(n, b"any words")])
    assert (answer.kind, answer.fields, bytes(answer.payload)) == ("said", SAID, b"any words")
    assert server.rest[0] == b"words"


CHEATS = {
    "payload altered": lambda s, n: [altered(s.answer(n), 1, 5)],
    "header altered": lambda s, n: [altered(s.answer(n), 0, 20)],
    "tag altered": lambda s, n: [altered(s.answer(n), 2)],
    "one left out": lambda s, n: [s.answer(n), s.answer(n)][1:],
    "another request's": lambda s, n: [s.answer(n + 1)],
    "no tag": lambda s, n: [s.answer(n)[:2]],
    "a frame more": lambda s, n: [[*s.answer(n), b""]],
    "not msgpack": lambda s, n: [s.tagged(b"\xc1")],
    "header too long": lambda s, n: [s.tagged(bytes(forms.HEADER_BYTES + 1))],
    "another form": lambda s, n: [s.answer(n, count=-1)],
    "another kind": lambda s, n: [s.tagged(forms.pack("say", number=n, **SAID))],
    "payload too large": lambda s, n: [s.answer(n, bytes((1 << 19) + 1))],
    "refused": lambda s, n: [[forms.pack("refuse", reason="whatever")]],
    "welcome again": lambda s, n: [[forms.pack("welcome", proof=bytes(32))]],
    "challenge again": lambda s, n: [[forms.pack("challenge", nonce=bytes(32))]],
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_takes_nothing_else(cheat, ask, server, caplog):
    client = ask(silence=60)
    with pytest.raises(LinkError) as raised:
        asked_by(client, server, cheat)
    assert raised.value.server == 1
    with pytest.raises(LinkError, match=raised.value.reason.replace("(", r"\(").replace(")", r"\)")):
        client.ask(1, "say", **SAID).result(0)
    (told,) = [each for each in caplog.messages if "is unavailable" in each]
    assert "server 1 at 127.0.0.1" in told


def test_an_answer_sent_twice_ends_the_connection(ask, server):
    client = ask()
    answer = asked_by(client, server, lambda s, n: [frames := s.answer(n), frames])
    assert bytes(answer.payload) == b"some words"
    until = time.monotonic() + SECONDS
    while client.ask(1, "say", **SAID).exception(SECONDS) is None and time.monotonic() < until:
        pass
    with pytest.raises(LinkError, match="wrong tag"):
        client.ask(1, "say", **SAID).result(0)


def test_a_server_without_the_secret_is_left_alone(ask, place):
    server = Answerer(place, b"another secret than that")
    answer = ask().ask(1, "say", **SAID)
    server.shake_hands()
    with pytest.raises(LinkError, match="does not know this job's secret"):
        answer.result(SECONDS)
    server.close()


def test_several_requests_are_in_flight_and_others_wait(ask, server):
    client = ask()
    answers = [client.ask(1, "say", b"%d" % each, **SAID) for each in range(20)]
    server.shake_hands()
    numbers = {}
    while len(numbers) < 20:
        number = server.hear()["number"]
        numbers[number] = int(server.rest[0])
        if len(numbers) % 8 == 0 or len(numbers) == 20:
            assert not server.socket.poll(50)  # no more than eight
            for number in list(numbers)[::-1]:
                if not answers[numbers[number]].done():
                    server.send(server.answer(number, b"of %d" % numbers[number]))
                    answers[numbers[number]].result(SECONDS)
    assert [bytes(each.result(0).payload) for each in answers] == [b"of %d" % each for each in range(20)]


def test_closing_ends_what_waits(ask, server):
    client = ask()
    answers = [client.ask(1, "say", **SAID) for _ in range(12)]
    server.hear()
    client.close()
    for answer in [*answers, client.ask(1, "say", **SAID)]:
        with pytest.raises(LinkError, match="has closed its client"):
            answer.result(0)


def test_an_answer_that_never_comes_is_given_up(ask, server):
    client = ask(silence=3)
    with pytest.raises(LinkError, match="nothing came from it for 3 s"):
        asked_by(client, server, lambda s, n: [])


def test_the_secret_does_not_leave_the_process(ask, server):
    answer = ask().ask(1, "say", SECRET[:0], **SAID)
    server.shake_hands()
    server.hear()
    assert SECRET not in b"".join(server.rest) and not answer.done()

"""Messages that a server accepts from a client: a real server and a raw socket that plays a cheating client."""

import pytest

from link import forms, session
from link.session import Channel
from tests.link.actors import ECHO, SAID, SECRET, Asker, altered, echoes


@pytest.fixture
def asker(place, serve):
    serve()
    made = Asker(place)
    yield made
    made.close()


def test_answers_who_knows_the_secret(asker):
    asker.shake_hands()
    asker.send(asker.request(9, b"\x00\x01"))
    assert asker.hear() == {"kind": "said", "number": 9, **SAID} and asker.frames[1] == b"\x00\x01"


CHEATS = {
    "sent twice": lambda a: [a.first, a.first],
    "out of order": lambda a: [a.second, a.first],
    "left out": lambda a: [a.second],
    "header altered": lambda a: [altered(a.first, 0, 3)],
    "payload altered": lambda a: [altered(a.first, 1)],
    "tag altered": lambda a: [altered(a.first, 2)],
    "payload cut": lambda a: [[a.first[0], a.first[1][:-1], a.first[2]]],
    "payload longer": lambda a: [[a.first[0], a.first[1] + b"\0", a.first[2]]],
    "tag cut": lambda a: [[*a.first[:2], a.first[2][:8]]],
    "tag left out": lambda a: [a.first[:2]],
    "a frame more": lambda a: [[*a.first, b""]],
    "moved to the payload": lambda a: [[a.first[0][:-1], a.first[0][-1:] + a.first[1], a.first[2]]],
    "no number": lambda a: [a.tagged(forms.pack("say", **SAID))],
    "number too large": lambda a: [a.request(2**63)],
    "a field too large": lambda a: [a.request(1, count=101)],
    "a field too few": lambda a: [a.tagged(forms.pack("say", number=1, count=1))],
    "a field too many": lambda a: [a.request(1, more=1)],
    "a field of another type": lambda a: [a.request(1, loud=1)],
    "no finite number": lambda a: [a.request(1, share=float("nan"))],
    "no header": lambda a: [a.tagged(b"\xc1")],
    "another kind": lambda a: [a.tagged(forms.pack("wait"))],
    "an answer": lambda a: [a.tagged(forms.pack("said", number=1, **SAID))],
    "deep": lambda a: [a.tagged(b"\x81\xa4kind" + b"\x91" * 1000 + b"\x00")],
    "header too long": lambda a: [a.tagged(b"\x00" * (forms.HEADER_BYTES - 10) + b"x" * 10)],
    "the keys of answers": lambda a: [[*a.first[:2], Channel(a.keys.to_asker).tag(*a.first[:2])]],
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_refuses_what_is_not_as_it_was_sent(cheat, asker, ask, heard):
    asker.shake_hands()
    for frames in cheat(asker):
        asker.send(frames)
    kinds = []
    while not kinds or kinds[-1] != "refuse":
        kinds.append(asker.hear()["kind"])
    assert kinds.count("said") <= (cheat is CHEATS["sent twice"])
    assert heard.refusals[0].reason == "message"
    asker.send(asker.request(3))
    while asker.hear()["kind"] != "refuse":
        pass
    assert heard.refusals[-1].reason == "session" and echoes(ask())


def test_a_recording_is_of_no_use_on_another_connection(asker, place):
    asker.shake_hands()
    request = asker.request(1)
    asker.send(request)
    while asker.hear()["kind"] != "said":
        pass
    again = Asker(place)
    again.send([forms.pack("hello", **asker.greeting._asdict())])
    assert again.hear()["kind"] == "challenge"
    again.send(asker.proof)
    assert again.hear() == {"kind": "refuse", "reason": "secret"}
    again.send(request)
    assert again.hear() == {"kind": "refuse", "reason": "session"}
    again.close()


def test_a_proof_that_was_not_asked_for_is_refused(asker):
    asker.send([forms.pack("proof", proof=bytes(32))])
    assert asker.hear() == {"kind": "refuse", "reason": "session"}


def test_who_greets_again_begins_anew(asker):
    asker.shake_hands()
    asker.hello()
    asker.send(asker.request(1))
    assert asker.hear() == {"kind": "refuse", "reason": "session"}


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"protocol": "chat"}, "protocol"),
        ({"version": 99}, "version"),
        ({"server": 0}, "server"),
        ({"subject": "other"}, "subject"),
        ({"nonce": b"short"}, "message"),
        ({"nonce": "text"}, "message"),
        ({"more": 1}, "message"),
        ({"asker": True}, "message"),
        ({"asker": -1}, "message"),
    ],
)
def test_a_wrong_greeting_is_refused(changed, reason, asker, heard):
    assert asker.hello(**changed) == {"kind": "refuse", "reason": reason}
    (refusal,) = heard.refusals
    assert (refusal.reason, refusal.greeting is None) == (reason, reason == "message")


@pytest.mark.parametrize(
    "changed", [{"asker": 1}, {"subject": "echoes "}, {"protocol": "Echo"}, {"version": 4}, {"server": 2}], ids=str
)
def test_keys_follow_from_all_that_was_said(changed, asker):
    asker.hello()
    greeting = asker.greeting._replace(**changed)
    own, other = (session.derive(SECRET, said, bytes(32)) for said in (asker.greeting, greeting))
    assert len({*own, *other}) == 8


def test_a_message_that_is_too_large_ends_the_connection(asker, ask):
    asker.send([bytes((1 << 20) + 1000)])
    assert echoes(ask())
    assert not asker.socket.poll(100)


def test_a_payload_that_is_too_large_is_refused(place, serve):
    serve(protocol=ECHO._replace(request_bytes=5))
    asker = Asker(place)
    asker.shake_hands()
    asker.send(asker.request(1, b"12345"))
    assert asker.hear()["kind"] == "said"
    asker.send(asker.request(2, b"123456"))
    assert asker.hear() == {"kind": "refuse", "reason": "message"}
    asker.close()

"""What a peer may send to a server: a real one against a raw socket that plays an asking peer, and cheats."""

import time

import numpy as np
import pytest

from datacache.counters import Counters
from datacache.levels import checksum
from datacache.peers import wire
from datacache.peers.client import Client
from datacache.peers.server import Server, Shelf
from tests.datacache.peer_actors import (
    BYTES,
    COUNT,
    DATA,
    SECRET,
    Asker,
    altered,
    caller,
    nothing,
    received,
    record,
)


@pytest.fixture
def asker(place, serving):
    made = Asker(place)
    yield made
    made.close()


class TestServer:
    def test_answers_who_knows_the_secret(self, asker):
        asker.shake_hands()
        asker.send(asker.request(9))
        said = asker.hear()
        assert said["number"] == 9 and said["found"] == b"\x01\x01"
        assert asker.frames[1] == record(3).payload + record(7).payload
        sums = np.frombuffer(said["checksums"], wire.CHECKSUM)
        assert sums.tolist() == [checksum(3, record(3)), checksum(7, record(7))]

    def test_what_it_does_not_own_is_not_there(self, asker):
        asker.shake_hands()
        asker.send(asker.request(1, [COUNT, 2, 2**60]))
        assert asker.hear()["found"] == b"\x00\x01\x00"
        assert asker.frames[1] == record(2).payload

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
        "count too large": lambda a: [a.request(1, count=2**40)],
        "count wrong": lambda a: [a.request(1, count=3)],
        "count zero": lambda a: [a.request(1, indices=())],
        "the own answer back": lambda a: [a.echo()],
        "no header": lambda a: [a.tagged(b"\xc1")],
        "another kind": lambda a: [a.tagged(wire.pack("wait"))],
        "deep": lambda a: [a.tagged(b"\x81\xa4kind" + b"\x91" * 1000 + b"\x00")],
        "header too long": lambda a: [a.tagged(b"\x00" * (wire.HEADER_BYTES - 10) + b"x" * 10)],
    }

    @pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
    def test_refuses_what_is_not_as_it_was_sent(self, cheat, asker, place, tally):
        asker.shake_hands()
        for frames in cheat(asker):
            asker.send(frames)
        kinds = []
        while not kinds or kinds[-1] != "refuse":
            kinds.append(asker.hear()["kind"])
        assert kinds.count("have") <= (cheat is self.CHEATS["sent twice"])
        assert tally.numbers()["refused.peers"] >= 1
        asker.send(asker.request(3))
        while asker.hear()["kind"] != "refuse":
            pass
        client = Client([place, place], caller(Counters()))
        assert received(client, [4]) == {4: record(4)}
        client.close()

    def test_a_recording_is_of_no_use_on_another_connection(self, asker, place):
        asker.shake_hands()
        request = asker.request(1)
        asker.send(request)
        while asker.hear()["kind"] != "have":
            pass
        again = Asker(place)
        again.send([wire.pack("hello", version=wire.VERSION, **asker.greeting._asdict())])
        assert again.hear()["kind"] == "challenge"
        again.send(asker.proof)
        assert again.hear() == {"kind": "refuse", "reason": "secret"}
        again.send(request)
        assert again.hear() == {"kind": "refuse", "reason": "session"}
        again.close()

    def test_a_proof_that_was_not_asked_for_is_refused(self, asker):
        asker.send([wire.pack("proof", proof=bytes(32))])
        assert asker.hear() == {"kind": "refuse", "reason": "session"}

    @pytest.mark.parametrize(
        "changed, reason",
        [
            ({"version": 99}, "version"),
            ({"owner": 0}, "node"),
            ({"data": "other"}, "data"),
            ({"nonce": b"short"}, "message"),
            ({"nonce": "text"}, "message"),
            ({"more": 1}, "message"),
            ({"asker": True}, "message"),
            ({"asker": -1}, "message"),
        ],
    )
    def test_a_wrong_greeting_is_refused(self, changed, reason, asker):
        assert asker.hello(**changed) == {"kind": "refuse", "reason": reason}

    def test_a_message_that_is_too_large_ends_the_connection(self, asker, place):
        asker.send([bytes(wire.HEADER_BYTES + 1)])
        client = Client([place, place], caller(Counters()))
        assert received(client, [4]) == {4: record(4)}
        client.close()
        assert not asker.socket.poll(100)

    def test_a_sample_that_cannot_be_fetched_is_not_there(self, place):
        def fetch(index):
            if index == 5:
                raise OSError("the source has changed")
            return record(index)

        made = Server(place, 1, DATA, SECRET, Shelf(range(COUNT), BYTES, nothing, fetch), Counters())
        client = Client([place, place], caller(Counters()))
        assert received(client, [4, 5, 6]) == {4: record(4), 6: record(6)}
        client.close()
        made.close()

    def test_who_waits_for_long_sees_signs_of_life(self, place):
        def slow(index):
            time.sleep(6)
            return record(index)

        made = Server(place, 1, DATA, SECRET, Shelf(range(COUNT), BYTES, nothing, slow), Counters())
        counters = Counters()
        client = Client([place, place], caller(counters, silence=5))
        assert received(client, [4]) == {4: record(4)}
        assert "failures.peers" not in counters.numbers()
        client.close()
        made.close()

"""Messages that a server may receive from a peer: a real server and a raw socket that plays a cheating client."""

import time

import numpy as np
import pytest

from datacache.counters import Counters
from datacache.levels import checksum
from datacache.peers import protocol
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
        sums = np.frombuffer(said["checksums"], protocol.CHECKSUM)
        assert sums.tolist() == [checksum(3, record(3)), checksum(7, record(7))]

    def test_what_it_does_not_own_is_not_there(self, asker):
        asker.shake_hands()
        asker.send(asker.request(1, [COUNT, 2, 2**60]))
        assert asker.hear()["found"] == b"\x00\x01\x00"
        assert asker.frames[1] == record(2).payload

    CHEATS = {
        "sent twice": lambda a: [a.first, a.first],
        "payload altered": lambda a: [altered(a.first, 1)],
        "count too large": lambda a: [a.request(1, count=2**40)],
        "count wrong": lambda a: [a.request(1, count=3)],
        "count zero": lambda a: [a.request(1, indices=())],
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

    @pytest.mark.parametrize(
        "changed, reason, told",
        [
            ({"version": 99}, "version", "node 1 refused a peer of version 99, but this is 2"),
            ({"server": 0}, "server", "node 1 refused a peer that expected node 0, but this is 1"),
            ({"subject": "other"}, "subject", "node 1 refused node 0, which reads other data, or decodes it"),
        ],
    )
    def test_a_wrong_greeting_is_refused_in_words_of_nodes_and_data(self, changed, reason, told, asker, caplog):
        assert asker.hello(**changed) == {"kind": "refuse", "reason": reason}
        assert told in caplog.text

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

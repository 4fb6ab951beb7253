"""Answers that a client may receive from a peer: a real client and a raw socket that plays a cheating owner."""

import os

import numpy as np
import pytest

from datacache.counters import Counters
from datacache.levels import Record, checksum
from datacache.peers.client import Client
from link import forms
from tests.datacache.peer_actors import (
    BYTES,
    Owner,
    altered,
    caller,
    received,
    record,
)


@pytest.fixture
def owner(place):
    made = Owner(place)
    yield made
    made.close()


@pytest.fixture
def client(place, tally):
    made = Client([place, place], caller(tally, silence=60))
    yield made
    made.close()
    made.close()
    assert made.ask(1, np.zeros(1, np.uint64)) is None


def asked_by(client, owner, answers):
    """Makes a client ask for samples 3 and 7, and an owner send frames made from (owner, request number)."""
    indices = np.array([3, 7], np.uint64)
    answer = client.ask(1, indices)
    owner.shake_hands()
    for frames in answers(owner, owner.hear()["number"]):
        owner.send(frames)
    rows, labels = np.zeros((2, BYTES), np.uint8), np.zeros(2, np.int64)
    found = answer.result().place(indices, np.arange(2), rows, labels)
    return {int(indices[row]): Record(rows[row].tobytes(), int(labels[row])) for row in np.flatnonzero(found)}


class TestClient:
    def test_takes_what_is_as_it_was_sent(self, client, owner):
        assert asked_by(client, owner, lambda o, n: [o.answer(n, [3, 7])]) == {3: record(3), 7: record(7)}

    def test_takes_a_part(self, client, owner):
        made = asked_by(client, owner, lambda o, n: [o.answer(n, [3, 7], [False, True], sums=[checksum(7, record(7))])])
        assert made == {7: record(7)}

    def test_a_wrong_checksum_costs_that_sample_alone(self, client, owner, tally):
        sums = [checksum(3, record(3)), checksum(7, record(7)) ^ 1]
        assert asked_by(client, owner, lambda o, n: [o.answer(n, [3, 7], sums=sums)]) == {3: record(3)}
        assert "failures.peers" not in tally.numbers()

    def test_a_sample_in_anothers_place_is_not_taken(self, client, owner):
        assert asked_by(client, owner, lambda o, n: [o.answer(n, [7, 3])]) == {}

    CHEATS = {
        "payload altered": lambda o, n: [altered(o.answer(n, [3, 7]), 1, 500)],
        "payload cut": lambda o, n: [o.answer(n, [3, 7], payload=b"short")],
        "payload longer": lambda o, n: [o.answer(n, [3, 7], payload=bytes(3 * BYTES))],
        "found too short": lambda o, n: [o.answer(n, [3])],
        "labels too short": lambda o, n: [o.answer(n, [3, 7], labels=b"")],
        "checksums too long": lambda o, n: [o.answer(n, [3, 7], checksums=bytes(800))],
        "another request's": lambda o, n: [o.answer(n + 1, [3, 7])],
        "refused": lambda o, n: [[forms.pack("refuse", reason="whatever")]],
    }

    @pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
    def test_takes_nothing_else(self, cheat, client, owner, tally, caplog):
        assert asked_by(client, owner, cheat) == {}
        assert tally.numbers()["failures.peers"] == 1
        assert client.ask(1, np.zeros(1, np.uint64)) is None
        (told,) = [each for each in caplog.messages if "is unavailable" in each]
        assert "node 1 at 127.0.0.1" in told

    def test_several_requests_are_in_flight(self, client, owner):
        answers = [client.ask(1, np.array([index], np.uint64)) for index in range(6)]
        owner.shake_hands()
        numbers = [owner.hear()["number"] for _ in range(6)]
        for index in (5, 3, 1, 0, 2, 4):
            owner.send(owner.answer(numbers[index], [index]))
        rows, labels = np.zeros((1, BYTES), np.uint8), np.zeros(1, np.int64)
        for index, answer in enumerate(answers):
            indices = np.array([index], np.uint64)
            assert answer.result().place(indices, np.arange(1), rows, labels).all()
            assert rows[0].tobytes() == record(index).payload

    def test_closing_ends_what_waits(self, place, tally, owner):
        made = Client([place, place], caller(tally))
        answer = made.ask(1, np.array([3], np.uint64))
        owner.hear()
        made.close()
        assert (
            not answer.result()
            .place(np.array([3], np.uint64), np.arange(1), np.zeros((1, BYTES), np.uint8), np.zeros(1, np.int64))
            .any()
        )

    def test_a_forked_child_asks_nobody_and_disturbs_nobody(self, serving, place):
        made = Client([place, place], caller(Counters()))
        assert received(made, [3]) == {3: record(3)}
        child = os.fork()
        if child == 0:
            asked = made.ask(1, np.array([3], np.uint64))
            made.close()
            serving.close()
            os._exit(0 if asked is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert received(made, [4, 5]) == {4: record(4), 5: record(5)}
        made.close()

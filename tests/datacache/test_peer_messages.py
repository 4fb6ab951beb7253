"""What a peer may send: a server and a client against a raw socket that plays the other side, and cheats."""

import functools
import os
import socket
import time

import msgpack
import numpy as np
import pytest
import zmq

from datacache.counters import Counters
from datacache.levels import Record, checksum
from datacache.peers import session, sockets, wire
from datacache.peers.client import Client
from datacache.peers.link import Caller, Patience
from datacache.peers.server import Server, Shelf
from datacache.peers.session import Channel, Greeting
from datacache.peers.wire import WireError
from datacache.world import World
from tests.datacache.node import free_addresses

SECRET, DATA, BYTES, COUNT = b"the secret of this test", "data", 1000, 20


def record(index):
    return Record(np.random.default_rng(index).bytes(BYTES), 3 * index - 5)


def nothing(indices, rows, labels):
    return np.zeros(len(indices), bool)


@pytest.fixture
def place():
    return free_addresses(1)[0]


@pytest.fixture
def tally():
    return Counters()


@pytest.fixture
def serving(place, tally):
    """A server of node 1."""
    made = Server(place, 1, DATA, SECRET, Shelf(range(COUNT), BYTES, nothing, record), tally)
    yield made
    made.close()
    made.close()


def caller(counters, node=0, silence=20.0, **changed):
    return Caller(node, DATA, SECRET, BYTES, Patience(silence), counters, False)._replace(**changed)


def received(client, indices):
    """What a client gets of node 1, by index."""
    indices = np.array(indices, np.uint64)
    answer = client.ask(1, indices)
    rows, labels = np.zeros((len(indices), BYTES), np.uint8), np.zeros(len(indices), np.int64)
    if answer is None:
        return {}
    found = answer.result().place(indices, np.arange(len(indices)), rows, labels)
    return {int(indices[row]): Record(rows[row].tobytes(), int(labels[row])) for row in np.flatnonzero(found)}


class Asker:
    """Plays an asking peer, message by message."""

    def __init__(self, place):
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://{place}")

    def hello(self, **changed):
        self.greeting = Greeting(0, 1, DATA, session.nonce())
        self.send([wire.pack("hello", **{"version": wire.VERSION, **self.greeting._asdict(), **changed})])
        return self.hear()

    def shake_hands(self):
        challenge = self.hello()
        self.keys = session.derive(SECRET, self.greeting, challenge["nonce"])
        self.proof = [wire.pack("proof", proof=self.keys.asker_proof)]
        self.send(self.proof)
        assert self.hear() == {"kind": "welcome", "proof": self.keys.owner_proof}
        self.sending, self.receiving = Channel(self.keys.to_owner), Channel(self.keys.to_asker)

    @functools.cached_property
    def first(self):
        """A request."""
        return self.request(1)

    @functools.cached_property
    def second(self):
        """The one after it."""
        assert self.first
        return self.request(2)

    def tagged(self, header):
        return [header, b"", self.sending.tag(header, b"")]

    def echo(self):
        header = wire.pack("have", number=1, found=b"", labels=b"", checksums=b"")
        return [header, b"", Channel(self.keys.to_asker).tag(header, b"")]

    def request(self, number, indices=(3, 7), count=None):
        payload = np.array(indices, wire.INDEX).tobytes()
        header = wire.pack("ask", number=number, count=len(indices) if count is None else count)
        return [header, payload, self.sending.tag(header, payload)]

    def send(self, frames):
        self.socket.send_multipart(frames)

    def hear(self):
        """The next message, other than a sign of life."""
        said = {"kind": "wait"}
        while said["kind"] == "wait":
            assert self.socket.poll(20_000), "nothing came"
            self.frames = self.socket.recv_multipart()
            said = msgpack.unpackb(self.frames[0])
            if len(self.frames) == 3:
                self.receiving.check(*self.frames)
        return said

    def close(self):
        self._context.destroy(linger=0)


@pytest.fixture
def asker(place, serving):
    made = Asker(place)
    yield made
    made.close()


def altered(frames, frame, position=0):
    """One bit of a frame is another."""
    changed = bytearray(frames[frame])
    changed[position] ^= 1
    return [*frames[:frame], bytes(changed), *frames[frame + 1 :]]


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
            time.sleep(2)
            return record(index)

        made = Server(place, 1, DATA, SECRET, Shelf(range(COUNT), BYTES, nothing, slow), Counters())
        counters = Counters()
        client = Client([place, place], caller(counters, silence=1.5))
        assert received(client, [4]) == {4: record(4)}
        assert "failures.peers" not in counters.numbers()
        client.close()
        made.close()


class Owner:
    """Plays a peer that is asked, and lets a test say how it cheats."""

    def __init__(self, place, secret=SECRET):
        self._context, self._secret = zmq.Context(), secret
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(f"tcp://{place}")

    def shake_hands(self):
        said = self.hear()
        challenge = session.nonce()
        greeting = Greeting(said["asker"], said["owner"], said["data"], said["nonce"])
        keys = session.derive(self._secret, greeting, challenge)
        self.send([wire.pack("challenge", nonce=challenge)])
        self.hear()
        self.send([wire.pack("welcome", proof=keys.owner_proof)])
        self.sending = Channel(keys.to_asker)

    def answer(self, number, indices, found=None, payload=None, sums=None, **changed):
        found = [True] * len(indices) if found is None else found
        there = [record(index) for index, yes in zip(indices, found, strict=False) if yes]
        sums = [checksum(index, record(index)) for index in indices] if sums is None else sums
        fields = {
            "number": number,
            "found": bytes(found),
            "labels": np.array([each.label for each in there], wire.LABEL).tobytes(),
            "checksums": np.array(sums, wire.CHECKSUM).tobytes(),
        }
        header = wire.pack("have", **{**fields, **changed})
        payload = b"".join(each.payload for each in there) if payload is None else payload
        return [header, payload, self.sending.tag(header, payload)]

    def hear(self):
        assert self.socket.poll(20_000), "nothing came"
        self._identity, header, *self.rest = self.socket.recv_multipart()
        return msgpack.unpackb(header)

    def send(self, frames):
        self.socket.send_multipart([self._identity, *frames])

    def close(self):
        self._context.destroy(linger=0)


@pytest.fixture
def owner(place):
    made = Owner(place)
    yield made
    made.close()


@pytest.fixture
def client(place, tally):
    made = Client([place, place], caller(tally, silence=5))
    yield made
    made.close()
    made.close()
    assert made.ask(1, np.zeros(1, np.uint64)) is None


def asked_by(client, owner, answers):
    """Has a client ask for samples 3 and 7, and an owner send frames made from (owner, number of the request)."""
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
        "header altered": lambda o, n: [altered(o.answer(n, [3, 7]), 0, 20)],
        "tag altered": lambda o, n: [altered(o.answer(n, [3, 7]), 2)],
        "payload cut": lambda o, n: [o.answer(n, [3, 7], payload=b"short")],
        "payload longer": lambda o, n: [o.answer(n, [3, 7], payload=bytes(3 * BYTES))],
        "found too short": lambda o, n: [o.answer(n, [3])],
        "labels too short": lambda o, n: [o.answer(n, [3, 7], labels=b"")],
        "checksums too long": lambda o, n: [o.answer(n, [3, 7], checksums=bytes(800))],
        "another request's": lambda o, n: [o.answer(n + 1, [3, 7])],
        "one left out": lambda o, n: [o.answer(n, [3, 7]), o.answer(n, [3, 7])][1:],
        "no tag": lambda o, n: [o.answer(n, [3, 7])[:2]],
        "not msgpack": lambda o, n: [[b"\xc1", b"", o.sending.tag(b"\xc1", b"")]],
        "refused": lambda o, n: [[wire.pack("refuse", reason="whatever")]],
        "welcome again": lambda o, n: [[wire.pack("welcome", proof=bytes(32))]],
    }

    @pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
    def test_takes_nothing_else(self, cheat, client, owner, tally, caplog):
        assert asked_by(client, owner, cheat) == {}
        assert tally.numbers()["failures.peers"] == 1
        assert client.ask(1, np.zeros(1, np.uint64)) is None
        (told,) = [each for each in caplog.messages if "left alone" in each]
        assert "node 1 at 127.0.0.1" in told

    def test_an_answer_sent_twice_ends_the_connection(self, client, owner, tally):
        def twice(o, n):
            frames = o.answer(n, [3, 7])
            return [frames, frames]

        assert asked_by(client, owner, twice) == {3: record(3), 7: record(7)}
        while not tally.numbers().get("failures.peers"):
            time.sleep(0.01)

    def test_an_owner_without_the_secret_is_left_alone(self, client, place, caplog):
        owner = Owner(place, b"another secret than that")
        answer = client.ask(1, np.array([3], np.uint64))
        owner.shake_hands()
        rows = np.zeros((1, BYTES), np.uint8)
        found = answer.result().place(np.array([3], np.uint64), np.arange(1), rows, np.zeros(1, np.int64))
        assert not found.any() and "does not know this job's secret" in caplog.text
        owner.close()

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


class TestForms:
    @pytest.mark.parametrize(
        "header, told",
        [
            (b"", "no header"),
            (b"\x93\x01\x02\x03", "no header"),
            (b"\x01", "another kind came"),
            (wire.pack("refuse", reason="x"), "'ask' was expected, another kind came"),
            (wire.pack("ask", number=1), "other fields"),
            (wire.pack("ask", number="1", count=1), "a number of type str"),
            (wire.pack("ask", number=1, count=True), "a count of type bool"),
            (wire.pack("ask", number=1, count=-1), "negative"),
            (wire.pack("ask", number=1, count=wire.MOST_SAMPLES + 1), f"more than {wire.MOST_SAMPLES}"),
            (wire.pack("ask", number=1, count=1) + b"\x00", "no header"),
            (msgpack.packb({"kind": ["ask"]}), "no header"),
            (msgpack.packb({1: "ask"}), "no header"),
            (bytes(wire.HEADER_BYTES + 1), "a header of"),
        ],
    )
    def test_what_has_another_form_is_refused(self, header, told):
        with pytest.raises(WireError, match=told):
            wire.unpack(header, "ask")

    @pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:b"])
    def test_what_is_no_address_is_refused(self, address):
        with pytest.raises(ValueError, match="Expected an address host:port"):
            sockets.split(address)

    def test_addresses(self):
        assert sockets.split("[::1]:80") == ("::1", 80) and sockets.endpoint("[::1]:80") == "tcp://[::1]:80"
        assert sockets.endpoint("127.0.0.1:80") == "tcp://127.0.0.1:80"

    def test_a_server_binds_to_one_address_alone(self, serving, place):
        port = int(place.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


class TestWorld:
    def test_addresses_and_secret_from_the_environment(self, monkeypatch, tmp_path):
        path = tmp_path / "secret"
        path.write_text("0123456789abcdef0123456789abcdef\n")
        path.chmod(0o600)
        for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_RANK": 1}.items():
            monkeypatch.setenv(f"HOROVOD_{name}", str(value))
        monkeypatch.setenv("DATACACHE_PEERS", "a:1, b:2")
        with pytest.raises(ValueError, match="bind b:2 and no secret"):
            World.from_environment()
        monkeypatch.setenv("DATACACHE_SECRET_FILE", str(path))
        secret = b"0123456789abcdef0123456789abcdef"
        assert World.from_environment() == World(3, 4, 1, 2, ("a:1", "b:2"), "b:2", secret)
        monkeypatch.setenv("DATACACHE_BIND", "c:3")
        monkeypatch.setenv("DATACACHE_ENCRYPT", "1")
        assert World.from_environment() == World(3, 4, 1, 2, ("a:1", "b:2"), "c:3", secret, True)
        assert World.from_environment(["x:1", "y:1"], "y:2", bytes(16), False).peers == ("x:1", "y:1")
        path.chmod(0o640)
        with pytest.raises(PermissionError, match="chmod 600"):
            World.from_environment()

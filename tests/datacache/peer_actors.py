"""A peer played by a test, message by message, so that it can cheat."""

from __future__ import annotations

import functools

import msgpack
import numpy as np
import zmq

from datacache.levels import Record, checksum
from datacache.peers import session, wire
from datacache.peers.link import Caller, Patience
from datacache.peers.session import Channel, Greeting

SECRET, DATA, BYTES, COUNT = b"the secret of this test", "data", 1000, 20
LIMIT = 120_000  # milliseconds, for what does not come


def record(index):
    return Record(np.random.default_rng(index).bytes(BYTES), 3 * index - 5)


def nothing(indices, rows, labels):
    return np.zeros(len(indices), bool)


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
            assert self.socket.poll(LIMIT), "nothing came"
            self.frames = self.socket.recv_multipart()
            said = msgpack.unpackb(self.frames[0])
            if len(self.frames) == 3:
                self.receiving.check(*self.frames)
        return said

    def close(self):
        self._context.destroy(linger=0)


def altered(frames, frame, position=0):
    """One bit of a frame is another."""
    changed = bytearray(frames[frame])
    changed[position] ^= 1
    return [*frames[:frame], bytes(changed), *frames[frame + 1 :]]


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
        assert self.socket.poll(LIMIT), "nothing came"
        self._identity, header, *self.rest = self.socket.recv_multipart()
        return msgpack.unpackb(header)

    def send(self, frames):
        self.socket.send_multipart([self._identity, *frames])

    def close(self):
        self._context.destroy(linger=0)

"""One side of a link, played by a test message by message, so that it can cheat; and an echo server for links."""

from __future__ import annotations

import functools
import time

import msgpack
import zmq

import link
from link import Protocol, forms, session
from link.session import Channel, Greeting

SECRET, SUBJECT = b"the secret of this test", "echoes"
LIMIT = 120_000  # milliseconds to wait for a message
_FIELDS = {
    "count": (int, 100),
    "share": (float, 1e6),
    "loud": (bool, 1),
    "word": (str, 20),
    "mark": (bytes, 20),
}
ECHO = Protocol("echo", 3, {"say": _FIELDS}, {"said": _FIELDS}, request_bytes=1 << 20, answer_bytes=1 << 19)
SAID = {"count": 3, "share": -0.5, "loud": True, "word": "hé", "mark": b"\xff"}


_held = []


class Heard(link.Events):
    """Records the events of a link."""

    def __init__(self):
        super().__init__("echo")
        self.refusals, self.losses, self.departed = [], [], []

    def refused(self, refusal):
        super().refused(refusal)
        self.refusals.append(refusal)

    def gone(self, asker):
        self.departed.append(asker)

    def lost(self, server, reason):
        super().lost(server, reason)
        self.losses.append((server, reason))


def until(condition):
    """Waits for a condition; returns whether it became true."""
    end = time.monotonic() + LIMIT / 1000
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def free_place():
    """An address that the system gives to no one else until this process ends."""
    held, place = link.hold("127.0.0.1")
    _held.append(held)
    return place


def caller(events, silence=20.0, **changed):
    return link.Caller(0, SUBJECT, SECRET, ECHO, link.Patience(silence), False, events)._replace(**changed)


def echo(request):
    request.answer("said", request.payload, **request.fields)


def echoes(client, payload=b"are you there?"):
    """Whether server 1 answers."""
    answer = client.ask(1, "say", payload, **SAID).result(LIMIT / 1000)
    return (answer.kind, answer.fields, bytes(answer.payload)) == ("said", SAID, payload)


def altered(frames, frame, position=0):
    """The frames with one bit flipped."""
    changed = bytearray(frames[frame])
    changed[position] ^= 1
    return [*frames[:frame], bytes(changed), *frames[frame + 1 :]]


class Asker:
    """Plays a client of server 1."""

    def __init__(self, place, protocol=ECHO, subject=SUBJECT, number=0):
        self._number = number
        self._context, self._protocol, self._subject = zmq.Context(), protocol, subject
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://{place}")

    def hello(self, **changed):
        protocol = self._protocol
        self.greeting = Greeting(protocol.name, protocol.version, 1, self._subject, self._number, session.nonce())
        self.send([forms.pack("hello", **{**self.greeting._asdict(), **changed})])
        return self.hear()

    def shake_hands(self):
        challenge = self.hello()
        self.keys = session.derive(SECRET, self.greeting, challenge["nonce"])
        self.proof = [forms.pack("proof", proof=self.keys.asker_proof)]
        self.send(self.proof)
        assert self.hear() == {"kind": "welcome", "proof": self.keys.server_proof}
        self.sending, self.receiving = Channel(self.keys.to_server), Channel(self.keys.to_asker)

    @functools.cached_property
    def first(self):
        """A request."""
        return self.request(1)

    @functools.cached_property
    def second(self):
        """The request after it."""
        assert self.first
        return self.request(2)

    def request(self, number, payload=b"some words", **changed):
        return self.tagged(forms.pack("say", number=number, **{**SAID, **changed}), payload)

    def tagged(self, header, payload=b""):
        return [header, payload, self.sending.tag(header, payload)]

    def send(self, frames):
        self.socket.send_multipart(frames)

    def hear(self):
        """The next message other than a heartbeat."""
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


class Answerer:
    """Plays a server, and lets a test decide how it cheats."""

    def __init__(self, place, secret=SECRET):
        self._context, self._secret = zmq.Context(), secret
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(f"tcp://{place}")

    def shake_hands(self):
        said = self.hear()
        assert said.pop("kind") == "hello"
        challenge = session.nonce()
        keys = session.derive(self._secret, Greeting(**said), challenge)
        self.send([forms.pack("challenge", nonce=challenge)])
        self.hear()
        self.send([forms.pack("welcome", proof=keys.server_proof)])
        self.sending = Channel(keys.to_asker)

    def answer(self, number, payload=b"some words", **changed):
        return self.tagged(forms.pack("said", number=number, **{**SAID, **changed}), payload)

    def tagged(self, header, payload=b""):
        return [header, payload, self.sending.tag(header, payload)]

    def hear(self):
        assert self.socket.poll(LIMIT), "nothing came"
        self._identity, header, *self.rest = self.socket.recv_multipart()
        return msgpack.unpackb(header)

    def send(self, frames):
        self.socket.send_multipart([self._identity, *frames])

    def close(self):
        self._context.destroy(linger=0)

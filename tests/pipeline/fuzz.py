"""Sends invalid messages, over real sockets, to a stage from a neighbour that knows the job's secret.

    python -m tests.pipeline.fuzz --messages 100000 --seed 1

One stage of a small model runs; the other is played by this program, whose messages are right except for a field or the
payload, or do not have the form of a message. Each time the stage must accept the message and continue, or raise an
error that names the sender or has the sender's own text. From time to time all messages are right, and the stage must
then give the result of the whole model.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.pipeline import messages, wire
from hvd_sparse.pipeline.batches import cut
from hvd_sparse.pipeline.neighbours import Neighbours, Place
from hvd_sparse.pipeline.steps import Steps
from hvd_sparse.pipeline.threshold import kept_of
from link import Caller, Client, Events, Form, Patience, Protocol, Request, Server
from tests.pipeline import staged
from tests.pipeline.staged import KEPT, ROWS, SECRET, SPARSITY, SUBJECT, WIDTH

A_TIME = 500  # messages per connection
RIGHT = 0.02  # the share of messages that are right
OF_OTHER_SHAPES = 0.05  # the share of activations that are valid but do not fit the model
LAST = 0.02  # the share of messages that end their connection
TYPES = (
    "float16",
    "float64",
    "bfloat16",
    "int8",
    "int4",
    "int64",
    "string",
    "resource",
    "complex64",
    "bool",
    "qint8",
    "",
    "no",
)
WORDS = (*TYPES, "train", "test", "predict", "stage 0", "x" * 16)
COUNTS = (0, 1, 2, 3, 5, 255, 2**16, 2**31 - 1, 2**31, 2**62)
NUMBERS = (0.0, 1.0, -1.0, -0.5, 1e-300, 1e300, -1e300)
LOGS = (
    b"",
    b"{}",
    b"{",
    b"[1]",
    b"[" * 9000,
    b'{"a": ' * 9000,
    b'{"loss": 1' + b"0" * 400 + b"}",
    b'{"a": "b"}',
    b"\xff",
)
WITHOUT_WORDS = {"why": ""}
LEAVES = (("stop", WITHOUT_WORDS), ("stop", {"why": "own words"}), ("part", {}))


def loose(form: Form) -> Form:
    """The same fields with another type."""
    return {name: (bytes, 8) for name in form}


LOOSE_REQUESTS = wire.PROTOCOL._replace(requests={kind: loose(form) for kind, form in wire.PROTOCOL.requests.items()})
LOOSE_ANSWERS = wire.PROTOCOL._replace(answers={kind: loose(form) for kind, form in wire.PROTOCOL.answers.items()})


class Spoiler:
    """Makes valid messages invalid."""

    def __init__(self, draw: random.Random):
        self._draw = draw

    def spoilt(self, form: Any, fields: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Fields and payload, one of them changed; fields keep their form."""
        if self._draw.random() < 0.3:
            return fields, self._bytes(payload)
        name = self._draw.choice(list(fields))
        kind, most = form[name]
        return {**fields, name: self._other(kind, most, fields[name])}, payload

    def _other(self, kind: type, most: float, value: Any) -> Any:
        draw = self._draw
        if kind is int:
            return min(int(most), draw.choice((*COUNTS, value + 1, draw.randrange(100))))
        if kind is float:
            return draw.choice((*NUMBERS, draw.uniform(-9, 9)))
        if kind is str:
            return draw.choice(WORDS)[: int(most)]
        if most > 64:
            return draw.choice((*LOGS, self._bytes(value), json.dumps({"loss": draw.random()}).encode()))
        shape = [draw.choice((0, 1, ROWS, WIDTH, 2**31 - 1, -1)) for _ in range(draw.randrange(9))]
        return draw.choice((np.asarray(shape, "<i8").tobytes(), self._bytes(value)[:64]))

    def _bytes(self, right: bytes) -> bytes:
        draw, altered = self._draw, bytearray(right)
        place = draw.randrange(len(right) + 1)
        if place < len(right):
            altered[place] ^= 1 << draw.randrange(8)
        noise = draw.randbytes(draw.choice((0, 1, 8, len(right))))
        return draw.choice((bytes(altered), right[:place], right + noise, noise))


class Neighbour:
    """A neighbour that sends invalid messages.

    Attributes:
        name: the stage's name for it.
        counts: numbers of messages by outcome.
    """

    name = ""

    def __init__(self, draw: random.Random):
        self.draw, self.spoiler = draw, Spoiler(draw)
        self.counts: collections.Counter[str] = collections.Counter()

    def play(self, count: int) -> None:
        """Sends `count` messages."""
        while count:
            if self.draw.random() < LAST * A_TIME / (1 + LAST * A_TIME):
                self.last_one()
                count -= 1
                continue
            here = min(count, A_TIME)
            self.several(here)
            count -= here

    def several(self, count: int) -> None:
        """Sends `count` messages over one connection."""
        raise NotImplementedError

    def last_one(self) -> None:
        """Sends a message that ends its connection."""
        raise NotImplementedError

    def judge(self, act: Callable[[], Any], words: str | None = None) -> Any:
        """The stage's result for a message; it may raise an error that names the sender or consists of `words`."""
        try:
            result = act()
        except Exception as error:
            told = " ".join([str(error), *getattr(error, "__notes__", ())])
            assert self.name in told or str(error) == words, f"{type(error).__name__} does not name {self.name}: {told}"
            self.counts[type(error).__name__] += 1
            return None
        self.counts["accepted"] += 1
        return result


class Before(Neighbour):
    """Plays the first stage: sends a micro-batch for evaluation or training, and the outcome of all stages."""

    name = "stage 0 (rank 0)"

    def __init__(self, draw: random.Random):
        super().__init__(draw)
        self._stage, self._batch = staged.last(), staged.batch()
        kept = messages.kept_of(staged.first().model(self._batch[0]), KEPT)
        self._loss = float(tf.reduce_mean(tf.square(self._stage.model(kept.dense()) - self._batch[1])))
        self._payload = messages.encode_activations(kept, "float32").tobytes()
        self._forward = {
            **{"mode": "test", "step": 1, "micro": 0, "micros": 1, "shape": messages.pack_shape((ROWS, WIDTH))},
            **{"dtype": "float32", "wire": "float32", "kept": KEPT, "penalty": 0.0},
            "batch": cut(self._batch, 1)[0].digest,
        }

    @contextlib.contextmanager
    def _connected(self, protocol: Protocol) -> Iterator[tuple[Steps, Client]]:
        job = staged.held(2)
        own = Neighbours(Place(1, 2, (0, 1)), job.meeting, SUBJECT, 1)
        caller = Caller(0, SUBJECT, SECRET, protocol, Patience(work=math.inf), False, Events(), 2**30)
        client = Client(job.meeting.addresses, caller)
        yield staged.steps(self._stage, own), client
        client.close()
        own.abandon()
        job.release()

    def several(self, count: int) -> None:
        with self._connected(wire.PROTOCOL) as (steps, client):
            for step in range(1, count + 1):
                what = self.draw.choice((self._evaluated, self._trained))
                what(steps, client, step)

    def _evaluated(self, steps: Steps, client: Client, step: int) -> None:
        fields, payload, is_right = {**self._forward, "step": step}, self._payload, self.draw.random() < RIGHT
        if not is_right and self.draw.random() < OF_OTHER_SHAPES:
            shape = self.draw.choice((1, ROWS, 9)), self.draw.choice((1, 8, WIDTH, 40))
            kept = messages.kept_of(tf.ones(shape), kept_of(shape[1], SPARSITY))
            payload = messages.encode_activations(kept, "float32").tobytes()
            fields |= {"shape": messages.pack_shape(shape), "kept": 0 if kept.positions is None else shape[1] // 4}
        elif not is_right:
            fields, payload = self.spoiler.spoilt(wire.PROTOCOL.requests["forward"], fields, payload)
        client.ask(1, "forward", payload, **fields)
        logs = self.judge(lambda: steps.test(self._batch))
        assert not is_right or math.isclose(logs["loss"], self._loss, rel_tol=1e-5)

    def _trained(self, steps: Steps, client: Client, step: int) -> None:
        right = {"step": step, "culprit": "", "squares": -1.0}
        fields, payload = self.spoiler.spoilt(wire.PROTOCOL.requests["decide"], right, b"")
        client.ask(1, "forward", self._payload, **{**self._forward, "mode": "train", "step": step})
        if self.draw.random() < 0.1:
            client.ask(1, "forward", self._payload, **self._forward)
        else:
            client.ask(1, "decide", payload, **fields)
        self.judge(lambda: steps.train(self._batch, self._stage.model))

    def last_one(self) -> None:
        if self.draw.random() < 0.5:
            with self._connected(LOOSE_REQUESTS) as (steps, client):
                client.ask(1, "forward", self._payload, **dict.fromkeys(self._forward, b"no"))
                self.judge(lambda: steps.test(self._batch))
            return
        kind, fields = self.draw.choice(LEAVES)
        with self._connected(wire.PROTOCOL) as (steps, client):
            client.ask(1, kind, **fields)
            self.judge(lambda: steps.test(self._batch), fields.get("why"))


class After(Neighbour):
    """Plays the last stage: answers a micro-batch of training or prediction."""

    name = "stage 1 (rank 1)"

    def __init__(self, draw: random.Random):
        super().__init__(draw)
        self._stage, self._batch = staged.first(), staged.batch()
        self._predicted = np.arange(2.0 * ROWS, dtype="f4").reshape(ROWS, 2)
        gradient = np.ones((ROWS, KEPT), "f4")
        shape = messages.pack_shape((ROWS, 2))
        self._right = {
            "result": ({"shape": shape, "dtype": "float32", "logs": b""}, self._predicted.tobytes()),
            "backward": ({"culprit": "", "squares": -1.0, "logs": b'{"loss": 1}'}, gradient.tobytes()),
        }
        self._next: tuple[str, dict[str, Any], bytes] = ("done", {}, b"")

    @contextlib.contextmanager
    def _connected(self, protocol: Protocol) -> Iterator[Steps]:
        job = staged.held(2)
        server = Server(job.meeting.addresses[1], 1, SUBJECT, SECRET, protocol, self._answer, Events())
        own = Neighbours(Place(0, 2, (0, 1)), job.meeting, SUBJECT, 1)
        yield staged.steps(self._stage, own)
        own.abandon()
        server.close()
        job.release()

    def _answer(self, request: Request) -> None:
        kind, fields, payload = self._next if request.kind == "forward" else ("done", {}, b"")
        request.answer(kind, payload, **fields)

    def several(self, count: int) -> None:
        with self._connected(wire.PROTOCOL) as steps:
            for _ in range(count):
                kind = self.draw.choice(list(self._right))
                self._asked(steps, kind, self.draw.random() < RIGHT)

    def _asked(self, steps: Steps, kind: str, is_right: bool) -> None:
        fields, payload = self._right[kind]
        if not is_right:
            fields, payload = self.spoiler.spoilt(wire.PROTOCOL.answers[kind], fields, payload)
            kind = self.draw.choice((kind, kind, kind, "failed", "done"))
        words = {"failed": {"why": "own words"}, "done": {}}.get(kind, fields)
        self._next = (kind, words, payload)
        if "shape" in fields:
            found = self.judge(lambda: steps.predict(self._batch[0]), "own words")
            assert not is_right or found.numpy().tobytes() == self._predicted.tobytes()
        else:
            self.judge(lambda: steps.train(self._batch, self._stage.model), "own words")

    def last_one(self) -> None:
        self._next = ("result", dict.fromkeys(wire.PROTOCOL.answers["result"], b"no"), b"")
        with self._connected(LOOSE_ANSWERS) as steps:
            self.judge(lambda: steps.predict(self._batch[0]))


def main() -> None:
    """Plays both neighbours, and prints the number of messages by outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # about connections that end
    for number, kind in enumerate((Before, After)):
        began, player = time.monotonic(), kind(random.Random(options.seed + number))
        count = (options.messages + number) // 2
        player.play(count)
        told = ", ".join(f"{ends} {name}" for name, ends in player.counts.most_common())
        print(f"{count} messages of {player.name}: {told}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""A peer that a test plays message by message, so that it can send wrong samples."""

from __future__ import annotations

import numpy as np

from datacache.levels import Record, checksum
from datacache.peers import protocol
from datacache.peers.client import Caller
from link import Patience, forms
from tests.link import actors
from tests.link.actors import LIMIT, SECRET, altered

__all__ = ["LIMIT", "SECRET", "altered"]
DATA, BYTES, COUNT = "data", 1000, 20


def record(index):
    return Record(np.random.default_rng(index).bytes(BYTES), 3 * index - 5)


def nothing(indices, rows, labels):
    return np.zeros(len(indices), bool)


def caller(counters, node=0, silence=20.0, **changed):
    return Caller(node, DATA, SECRET, BYTES, Patience(silence), counters, False)._replace(**changed)


def received(client, indices):
    """What a client receives from node 1, by index."""
    indices = np.array(indices, np.uint64)
    answer = client.ask(1, indices)
    rows, labels = np.zeros((len(indices), BYTES), np.uint8), np.zeros(len(indices), np.int64)
    if answer is None:
        return {}
    found = answer.result().place(indices, np.arange(len(indices)), rows, labels)
    return {int(indices[row]): Record(rows[row].tobytes(), int(labels[row])) for row in np.flatnonzero(found)}


class Asker(actors.Asker):
    """Plays an asking peer."""

    def __init__(self, place):
        super().__init__(place, protocol.protocol(BYTES), DATA)

    def request(self, number, indices=(3, 7), count=None):
        payload = np.array(indices, protocol.INDEX).tobytes()
        return self.tagged(forms.pack("ask", number=number, count=len(indices) if count is None else count), payload)


class Owner(actors.Answerer):
    """Plays a peer that answers."""

    def answer(self, number, indices, found=None, payload=None, sums=None, **changed):
        found = [True] * len(indices) if found is None else found
        there = [record(index) for index, yes in zip(indices, found, strict=False) if yes]
        sums = [checksum(index, record(index)) for index in indices] if sums is None else sums
        fields = {
            "number": number,
            "found": bytes(found),
            "labels": np.array([each.label for each in there], protocol.LABEL).tobytes(),
            "checksums": np.array(sums, protocol.CHECKSUM).tobytes(),
        }
        payload = b"".join(each.payload for each in there) if payload is None else payload
        return self.tagged(forms.pack("have", **{**fields, **changed}), payload)

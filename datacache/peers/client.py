"""The asking side: a process's link to each owner, and how their answers are handled."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import link
from datacache.counters import Counters
from datacache.native import address, library
from datacache.peers.protocol import CHECKSUM, INDEX, LABEL, protocol, samples_at_a_time
from datacache.peers.words import PeerEvents


class Caller(NamedTuple):
    """The asking process, and what all its links have in common."""

    node: int
    data: str
    secret: bytes
    sample_bytes: int
    patience: link.Patience
    counters: Counters
    encrypt: bool


class Answer:
    """An owner's answer to a request: whole rows, whose checksums have not been compared yet."""

    def __init__(self, found: np.ndarray, payload: Any = b"", labels: Any = b"", checksums: Any = b""):
        """Takes found, bool [n], and payload, labels and checksums of the samples that were found, as bytes."""
        self._found, self._payload = found, payload
        self._labels, self._checksums = labels, checksums

    def place(self, indices: np.ndarray, places: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Copies the samples that are present and whole into rows and labels.

        Args:
            indices: uint64 [n], as in the request.
            places: int64 [n], the row of each.
            rows: uint8 [m, bytes of a sample]; the rows of samples that are not found are undefined afterwards.
            labels: int64 [m].

        Returns:
            bool [n], the samples that were found.
        """
        found = self._found.copy()
        if not found.any():
            return found
        indices, places = indices[found], places[found].astype(np.uint64)
        if not indices.flags.c_contiguous or int(places.max()) >= len(rows):
            raise ValueError(f"Expected places in [0, {len(rows)}), got {places.max()}.")
        sent = np.frombuffer(self._payload, np.uint8)
        own = np.frombuffer(self._labels, LABEL).astype(np.int64)
        sums = np.frombuffer(self._checksums, CHECKSUM).astype(np.uint64)
        sound = np.empty(len(indices), np.uint8)
        data = [address(array) for array in (indices, own, sums, rows, places, sound)]
        library().datacache_records_place(address(sent), rows.shape[1], len(indices), *data)
        labels[places] = own
        found[found] = sound.astype(bool)
        return found


class Client:
    """Asks owners for samples; may be called by several threads at once."""

    def __init__(self, addresses: Sequence[str], caller: Caller):
        """Takes the address of each node, host:port, in their order; connects when an owner is first asked.

        Raises:
            ValueError: if one is not an address.
        """
        self._sample_bytes = caller.sample_bytes
        self.samples_at_a_time = samples_at_a_time(caller.sample_bytes)
        asking = link.Caller(
            caller.node,
            caller.data,
            caller.secret,
            protocol(caller.sample_bytes),
            caller.patience,
            caller.encrypt,
            PeerEvents(caller.counters, caller.node),
        )
        self._link = link.Client(addresses, asking, "datacache-client")

    def ask(self, owner: int, indices: np.ndarray) -> concurrent.futures.Future[Answer] | None:
        """Asks an owner for samples.

        Args:
            owner: its node.
            indices: uint64 [n], at most `samples_at_a_time`.

        Returns:
            The future of the answer, which always completes; None if the owner is currently left alone, and in a
            process that was forked from the one that made this.
        """
        count = len(indices)

        def check(kind: str, fields: dict[str, Any], payload: memoryview) -> Answer:
            return _checked(fields, payload, count, self._sample_bytes)

        asked = self._link.ask(owner, "ask", indices.astype(INDEX), check, count=count)
        if asked.done() and asked.exception() is not None:
            return None
        answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        asked.add_done_callback(lambda done: answer.set_result(_result(done, count)))
        return answer

    def close(self) -> None:
        """Gives up pending requests and closes all connections; calling it again does nothing."""
        self._link.close()


def _checked(fields: dict[str, Any], payload: memoryview, asked: int, sample_bytes: int) -> Answer:
    """Checks and parses an answer for this many samples.

    Raises:
        WireError: if it is invalid.
    """
    found = np.frombuffer(fields["found"], np.uint8) != 0
    count = int(found.sum())
    wanted = (asked, count * LABEL.itemsize, count * CHECKSUM.itemsize)
    if (len(found), len(fields["labels"]), len(fields["checksums"])) != wanted:
        raise link.WireError(f"an answer for {len(found)} samples with {len(fields['labels'])} bytes of labels")
    if len(payload) != count * sample_bytes:
        raise link.WireError(f"{len(payload)} bytes for {count} samples of {sample_bytes}")
    return Answer(found, payload, fields["labels"], fields["checksums"])


def _result(done: concurrent.futures.Future[Answer], count: int) -> Answer:
    """The answer; if there is none, an answer in which nothing is found."""
    return done.result() if done.exception() is None else Answer(np.zeros(count, bool))

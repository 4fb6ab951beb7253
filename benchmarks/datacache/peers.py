"""Peers of the cache against a raw stream: python -m benchmarks.datacache.peers.

Over the loopback device, one process requests batches of 256 samples of 96x96x3 bytes from another, in random order,
four at a time. The rival is a plain TCP stream of as many bytes on the same kernel, by sendall and recv_into; it has no
notion of samples, and copies, compares and authenticates nothing. All arms take turns.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.reporting import report, timing
from datacache.counters import Counters
from datacache.levels import Record
from datacache.peers.client import Caller, Client
from datacache.peers.server import Server, Shelf
from datacache.slab import Slab, needed
from link import Patience, connection, server
from link.session import Channel

SAMPLES, BATCH, SHAPE = 2048, 256, (96, 96, 3)
BYTES = int(np.prod(SHAPE))
BATCHES, AHEAD, ROUNDS = 48, 4, 15  # batches per round, requests in flight, rounds
RAW, TAGGED, CURVE, UNTAGGED = "raw stream", "peers", "peers, CURVE", "peers, no tag"
ROUNDS_OF = {CURVE: 3}  # for slow arms
TITLE = "Peers over the loopback device"
WANTED = 0.7


class Untagged(Channel):
    """A channel without tags, which shows their cost; used here and nowhere else."""

    def tag(self, header: Any, payload: Any) -> bytes:
        return bytes(16)


def content() -> np.ndarray:
    """All samples, the same in each process: uint8 [samples, bytes]."""
    return np.random.default_rng(0).integers(0, 256, (SAMPLES, BYTES), np.uint8)


# ---- the processes that serve, one for each arm ----


def serve(name: str, place: str) -> None:
    """Serves an arm until the input ends."""
    secret, samples = bytes.fromhex(sys.stdin.readline()), content()
    if name == RAW:
        threading.Thread(target=_stream, args=(place, samples), daemon=True).start()
        sys.stdin.read()
        return
    server.Channel = Untagged if name == UNTAGGED else Channel
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, contextlib.ExitStack() as stack:
        slab = Slab(pathlib.Path(folder), "peers", range(SAMPLES), needed(SAMPLES, BYTES))
        stack.callback(slab.close)
        for index, sample in enumerate(samples):
            slab.put(index, Record(sample.tobytes(), index))
        shelf = Shelf(range(SAMPLES), BYTES, slab.gather, lambda index: Record(b"", 0))
        made = Server(place, 1, "benchmark", secret, shelf, Counters(), encrypt=name == CURVE)
        stack.callback(made.close)
        sys.stdin.read()


def _stream(place: str, samples: np.ndarray) -> None:
    host, port = place.split(":")
    batches = samples.reshape(-1, BATCH * BYTES)
    with socket.create_server((host, int(port))) as listening:
        connection, _ = listening.accept()
        while connection.recv(1):
            for number in range(BATCHES):
                connection.sendall(batches[number % len(batches)])


@contextlib.contextmanager
def serving(name: str, place: str, secret: bytes) -> Iterator[None]:
    """A process that serves an arm."""
    command = [sys.executable, "-m", "benchmarks.datacache.peers", "--serve", name, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(f"{secret.hex()}\n")
            process.stdin.flush()
            yield
        finally:
            process.stdin.close()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody uses."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


# ---- the process that asks ----


@contextlib.contextmanager
def client(name: str, place: str, secret: bytes) -> Iterator[Client]:
    """A client of one arm, after its handshake."""
    caller = Caller(0, "benchmark", secret, BYTES, Patience(60), Counters(), name == CURVE)
    with contextlib.closing(Client(["127.0.0.1:1", place], caller)) as made:
        connection.Channel = Untagged if name == UNTAGGED else Channel
        try:
            made.ask(1, np.arange(1, dtype=np.uint64)).result()
        finally:
            connection.Channel = Channel
        yield made


def connect(place: str) -> socket.socket:
    """A connection to a process that may not be listening yet."""
    host, port = place.split(":")
    for _ in range(600):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)))
        time.sleep(0.1)
    raise TimeoutError(f"Nobody listens at {place}: see the message above of the process that should.")


class RawArm:
    """The plain stream, into one buffer."""

    def __init__(self, place: str, samples: np.ndarray):
        self._connection = connect(place)
        self._samples, self._got = samples.reshape(-1, BATCH * BYTES), np.empty(BATCH * BYTES, np.uint8)

    def run(self) -> None:
        """Receives a round's batches."""
        self._connection.sendall(b"x")
        view = memoryview(self._got)
        for _ in range(BATCHES):
            filled = 0
            while filled < len(view):
                filled += self._connection.recv_into(view[filled:])

    def check(self) -> None:
        """Checks the last batch."""
        np.testing.assert_array_equal(self._got, self._samples[(BATCHES - 1) % len(self._samples)])


class PeersArm:
    """Batches of random samples by a client, as `Batches` asks for them."""

    def __init__(self, asked: Client, samples: np.ndarray):
        self._client, self._samples = asked, samples
        self._orders = np.random.default_rng(1).integers(0, SAMPLES, (BATCHES, BATCH), np.uint64)
        self._rows, self._labels = np.empty((BATCH, BYTES), np.uint8), np.empty(BATCH, np.int64)

    def run(self) -> None:
        """Receives a round's batches; every record's checksum and every label are compared."""
        asked: collections.deque = collections.deque()
        places = np.arange(BATCH)
        for number in range(BATCHES + AHEAD):
            if number < BATCHES:
                asked.append((self._orders[number], self._client.ask(1, self._orders[number])))
            if number >= AHEAD:
                indices, answer = asked.popleft()
                found = answer.result().place(indices, places, self._rows, self._labels)
                if not (found.all() and (self._labels == indices.astype(np.int64)).all()):
                    raise AssertionError("a batch is not what was asked for")

    def check(self) -> None:
        """Checks the last batch, byte by byte."""
        np.testing.assert_array_equal(self._rows, self._samples[self._orders[-1].astype(np.int64)])


def measure(folder: pathlib.Path, progress: Callable[[str], Any]) -> report.Section:
    """Times all arms; nothing is written to the folder."""
    secret, samples = secrets.token_bytes(32), content()
    with contextlib.ExitStack() as stack:
        arms: dict[str, Any] = {}
        for name, port in zip((RAW, TAGGED, CURVE, UNTAGGED), free_ports(4), strict=True):
            place = f"127.0.0.1:{port}"
            stack.enter_context(serving(name, place, secret))
            if name == RAW:
                arms[name] = RawArm(place, samples)
            else:
                arms[name] = PeersArm(stack.enter_context(client(name, place, secret)), samples)
        progress(f"peers: {ROUNDS} rounds of {BATCHES} batches by each of {len(arms)} arms")
        timed = {name: timing.Arm(arm.run, arm.check, ROUNDS_OF.get(name, ROUNDS)) for name, arm in arms.items()}
        timings = timing.interleave(timed, ROUNDS, lambda: None)
    return _section(timings)


def _section(timings: dict[str, timing.Timing]) -> report.Section:
    size = BATCHES * BATCH * BYTES / 1e6  # MB, so that by milliseconds it is GB/s
    share = timings[RAW].median / timings[TAGGED].median
    lines = [
        f"{BATCHES} batches of {BATCH} samples of {BYTES:,} bytes a round, {AHEAD} requests in flight, median of "
        f"{ROUNDS} rounds ({ROUNDS_OF[CURVE]} with CURVE). Peers gather from the slab, tag, send, check tags, copy "
        "into the batch and check each record's checksum; the raw stream does none of it. CURVE encrypts besides. "
        "The arm without tags exists here only.",
        "",
        "| | GB/s | of the raw stream | p95 of a round, ms |",
        "|---|---|---|---|",
    ]
    for name, timed in timings.items():
        of_raw = timings[RAW].median / timed.median
        lines.append(f"| {name} | {size / timed.median:.2f} | {of_raw:.2f} | {timed.p95:.0f} |")
    figures = {name: {"GB/s": size / timed.median, **vars(timed)} for name, timed in timings.items()}
    verdict = report.Verdict(
        "peers, batch 256, pipelined, of a raw loopback stream", f">= {WANTED}", f"{share:.2f}", share >= WANTED
    )
    return report.Section(TITLE, lines, figures, [verdict])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser("python -m benchmarks.datacache.peers", description=__doc__)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        section = measure(pathlib.Path(folder), print)
    print(f"\n{section.title}\n")
    print("\n".join([*section.lines, "", *report.table(section.verdicts)]))


if __name__ == "__main__":
    main()

"""A process of a node in the tests of peers; it gets commands on standard input and answers on standard output.

Commands: "read EPOCH COUNT" reads the next COUNT batches of an epoch into a file; "numbers" prints the counters;
"close" closes the cache and prints the remaining threads and sockets. Reads of the source are logged.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import datacache
from datacache import World
from datacache.order import permutation

COUNT, BATCH, BYTES = 120, 5, 3000
SECRET = "a secret of this test's own"
ROOT = Path(__file__).parents[2]
_held: list[socket.socket] = []  # until this process ends


def sample(index: int) -> bytes:
    """The source's bytes."""
    return np.random.default_rng(index).bytes(BYTES)


def decode(payload: bytes) -> np.ndarray:
    """A sample as an array."""
    return np.frombuffer(payload, np.uint16)


def free_addresses(count: int) -> list[str]:
    """Free addresses of the loopback device whose ports the system will not give to others from now on.

    Bound sockets that do not listen reserve them; servers can still bind to them, one to each.
    """
    taken = [socket.socket() for _ in range(count)]
    _held.extend(taken)
    for each in taken:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return [f"127.0.0.1:{each.getsockname()[1]}" for each in taken]


def expected(rank: int, ranks: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels of a rank's epoch."""
    order = permutation(COUNT, 0, epoch).reshape(-1, ranks, BATCH)[:, rank].reshape(-1)
    return np.stack([decode(sample(index)) for index in order]), order


class Node:
    """Controls a process of a node."""

    def __init__(self, folder: Path, peers: list[str], rank: int, ranks: int | None = None, **settings):
        ranks = ranks or len(peers)
        node = rank * len(peers) // ranks
        settings = {
            "folder": str(folder),
            "world": [rank, ranks, node, len(peers), peers, peers[node]],
            "secret": SECRET,
            "encrypt": False,
            "peer_timeout": 20,
            **settings,
        }
        self.rank, self.ranks, self._folder = rank, ranks, folder
        self._errors = open(folder / f"errors-{rank}", "wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.datacache.node", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )

    def tell(self, command: str) -> None:
        """Sends a command."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def hear(self):
        """Waits for the answer to a command, or for the first line, which is sent at the start."""
        line = self.process.stdout.readline()
        assert line, self.errors()
        return json.loads(line)

    def ask(self, command: str):
        """Sends a command and waits for its answer."""
        self.tell(command)
        return self.hear()

    def errors(self) -> str:
        """Its standard error."""
        return (self._folder / f"errors-{self.rank}").read_text()

    def assert_read(self, epoch: int) -> None:
        """Asserts that an epoch whose batches have all been read was right."""
        parts = sorted(self._folder.glob(f"batches-{self.rank}-{epoch}-*.npz"))
        loaded = [np.load(part, allow_pickle=False) for part in parts]
        for got, wanted in zip(("samples", "labels"), expected(self.rank, self.ranks, epoch), strict=True):
            np.testing.assert_array_equal(np.concatenate([each[got] for each in loaded]), wanted)

    def end(self) -> None:
        """Ends the process in whatever state it is."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()
        self._errors.close()


def reads(folder: Path) -> list[int]:
    """The samples that all nodes have read from the source."""
    log = folder / "reads"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def run(settings: dict) -> None:
    """Runs in the process."""
    folder = Path(settings["folder"])
    rank, ranks, node, nodes, peers, bind = settings["world"]
    secret = settings["secret"].encode()
    world = World(rank, ranks, node, nodes, tuple(peers), bind, secret, settings["encrypt"])
    log = os.open(folder / "reads", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def read(index: int) -> bytes:
        os.write(log, f"{index}\n".encode())
        return sample(index)

    decode.datacache_fingerprint = settings.get("decode", "1")
    cache = datacache.DataCache(
        datacache.Indexed(read, COUNT, "samples of the tests of peers", labels=range(COUNT)),
        decode,
        folder / f"local-{node}",
        memory_dir=folder / "shm",
        memory_bytes=settings.get("memory_bytes"),
        world=world,
        peer_timeout=settings["peer_timeout"],
    )
    print(json.dumps("ready"), flush=True)
    iterations: dict = {}
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "read":
            epoch, count = map(int, arguments)
            batches = iterations.setdefault(epoch, (cache.batches(BATCH, epoch), []))
            for _ in range(count):
                samples, labels = next(batches[0])
                name = f"batches-{rank}-{epoch}-{len(batches[1]):04}.npz"
                np.savez(folder / name, samples=samples, labels=labels)
                batches[1].append(name)
            answer = count
        elif command == "numbers":
            answer = cache.counters.numbers()
        elif command == "close":
            iterations.clear()
            cache.close()
            answer = [each.name for each in threading.enumerate() if each.name.startswith("datacache")]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))

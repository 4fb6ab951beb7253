"""Real ranks under Horovod's rendezvous, like horovodrun's, but none is ended because another one has failed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousServer

from benchmarks.machines.cluster import slot_environment
from tests.parallel.launch import QUIET, ROOT

START = 300.0  # seconds until all ranks train, even on a busy machine


class Job:
    """Ranks of `tests.faults.mortal_rank` on this host.

    Attributes:
        folder: where ranks leave files: `began.rankR` when rank R has made its first step, `struck` at the time when
            one does itself harm, `end.rankR.json` when its script ends in order, and its output.
    """

    def __init__(self, folder: pathlib.Path, ranks: int, arguments: Sequence[str], nodes: int = 1):
        self.folder, self._count, self._arguments, self._nodes = folder, ranks, arguments, nodes
        self._ranks: list[subprocess.Popen[bytes]] = []

    def start(self, environment_of: Callable[[int], Mapping[str, str]] = lambda rank: {}) -> None:
        """Starts all ranks, with variables of their own."""
        slots = get_host_assignments([HostInfo("localhost", self._count)], self._count)
        self._server = RendezvousServer(verbose=0)
        port = self._server.start()
        self._server.init(slots)
        command = [sys.executable, "-m", "tests.faults.mortal_rank", str(self.folder), *self._arguments]
        for slot in slots:
            environment = {
                **os.environ,
                **QUIET,
                **slot_environment(slot, "127.0.0.1", port, "lo"),
                "HVD_SPARSE_LOCAL_SIZE": str(self._count // self._nodes),
                **environment_of(slot.rank),
            }
            with open(self.folder / f"output.rank{slot.rank}", "wb") as output:
                started = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            self._ranks.append(started)

    def wait(self, ranks: Sequence[int], limit: float) -> list[int | None]:
        """The exit statuses of some ranks; None for those that have not ended after `limit` seconds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and any(self._ranks[rank].poll() is None for rank in ranks):
            time.sleep(0.05)
        return [self._ranks[rank].poll() for rank in ranks]

    def wait_for(self, name: str, limit: float = START) -> None:
        """Waits until a file is in the folder."""
        deadline = time.monotonic() + limit
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} did not come; {self.outputs()}"
            time.sleep(0.05)

    def struck(self) -> float:
        """When the harm was done, in seconds since the epoch."""
        self.wait_for("struck")
        return float((self.folder / "struck").read_text())

    def signal(self, rank: int, number: signal.Signals) -> None:
        self._ranks[rank].send_signal(number)

    def output(self, rank: int) -> str:
        """What a rank has printed."""
        return (self.folder / f"output.rank{rank}").read_text(errors="replace")

    def outputs(self) -> str:
        """The last of what all ranks have printed."""
        return "\n".join(f"--- rank {rank}\n{self.output(rank)[-3000:]}" for rank in range(self._count))

    def end(self, rank: int) -> dict[str, object]:
        """How a rank's script ended, by its own word."""
        path = self.folder / f"end.rank{rank}.json"
        assert path.exists(), f"rank {rank} has ended without a word; {self.outputs()}"
        return json.loads(path.read_text())

    def stop(self) -> None:
        """Kills all ranks and waits for them."""
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait()
        self._server.stop()


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    ranks: int,
    *arguments: str,
    nodes: int = 1,
    environment_of: Callable[[int], Mapping[str, str]] = lambda rank: {},
) -> Iterator[Job]:
    """Context with a job; its ranks are killed at the end.

    Args:
        folder: an empty one.
        ranks: number of ranks P.
        arguments: those of `tests.faults.mortal_rank` after the folder.
        nodes: into how many nodes they are arranged.
        environment_of: variables of a rank of its own.
    """
    job = Job(folder, ranks, arguments, nodes)
    try:
        job.start(environment_of)
        yield job
    finally:
        job.stop()

"""A real job under horovodrun, elastic or with fixed ranks, on hosts that are loopback addresses of this machine."""

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
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
START = 300.0  # seconds until ranks have come, even on a busy machine
# horovodrun starts what is not on this host by ssh; here all hosts are on this machine. As with ssh, the command goes
# on when the program that has started it is ended.
_SSH = """#!{python} -S
import os, subprocess, sys, threading
def forward(source, to):
    while text := os.read(source, 1 << 16):
        os.write(to, text)
pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
ran = subprocess.Popen(["sh", "-c", sys.argv[-1]], start_new_session=True, **pipes)
threads = [threading.Thread(target=forward, args=(ran.stdout.fileno(), 1), daemon=True)]
threads.append(threading.Thread(target=forward, args=(ran.stderr.fileno(), 2), daemon=True))
for each in threads:
    each.start()
status = ran.wait()
for each in threads:
    each.join(1)
sys.exit(status % 256)
"""


class Log:
    """What a rank writes down for the process that has started the job, one line of JSON for each event.

    Lines have the time, the process and its host; several threads may write.

    Args:
        folder: that of the job.
    """

    def __init__(self, folder: pathlib.Path):
        self.host = os.environ["HOROVOD_HOSTNAME"]
        path = folder / f"events.{self.host}.{os.environ['HOROVOD_LOCAL_RANK']}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, **told: object) -> None:
        line = json.dumps({"time": time.time(), "pid": os.getpid(), "host": self.host, **told})
        os.write(self._file, f"{line}\n".encode())


class LoopbackJob:
    """Ranks of a module under `horovodrun`.

    Attributes:
        folder: an empty one, which the module gets as its first argument; ranks write their events there (`Log`).
    """

    def __init__(self, folder: pathlib.Path, module: str):
        self.folder, self._module = folder, module
        self._launcher: subprocess.Popen[bytes] | None = None
        self._read: dict[pathlib.Path, int] = {}  # file of events -> bytes read so far
        self._events: list[dict[str, Any]] = []

    def start(
        self, hosts: Mapping[str, int], least: int | None, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Starts the job.

        Args:
            hosts: loopback addresses, with their slots.
            least: the fewest ranks that train; None for a job with fixed ranks.
            arguments: those of the module after the folder.
            environment: added to that of this process.
        """
        self.set_hosts(hosts)
        programs = self.folder / "bin"
        programs.mkdir()
        self._program("bin/ssh", _SSH.format(python=sys.executable))
        command = [
            *(sys.executable, "-m", "benchmarks.launcher", "--gloo", "--disable-cache", "--network-interfaces", "lo"),
            *("-np", str(sum(hosts.values())), *self._placed(hosts, least)),
            *(sys.executable, "-m", self._module, str(self.folder), *arguments),
        ]
        own = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        with open(self.folder / "output", "wb") as output:
            self._launcher = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def set_hosts(self, hosts: Mapping[str, int]) -> None:
        """Sets what the discovery script answers from now on."""
        new = self.folder / "hosts.new"
        new.write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        new.rename(self.folder / "hosts")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What all ranks have written so far, in order."""
        for path in self.folder.glob("events.*"):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]  # a line may be half written
            self._read[path] = self._read.get(path, 0) + (len(whole) + 1 if whole else 0)
            self._events += map(json.loads, whole.splitlines())
        self._events.sort(key=lambda each: each["time"])
        return [each for each in self._events if kind in (None, each["event"])]

    def wait_for(self, condition: Callable[[], Any], limit: float = START) -> Any:
        """Waits until something is so, and returns it.

        Raises:
            AssertionError: if it is not within the limit in seconds, or the job has ended before; with all output.
        """
        deadline = time.monotonic() + limit
        while True:
            has_ended = self._launcher is None or self._launcher.poll() is not None  # before it is looked at what is so
            if found := condition():
                return found
            if has_ended:
                raise AssertionError(f"the job has ended; {self.output()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {limit:g} s; {self.output()}")
            time.sleep(0.05)

    def signal(self, host: str, number: signal.Signals, slot: int = 0) -> float:
        """Sends a signal to the newest process of a slot; returns the time."""
        lines = (self.folder / f"events.{host}.{slot}").read_text().splitlines()
        now = time.time()
        os.kill(json.loads(lines[-1])["pid"], number)
        return now

    def signal_launcher(self, number: signal.Signals) -> None:
        """Sends a signal to the launcher."""
        assert self._launcher is not None
        self._launcher.send_signal(number)

    def wait(self, limit: float) -> int:
        """The launcher's exit status.

        Raises:
            AssertionError: if the job has not ended within the limit in seconds; with all output.
        """
        assert self._launcher is not None
        try:
            return self._launcher.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended; {self.output()}") from None

    def output(self) -> str:
        """What the launcher and the ranks have printed."""
        return (self.folder / "output").read_text(errors="replace")

    def stop(self) -> None:
        """Ends the launcher and all ranks."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(20)
        for pid in {each["pid"] for each in self.events()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._launcher is not None:
            self._launcher.kill()
            self._launcher.wait()

    def _placed(self, hosts: Mapping[str, int], least: int | None) -> list[str]:
        """The arguments that say where ranks run."""
        if least is None:
            return ["-H", ",".join(f"{host}:{slots}" for host, slots in hosts.items())]
        discovery = self._program("discover", f"#!/bin/sh\ncat {self.folder}/hosts\n")
        return ["--min-np", str(least), "--max-np", "8", "--host-discovery-script", discovery]

    def _program(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    module: str,
    hosts: Mapping[str, int],
    least: int | None,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> Iterator[LoopbackJob]:
    """Context with a job; all its processes are killed at the end.

    Args:
        folder: an empty one.
        module: what each rank runs.
        hosts: as for `LoopbackJob.start`, as all that follow.
        least: the fewest ranks.
        arguments: of the module.
        environment: more variables.
    """
    job = LoopbackJob(folder, module)
    try:
        job.start(hosts, least, arguments, environment)
        yield job
    finally:
        job.stop()

"""A real elastic job under horovodrun, on hosts that are loopback addresses of this machine."""

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

from tests.parallel.launch import QUIET, ROOT

RANK = "tests.faults.elastic_rank"
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


class ElasticJob:
    """Ranks of a script under `horovodrun`.

    Attributes:
        folder: where the ranks write.
    """

    def __init__(self, folder: pathlib.Path, script: str = RANK):
        self.folder, self._script = folder, script
        self._launcher: subprocess.Popen[bytes] | None = None

    def start(
        self, hosts: Mapping[str, int], least: int, arguments: Sequence[str], own: Mapping[str, str] = {}
    ) -> None:
        """Starts the job; hosts have slots, it needs `least` ranks, and `own` are more environment variables."""
        self.set_hosts(hosts)
        discovery = self._program("discover", f"#!/bin/sh\ncat {self.folder}/hosts\n")
        programs = self.folder / "bin"
        programs.mkdir()
        self._program("bin/ssh", _SSH.format(python=sys.executable))
        command = [
            os.path.join(os.path.dirname(sys.executable), "horovodrun"),
            *("--gloo", "--disable-cache", "--network-interfaces", "lo", "-np", str(sum(hosts.values()))),
            *("--min-np", str(least), "--max-np", "8", "--host-discovery-script", discovery),
            *(sys.executable, "-m", self._script, str(self.folder), *arguments),
        ]
        environment = {
            **os.environ,
            **QUIET,
            **own,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        with open(self.folder / "output", "wb") as output:
            self._launcher = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
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
        lines = [line for path in self.folder.glob("events.*") for line in path.read_text().splitlines()]
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return sorted((each for each in found if kind in (None, each["event"])), key=lambda each: each["time"])

    def wait_for(self, condition: Callable[[], Any], limit: float = START) -> Any:
        """Waits until something is so, and returns it."""
        deadline = time.monotonic() + limit
        while not (found := condition()):
            assert time.monotonic() < deadline, self.output()
            assert self._launcher is not None and self._launcher.poll() is None, self.output()
            time.sleep(0.05)
        return found

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
        """The launcher's exit status."""
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

    def _program(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    hosts: Mapping[str, int],
    *arguments: str,
    least: int = 1,
    environment: Mapping[str, str] = {},
    script: str = RANK,
) -> Iterator[ElasticJob]:
    """Context with a job; all its processes are killed at the end.

    Args:
        folder: an empty one.
        hosts: loopback addresses, with their slots.
        arguments: those of the script after the folder.
        least: the fewest ranks that train.
        environment: more variables of the environment.
        script: the module that each rank runs.
    """
    job = ElasticJob(folder, script)
    try:
        job.start(hosts, least, arguments, environment)
        yield job
    finally:
        job.stop()

"""Starts the ranks of one launch, waits for them, and collects the outcome of each case on each rank."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import psutil

from tests.parallel import cases, networks

ROOT = pathlib.Path(__file__).parents[2]
START = 300.0  # seconds for the launcher to start and for the imports of all ranks, even on a busy machine
RELAUNCHES = 3
SECONDS = "processor seconds of a multi-rank case"

# One thread per rank, as several ranks share this machine's cores; and no log messages.
QUIET = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "GRPC_VERBOSITY": "ERROR",
    "CUDA_VISIBLE_DEVICES": "",
    "KERAS_BACKEND": "tensorflow",
    "PYTHONWARNINGS": "ignore",
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a launch: the launcher's exit status, None if it was killed after its time limit, and all output."""

    status: int | None
    output: str


@dataclasses.dataclass
class Outcome:
    """The outcome of a case on a rank: event is "pass", "fail", or "start" if the rank never finished the case."""

    event: str
    text: str = ""
    seconds: float = 0.0
    processor: float = 0.0


def horovodrun(
    ranks: int,
    command: Sequence[str],
    limit: float,
    hosts: str | None = None,
    environment: Mapping[str, str] = {},
    prefix: Sequence[str] = (),
) -> Ended:
    """Runs `horovodrun -np RANKS --gloo COMMAND` and leaves no process behind.

    Args:
        ranks: number of ranks P.
        command: the arguments of the Python interpreter that every rank runs, which is the one of this process.
        limit: seconds after which all processes are killed.
        hosts: the argument of -H; the default is this host.
        environment: added to the ranks' environment.
        prefix: put before horovodrun, to run it in a network namespace.
    """
    where = ["-H", hosts] if hosts else []
    launcher = [sys.executable, "-m", "benchmarks.launcher", "-np", str(ranks), "--gloo", "--disable-cache", *where]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*prefix, *launcher, sys.executable, *command],
            cwd=ROOT,
            env={**_untouched(os.environ), **QUIET, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_tree(process)
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace"))


def _untouched(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that `hvd.init` set in this process, for tests that need no ranks."""
    return {name: value for name, value in environment.items() if not name.startswith("HOROVOD_")}


def _kill_tree(process: subprocess.Popen) -> None:
    """Kills a launcher and all its descendants; Horovod runs ranks in sessions of their own."""
    if process.returncode is not None:
        return  # its process id may have been reused
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid)
        for member in [*family.children(recursive=True), family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
    process.wait()


class Results:
    """The outcomes of cases on all ranks: `of(case)` has one per rank, and `output` is what was printed."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, str], list[Outcome | None]] = {}
        self.output: dict[tuple[int, str], str] = {}

    def has(self, case: cases.Case) -> bool:
        """Whether any rank has started the case."""
        return any(self.of(case))

    def of(self, case: cases.Case) -> list[Outcome | None]:
        """The outcome of the case on each rank; None for a rank that never started it."""
        return self._outcomes.get((case.ranks, case.name), [None] * case.ranks)

    def seconds(self, case: cases.Case) -> float:
        """The processor time of a case, summed over its ranks."""
        return sum(outcome.processor for outcome in self.of(case) if outcome)

    def failure(self, case: cases.Case) -> str | None:
        """What went wrong in a case, rank by rank; None if it passed on every rank."""
        launch, outcomes = case.launch or cases.Launch(), self.of(case)
        told = any(outcome and outcome.event == "pass" for rank, outcome in enumerate(outcomes) if rank in launch.ended)
        faults = []
        for rank, outcome in enumerate(outcomes):
            if rank in launch.dies:
                if outcome and outcome.event != "start":
                    faults.append(f"rank {rank}: was meant to die, but ended with: {outcome.event}\n{outcome.text}")
            elif outcome is None:
                faults.append(f"rank {rank}: never began the case")
            elif outcome.event == "start" and not (told and rank in launch.ended):
                faults.append(f"rank {rank}: ended in the middle of the case without a word")
            elif outcome.event == "fail":
                faults.append(f"rank {rank}: failed after {outcome.seconds} s\n{outcome.text}")
        if not faults:
            return None
        return "\n".join([*faults, "--- what the launch printed", self.output.get((case.ranks, case.name), "")[-4000:]])

    def launch(self, selected: Sequence[cases.Case]) -> None:
        """Runs cases of one number of ranks; if a case ends the launch, starts another for the remaining cases."""
        pending = list(selected)
        for _ in range(1 + RELAUNCHES):
            self._launch(pending)
            pending = [case for case in pending if not self.has(case)]
            if not pending:
                return

    def _launch(self, selected: Sequence[cases.Case]) -> None:
        ranks, launch = selected[0].ranks, selected[0].launch or cases.Launch()
        with tempfile.TemporaryDirectory() as name, _network(launch) as (hosts, prefix, environment):
            folder = pathlib.Path(name)
            (folder / "names.json").write_text(json.dumps([case.name for case in selected]))
            suites = sorted({case.name.partition(".")[0] for case in selected})
            command = ["-m", "tests.parallel.run", *suites, "--results", name, "--names", str(folder / "names.json")]
            limit = START + sum(case.limit for case in selected)
            ended = horovodrun(ranks, command, limit, hosts, environment, prefix)
            self._read(folder, selected)
        died = "" if ended.status == 0 else f"\n(the launch ended with status {ended.status})"
        for case in selected:
            self.output[case.ranks, case.name] = ended.output + died

    def _read(self, folder: pathlib.Path, selected: Sequence[cases.Case]) -> None:
        ranks = selected[0].ranks
        for rank in range(ranks):
            path = folder / f"rank{rank}.jsonl"
            for line in path.read_text(encoding="utf8").splitlines() if path.exists() else []:
                entry = json.loads(line)
                outcomes = self._outcomes.setdefault((ranks, entry["case"]), [None] * ranks)
                outcomes[rank] = Outcome(entry["event"], entry["text"], entry["seconds"], entry["processor"])


@contextlib.contextmanager
def _network(launch: cases.Launch) -> Iterator[tuple[str | None, list[str], dict[str, str]]]:
    """The hosts of a launch, the command prefix that starts it there, and the environment variables it needs."""
    if launch.names is None:
        yield launch.hosts, [], {}
        return
    with networks.two_hosts(loopback_names=launch.names == "loopback") as network:
        yield network.hosts, network.prefix, network.environment

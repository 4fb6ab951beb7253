"""The runs of the convergence study: what identifies one, where finished ones are kept, and how new ones are made.

A finished run is a line of a file in the repository, so that an interrupted study can be resumed, here or on another
machine. A run with another recipe, other settings or other sources is a different run, and has a different fingerprint.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fcntl
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.convergence.settings import ARMS, MEASURES, MODELS, TranslationSettings
from benchmarks.studies.sources import ROOT, fingerprint_of
from examples import translation
from examples.text import corpus
from examples.training import arguments
from hvd_sparse.spec import describe

STORE = ROOT / "benchmarks" / "results" / "convergence_runs.jsonl"
TOGETHER = 4  # seeds
STEPS = 1000  # steps assumed for the fingerprint of a recipe that depends on their number
_SOURCES = {
    "BLEU": [
        "benchmarks/convergence/tasks.py",
        "examples/translation.py",
        "examples/models/transformer.py",
        "examples/models/lstm.py",
        *(f"examples/text/{name}.py" for name in ("batches", "catalogues", "corpus", "decoding", "vocabulary")),
    ],
    "top-1": [
        "benchmarks/convergence/tasks.py",
        "benchmarks/convergence/data.py",
        "examples/models/small.py",
        "examples/photographs.py",
    ],
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster of a run, and the density of its sparse arms.

    Attributes:
        nodes: number of nodes.
        local: ranks per node.
        density: density of sparse arms.
    """

    nodes: int = 2
    local: int = 2
    density: float = 0.01

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.local


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of the study.

    Attributes:
        model: a key of `MODELS`.
        arm: a key of `ARMS`.
        rate: learning rate, in units of the model's own.
        seed: of weights, samples and noise.
        epochs: replaces the model's own number; 0 keeps it.
        cluster: where it runs.
    """

    model: str
    arm: str
    rate: float
    seed: int
    epochs: int = 0
    cluster: Cluster = Cluster()

    def settings(self) -> Any:
        """The model's settings with this run's rate and epochs."""
        return MODELS[self.model].at(self.rate, self.epochs)

    def fingerprint(self) -> str:
        """A hash of everything that determines the run's outcome; the recipe counts, not the name of the arm."""
        recipe = arguments.recipe_of(ARMS[self.arm].recipe, self.cluster.density, steps=STEPS)
        own = {name: value for name, value in dataclasses.asdict(self).items() if name != "arm"}
        told = [own, dataclasses.asdict(self.settings()), describe(recipe), self._data()]
        return fingerprint_of(told, _SOURCES[MEASURES[self.model]])

    def _data(self) -> str:
        """A digest of the data, which differ between machines."""
        settings = MODELS[self.model]
        return _digest(settings.options) if isinstance(settings, TranslationSettings) else ""

    def __str__(self) -> str:
        return f"{self.model} {self.arm} x{self.rate:g} seed {self.seed}"


@functools.cache
def _digest(words: tuple[str, ...]) -> str:
    """A digest of the machine's sentence pairs."""
    options = translation.parse(words)
    return corpus.digest(corpus.of_catalogues(options.catalogues, options.least_words, options.most_words))


Outcomes = dict[Run, dict[str, Any]]
Make = Callable[[Sequence[Any], pathlib.Path], None]  # makes runs and adds them to a store


def load(store: pathlib.Path, wanted: Iterable[Run]) -> Outcomes:
    """The outcomes of the wanted runs that are in the store; a truncated line is ignored."""
    kept = {}
    for line in store.read_text(encoding="utf8").splitlines(keepends=True) if store.exists() else []:
        if line.endswith("\n"):
            outcome = json.loads(line)
            kept[outcome["fingerprint"]] = outcome
    prints = {run: run.fingerprint() for run in wanted}
    return {run: kept[each] for run, each in prints.items() if each in kept}


def append(store: pathlib.Path, outcome: dict[str, Any]) -> None:
    """Adds a finished run in one write, after removing a truncated line. Processes take turns."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with open(store, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(json.dumps(outcome, sort_keys=True).encode() + b"\n")


def finished(wanted: Sequence[Any], store: pathlib.Path, make: Make | None) -> dict[Any, dict[str, Any]]:
    """The outcomes of all wanted runs, made if missing in the store; without `make` only those in the store."""
    found = load(store, wanted)
    missing = [run for run in wanted if run not in found]
    print(f"{len(wanted)} runs, {len(missing)} of them {'to be made' if make else 'missing'}", flush=True)
    if missing and make is not None:
        began = time.perf_counter()
        make(missing, store)
        print(f"{len(missing)} runs took {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
        found = load(store, wanted)
    return found


def make(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs of one cluster one by one, on ranks that are started once; RuntimeError if they fail."""
    cluster = wanted[0].cluster
    with tempfile.TemporaryDirectory() as folder:
        launch([on_ranks(write_job(wanted, store, pathlib.Path(folder) / "job.json"), cluster)], cluster)


def simulate(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs of one cluster with threads as ranks, one process per core; RuntimeError if one fails."""
    ordered, cores = sorted(wanted, key=_turn), sorted(os.sched_getaffinity(0))[: len(wanted)]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            write_job(ordered[number :: len(cores)], store, pathlib.Path(folder) / f"job{number}.json")
            for number in range(len(cores))
        ]
        launch([on_threads(job, core) for job, core in zip(jobs, cores, strict=True)], wanted[0].cluster)


def on_ranks(job: pathlib.Path, cluster: Cluster) -> list[str]:
    """The command that makes a job's runs on real ranks."""
    launcher = [sys.executable, "-m", "benchmarks.launcher", "-np", str(cluster.ranks), "--gloo"]
    ranks = [sys.executable, "-m", "benchmarks.convergence.rank", str(job)]
    return [*launcher, *ranks]


def on_threads(job: pathlib.Path, core: int) -> list[str]:
    """The command that makes a job's runs in one process, on one core."""
    return [sys.executable, "-m", "benchmarks.convergence.simulation", str(job), str(core)]


def write_job(wanted: Iterable[Run], store: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Writes the job file of some runs; returns its path."""
    return _write_job(sorted(wanted, key=_turn), store, path)


def _write_job(ordered: Iterable[Any], store: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    described = [
        {**dataclasses.asdict(run), "settings": dataclasses.asdict(run.settings()), "fingerprint": run.fingerprint()}
        for run in ordered
    ]
    path.write_text(json.dumps({"store": str(store.resolve()), "runs": described}))
    return path


def on_cores(ordered: Sequence[Any], store: pathlib.Path, worker: str) -> None:
    """Makes runs in one process per core, dealt out in turn; RuntimeError if one fails.

    Args:
        ordered: runs, dataclasses with `settings` and `fingerprint`.
        store: file of finished runs.
        worker: the module that is a process; it gets a JSON file: {"store": where finished runs are added, "runs":
            [{the fields of a run, "settings": those of its model, "fingerprint"}, ...]}.
    """
    workers = min(len(os.sched_getaffinity(0)), len(ordered))
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            _write_job(ordered[number::workers], store, pathlib.Path(folder) / f"job{number}.json")
            for number in range(workers)
        ]
        launch([[sys.executable, "-m", worker, str(job)] for job in jobs], Cluster(1, 1))


def _turn(run: Run) -> tuple[Any, ...]:
    """The order of runs: a few seeds of all arms before further ones; runs that can share a graph are adjacent."""
    return list(MODELS).index(run.model), run.seed // TOGETHER, run.arm, run.rate, run.seed


def launch(commands: Sequence[Sequence[str]], cluster: Cluster) -> None:
    """Runs commands in parallel and shows their progress; if one fails, ends the others and raises RuntimeError."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started: list[subprocess.Popen[str]] = []
    try:
        with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
            try:
                started += (_start(command, cluster) for command in commands)
                told = {pool.submit(shown, process.stdout): process for process in started}
                for future in concurrent.futures.as_completed(told):
                    _require_success(told[future], future.result())
            except BaseException:
                for process in started:
                    _end(process)
                raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _start(command: Sequence[str], cluster: Cluster) -> subprocess.Popen[str]:
    environ = {**os.environ, **environment(cluster)}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _require_success(process: subprocess.Popen[str], others: str) -> None:
    if process.wait():
        raise RuntimeError(f"{others}\nThe ranks ended with status {process.returncode}; see their output above.")


def environment(cluster: Cluster) -> dict[str, str]:
    """The environment of all ranks, with which a run has the same bits anywhere."""
    return {
        "HVD_SPARSE_LOCAL_SIZE": str(cluster.local),
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _end(launcher: subprocess.Popen) -> None:
    """Tells a launcher to end its ranks, and kills it if it does not."""
    launcher.terminate()
    try:
        launcher.wait(3)
    except subprocess.TimeoutExpired:
        launcher.kill()


def shown(lines: Any) -> str:
    """Passes on rank 0's finished runs and epochs, and returns the end of everything else, for when it fails.

    Rank 0 of a launcher, or a process that is all ranks.
    """
    others = []
    for line in lines:
        progress = re.match(r"(?:\[0\]<stdout>:)?(> |(?=epoch \d))(.*)", line)
        if progress:
            print(f"{'  ' if progress[1] else '    '}{progress[2]}", flush=True)
        else:
            others.append(line)
    return "".join(others[-60:])

"""Jobs, each of which makes some runs of a study: processes, their progress, and what happens if one fails."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any


def write(ordered: Iterable[Any], store: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Writes a job file; returns its path.

    Args:
        ordered: runs, dataclasses with `settings()` and `fingerprint()`.
        store: where finished runs are added.
        path: of a JSON file: {"store": ..., "runs": [{the fields of a run, "settings": those of its model,
            "fingerprint"}, ...]}.
    """
    described = [
        {**dataclasses.asdict(run), "settings": dataclasses.asdict(run.settings()), "fingerprint": run.fingerprint()}
        for run in ordered
    ]
    path.write_text(json.dumps({"store": str(store.resolve()), "runs": described}))
    return path


def dealt(ordered: Sequence[Any], store: pathlib.Path, folder: pathlib.Path, count: int) -> list[pathlib.Path]:
    """Writes job files among which runs are dealt out in turn; the others as for `write`."""
    return [write(ordered[number::count], store, folder / f"job{number}.json") for number in range(count)]


def on_cores(ordered: Sequence[Any], store: pathlib.Path, worker: str) -> None:
    """Makes runs in one process per core, dealt out in turn; RuntimeError if one fails.

    Args:
        ordered: as for `write`.
        store: likewise.
        worker: the module that is a process; it gets the path of a job file.
    """
    workers = min(len(os.sched_getaffinity(0)), len(ordered))
    with tempfile.TemporaryDirectory() as folder:
        paths = dealt(ordered, store, pathlib.Path(folder), workers)
        launch([[sys.executable, "-m", worker, str(path)] for path in paths], local=1)


def launch(commands: Sequence[Sequence[str]], local: int) -> None:
    """Runs commands in parallel, with `local` ranks a node, and shows their progress.

    Raises:
        RuntimeError: if one fails; the others are ended.
    """
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started: list[subprocess.Popen[str]] = []
    try:
        with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
            try:
                started += (_start(command, local) for command in commands)
                told = {pool.submit(shown, process.stdout): process for process in started}
                for future in concurrent.futures.as_completed(told):
                    _require_success(told[future], future.result())
            except BaseException:
                for process in started:
                    _end(process)
                raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _start(command: Sequence[str], local: int) -> subprocess.Popen[str]:
    environ = {**os.environ, **environment(local)}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _require_success(process: subprocess.Popen[str], others: str) -> None:
    if process.wait():
        raise RuntimeError(f"{others}\nThe ranks ended with status {process.returncode}; see their output above.")


def environment(local: int) -> dict[str, str]:
    """The environment of all ranks, with which a run has the same bits anywhere."""
    return {
        "HVD_SPARSE_LOCAL_SIZE": str(local),
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

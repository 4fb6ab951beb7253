"""A copy of the checkout with one fault in it; nothing in it is imported from the checkout itself."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import psutil

from tools.mutants.faults import Fault

INSIDE = pathlib.Path(__file__).with_name("inside")
COMPILED = ("*/_*.so", "*/_ops.json", "build/native")  # ignored by git, but needed by the tests
MARK = "MUTANTS_COPY"  # environment variable that names the copy, in every process that was started in it
PACKAGES = ("hvd_sparse", "datacache", "lars", "link")
BUILD_LIMIT = 1800.0  # seconds
_folders: set[str] = set()  # the existing copies


class Ended(NamedTuple):
    """How a command ended: its exit status, or None if it was killed for taking too long, and its output."""

    status: int | None
    output: str


class Copy:
    """A copy in `folder`; commands in it run with `environment`."""

    def __init__(self, folder: pathlib.Path, environment: Mapping[str, str]):
        self.folder = folder
        self.environment = dict(environment)

    def run(self, command: Sequence[str], limit: float, environment: Mapping[str, str] = {}) -> Ended:
        """Runs a Python command in the copy, and leaves no process behind."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**self.environment, **environment},
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
                end_processes({str(self.folder)})
                process.wait()
            output.seek(0)
            return Ended(status, output.read().decode(errors="replace"))

    def plant(self, fault: Fault) -> str | None:
        """Changes the file and builds what is compiled from it; returns why this failed, if it did."""
        path = self.folder / fault.path
        path.write_text(fault.planted(path.read_text(encoding="utf8")), encoding="utf8")
        if not fault.is_native:
            return None
        build = ["setup.py", "--quiet", "build_ext", "--inplace"]
        ended = self.run(build, BUILD_LIMIT, {"HVD_SPARSE_WITH_CUDA": "0"})  # no listed fault is only in GPU code
        return None if ended.status == 0 else ended.output[-2000:]

    def check_imports(self) -> None:
        """Checks that a process here, and one that it starts in another folder, import the copy.

        Raises:
            RuntimeError: if they import something else.
        """
        names = [name for name in PACKAGES if (self.folder / name).exists()]
        specs = f"[importlib.util.find_spec(name).origin for name in {names}]"
        ask = f"import importlib.util; print(*{specs}, sep=chr(10))"
        again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}], cwd='/', check=True)"
        for command in (ask, again):
            ended = self.run(["-c", command], 120)
            found = [pathlib.Path(line).parent.parent for line in ended.output.split()]
            if ended.status != 0 or found != [self.folder] * len(names):
                raise RuntimeError(f"A copy in {self.folder} is not what is imported there: {ended.output}")


def end_processes(folders: Collection[str] = _folders) -> None:
    """Kills the processes in copies; found by MARK, as ranks have own sessions and may have lost their parents."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get(MARK) in folders:
                each.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def made(root: pathlib.Path) -> Iterator[Copy]:
    """A fresh copy of a checkout's files that git tracks or would add, and of compiled files; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mutants_", ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name).resolve()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        compiled = [path.relative_to(root).as_posix() for pattern in COMPILED for path in root.glob(pattern)]
        for each in {*names, *compiled} - {""}:
            _copy(root / each, folder / each)
        _folders.add(str(folder))
        try:
            yield Copy(folder, _environment(root, folder))
        finally:
            _folders.discard(str(folder))


def _copy(path: pathlib.Path, to: pathlib.Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, to)
    elif path.exists():  # a removed file is still listed until this is committed
        shutil.copy2(path, to)


def _environment(root: pathlib.Path, folder: pathlib.Path) -> dict[str, str]:
    """This process's environment, with the copy and the pytest plugin on Python's path in place of the checkout."""
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    kept = [each for each in others if pathlib.Path(each).resolve() != root.resolve()]
    path = os.pathsep.join([str(folder), str(INSIDE), *kept])
    return {**os.environ, "PYTHONPATH": path, MARK: str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

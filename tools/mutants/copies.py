"""A copy of the checkout with one fault in it, in which nothing is imported from the checkout itself."""

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
COMPILED = ("*/_*.so", "*/_ops.json", "build/native")  # what git ignores and the tests need
MARK = "MUTANTS_COPY"  # names the copy in the environment of every process that was started in it
PACKAGES = ("hvd_sparse", "datacache", "lars", "link")
BUILD_LIMIT = 1800.0  # seconds
_folders: set[str] = set()  # of the copies that there are


class Ended(NamedTuple):
    """How a command ended: its exit status, None where it was killed for taking too long; and its output."""

    status: int | None
    output: str


class Copy:
    """A copy in `folder`; `environment` is that of the commands that are run in it."""

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
        """Changes the file and builds what is made of it; returns why that failed, if it did."""
        path = self.folder / fault.path
        path.write_text(fault.planted(path.read_text(encoding="utf8")), encoding="utf8")
        if not fault.is_native:
            return None
        build = ["setup.py", "--quiet", "build_ext", "--inplace"]
        ended = self.run(build, BUILD_LIMIT, {"HVD_SPARSE_WITH_CUDA": "0"})  # no listed fault is in a GPU's code alone
        return None if ended.status == 0 else ended.output[-2000:]

    def check_imports(self) -> None:
        """Looks whether a process here, and one that it starts in another folder, imports the copy.

        Raises:
            RuntimeError: where it imports something else.
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
    """Ends what runs in copies. Ranks have sessions of their own, and may have lost their parents: the mark tells."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get(MARK) in folders:
                each.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def made(root: pathlib.Path) -> Iterator[Copy]:
    """A fresh copy of what git knows of in a checkout, or would add, and of what is compiled; removed in the end."""
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
    elif path.exists():  # what is removed and not yet committed is listed
        shutil.copy2(path, to)


def _environment(root: pathlib.Path, folder: pathlib.Path) -> dict[str, str]:
    """This process's, but that the checkout is not on Python's path: the copy is, and the plugin of the runs."""
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    kept = [each for each in others if pathlib.Path(each).resolve() != root.resolve()]
    path = os.pathsep.join([str(folder), str(INSIDE), *kept])
    return {**os.environ, "PYTHONPATH": path, MARK: str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

"""A slow network file system for tests and benchmarks: a read-only passthrough by FUSE with realistic costs.

    python -m benchmarks.datacache.slow_files --source DIR --mount DIR --rate 50MB/s --latency 2ms --in-flight 16
    getfattr -n user.slow_files --only-values DIR        # operations by kind, bytes read, most operations in flight

One token bucket limits all readers together to the rate, each operation has the latency, and at most the cap are in
flight, so that a metadata storm costs what it would on such a file system. The server is a separate process, so its
work does not hold up the readers' interpreter; its processor time does count, so rates stay at or under 200 MB/s.
server.py says what a client may cache. It needs the Debian packages libfuse3-dev, fuse3 and pkg-config, and
requirements-fuse.txt.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import json
import mmap
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

_COUNTERS = "user.slow_files"
_ROOT = Path(__file__).parents[3]
_PAGE = 4096
_PIECE = 1 << 20


class Counted(NamedTuple):
    """The server's counters.

    Attributes:
        operations: by kind (lookup, getattr, opendir, readdir, open, read, readlink, statfs).
        bytes: of files' contents that were sent.
        most_in_flight: operations under way at the same time, at the most.
    """

    operations: dict[str, int]
    bytes: int
    most_in_flight: int

    @property
    def all_operations(self) -> int:
        """Operations of all kinds."""
        return sum(self.operations.values())


class Calibration(NamedTuple):
    """The performance of plain readers.

    Attributes:
        one: bytes per second of one reader that reads whole files, one after another.
        rate: bytes per second of as many such readers as there are places for operations.
        latency: seconds of one read of 4 KB at a random place of an open file, the median.
    """

    one: float
    rate: float
    latency: float


def bytes_per_second(text: str) -> float:
    """A rate such as "50MB/s" as a number; 1 MB is 10^6 bytes.

    Raises:
        ValueError: if it is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(k|m|g)b/s", text.strip().lower())
    if not found or float(found[1]) <= 0:
        raise ValueError(f"Expected a rate such as 50MB/s, got {text!r}.")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


def seconds(text: str) -> float:
    """A latency such as "2ms" as seconds.

    Raises:
        ValueError: if it is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s)", text.strip().lower())
    if not found:
        raise ValueError(f"Expected a latency such as 2ms, got {text!r}.")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


def unavailable() -> str | None:
    """Why there can be no slow file system here, with the remedy; None if there can."""
    if not os.path.exists("/dev/fuse"):
        return (
            "A slow file system needs /dev/fuse: load the kernel module (modprobe fuse), or pass it to the container."
        )
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "A slow file system needs access to /dev/fuse: run it as root."
    if shutil.which("fusermount3") is None or importlib.util.find_spec("pyfuse3") is None:
        return (
            "A slow file system needs FUSE: apt-get install libfuse3-dev fuse3 pkg-config, then "
            ".venv/bin/pip install -r requirements-fuse.txt."
        )
    return None


def drop_caches() -> bool:
    """Drops the kernel's caches of files, if run as root; returns whether it did."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


class SlowFiles:
    """A directory behind a slow link, mounted for the duration of a `with` block.

    Attributes:
        mount: where it is.
        pid: of the server.
    """

    def __init__(self, source: str | os.PathLike, rate: str | None = None, latency: str = "0ms", in_flight: int = 16):
        """Takes a directory that does not change, a rate ("50MB/s"; None: no limit), a latency ("2ms") and a cap.

        Raises:
            ValueError: if one of them is invalid.
        """
        if rate is not None:
            bytes_per_second(rate)
        seconds(latency)
        if in_flight < 1 or not os.path.isdir(source):
            raise ValueError(f"Expected a directory and in_flight of at least 1, got {source} and {in_flight}.")
        self._source, self._rate, self._latency, self._in_flight = Path(source), rate, latency, in_flight
        self._server: subprocess.Popen[str] | None = None
        self._last: Counted | None = None
        self.mount = Path()

    def __enter__(self) -> SlowFiles:
        reason = unavailable()
        if reason is not None:
            raise RuntimeError(reason)
        self.mount = Path(tempfile.mkdtemp(prefix="slow_files_"))
        command = [
            sys.executable,
            "-m",
            "benchmarks.datacache.slow_files",
            "--until-closed",
            "--source",
            str(self._source),
        ]
        command += ["--mount", str(self.mount), "--latency", self._latency, "--in-flight", str(self._in_flight)]
        command += [] if self._rate is None else ["--rate", self._rate]
        # A session of its own: what interrupts the readers must not take the files away while they end.
        self._server = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._server.stdout is not None
        if not self._server.stdout.readline().startswith("Mounted"):
            status = self._server.wait()
            self._remove()
            raise RuntimeError(f"The slow file system did not start: its server ended with status {status}.")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        out, _nothing = self._server.communicate()  # closes its input
        if self._server.returncode == 0:
            self._last = _read_counted(out)
        self._remove()

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def counted(self) -> Counted:
        """The counters so far, or at the end; reading them is not counted."""
        if self._last is not None:
            return self._last
        return _read_counted(os.getxattr(self.mount, _COUNTERS).decode())

    def calibrate(self, limit: float = 1.0) -> Calibration:
        """Measures what plain readers reach, for about `limit` seconds each; what they read is counted, too.

        Afterwards the kernel knows names and attributes for a while; `drop_caches` has it forget them.
        """
        paths = sorted(path for path in self.mount.rglob("*") if path.is_file())
        if not paths:
            raise ValueError(f"{self._source} has no file to calibrate with.")
        random.Random(0).shuffle(paths)
        drop_caches()  # a second calibration must find no data of the first
        one = _read_files(paths, 1, limit)
        rate = _read_files(paths[::-1], self._in_flight, limit)
        return Calibration(one, rate, _random_reads(max(paths, key=lambda path: path.stat().st_size), limit))

    def _remove(self) -> None:
        """Unmounts what a killed server has left, and removes the directory."""
        if os.path.ismount(self.mount) or not os.path.exists(self.mount):  # without a server it does not "exist"
            subprocess.run(["fusermount3", "-u", "-z", str(self.mount)], capture_output=True, check=False)
        with contextlib.suppress(FileNotFoundError):
            self.mount.rmdir()


def _read_counted(text: str) -> Counted:
    numbers: dict[str, Any] = json.loads(text)
    return Counted(numbers["operations"], numbers["bytes"], numbers["most_in_flight"])


def _read_files(paths: Iterable[Path], readers: int, limit: float) -> float:
    """Bytes per second of `readers` readers, which share the files and stop after the limit, or when all are read."""
    remaining = iter(list(paths))
    began = time.perf_counter()

    def read() -> int:
        count = 0
        for path in remaining:  # next() on a list's iterator is one step for all threads
            with open(path, "rb", buffering=0) as file:
                while piece := file.read(_PIECE):
                    count += len(piece)
            if time.perf_counter() - began > limit:
                break
        return count

    with concurrent.futures.ThreadPoolExecutor(readers) as pool:
        counts = [future.result() for future in [pool.submit(read) for _ in range(readers)]]
    return sum(counts) / (time.perf_counter() - began)


def _random_reads(path: Path, limit: float, most: int = 100) -> float:
    places = random.Random(1)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)  # past the page cache
    taken: list[float] = []
    try:
        pages = max(1, os.fstat(descriptor).st_size // _PAGE)
        began = time.perf_counter()
        while not taken or (len(taken) < most and time.perf_counter() - began < limit):
            taken.append(_timed_read(descriptor, places.randrange(pages) * _PAGE))
    finally:
        os.close(descriptor)
    return statistics.median(taken)


def _timed_read(descriptor: int, offset: int) -> float:
    with mmap.mmap(-1, _PAGE) as buffer:  # begins at a page, as O_DIRECT wants
        began = time.perf_counter()
        os.preadv(descriptor, [buffer], offset)
        return time.perf_counter() - began

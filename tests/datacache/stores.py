"""Stores that fsspec opens, each with real bytes behind it: a new one needs one row, and test_stores.py runs on it."""

from __future__ import annotations

import collections
import contextlib
import http.server
import logging
import random
import shutil
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SECRET = "hidden-5c1d0a"


class Store(NamedTuple):
    """A folder in a store.

    Attributes:
        address: for sources.
        options: as `storage_options`.
        put: writes a file.
        remove: removes one.
        reads: how often the bytes of files were asked for; None if nobody counts.
    """

    address: str
    options: dict[str, Any] | None
    put: Callable[[str, bytes], None]
    remove: Callable[[str], None]
    reads: Callable[[], int] | None = None


@contextlib.contextmanager
def memory(path: Path) -> Iterator[Store]:
    """The memory of this process."""
    import fsspec

    system, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    yield Store(f"memory:/{root}", None, lambda name, data: system.pipe(f"{root}/{name}", data), _remover(system, root))
    system.rm(root, recursive=True)


@contextlib.contextmanager
def s3(path: Path) -> Iterator[Store]:
    """A server of S3, whose own log counts."""
    import s3fs
    from moto.server import ThreadedMotoServer

    class Counted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage()
            counts["reads"] += f"GET /{root}/" in line

    bucket = f"data-{uuid.uuid4().hex}"  # the server's buckets are those of the process
    root = f"{bucket}/train"
    counts, log, handler = collections.Counter[str](), logging.getLogger("werkzeug"), Counted()
    level, log.propagate = log.level, False
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    address, port = server.get_host_and_port()
    options = {"key": "someone", "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://{address}:{port}"}}
    try:
        system = s3fs.S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)
        system.mkdir(bucket)
        yield Store(
            f"s3://{root}",
            options,
            lambda name, data: system.pipe_file(f"{root}/{name}", data),
            _remover(system, root),
            lambda: counts["reads"],
        )
    finally:
        server.stop()
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = True


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, also parts of files, and fails as its server is told to."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            super().do_GET()
            return
        self.server.reads += 1
        fault = self.server.fault()
        if not path.exists() or fault == "503":
            self.send_error(503 if fault else 404)
            return
        data, asked = path.read_bytes(), self.headers.get("Range")
        begin, end = 0, len(data)
        if asked:
            first, _, last = asked.partition("=")[2].partition("-")
            begin, end = int(first), min(int(last or len(data)) + 1, len(data))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.end_headers()
        cut = {"cut": (end - begin) // 2, "killed": 0}.get(fault, end - begin)
        self.wfile.write(data[begin : begin + cut])
        self.close_connection = cut < end - begin

    def do_HEAD(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def web(path: Path, faults: tuple[str, ...] = ("",)) -> Iterator[Store]:
    """A web server of this machine; its answers to reads are drawn from these faults."""
    root = path / "web"
    root.mkdir(parents=True)
    drawn = random.Random(0)

    def handler(*arguments: Any) -> Handler:
        return Handler(*arguments, directory=str(root))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.reads, server.fault = 0, lambda: drawn.choice(faults)
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def put(name: str, data: bytes) -> None:
            (root / "train" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "train" / name).write_bytes(data)

        address = f"http://127.0.0.1:{server.server_address[1]}/train"
        yield Store(address, None, put, lambda name: (root / "train" / name).unlink(), lambda: server.reads)
        server.shutdown()


@contextlib.contextmanager
def archive(path: Path) -> Iterator[Store]:
    """A ZIP file, which is written anew at each change."""
    file, held = path / "data.zip", path / "held"

    def write() -> None:
        with zipfile.ZipFile(file, "w") as made:
            for each in sorted(held.rglob("*")):
                made.write(each, f"train/{each.relative_to(held)}")

    def put(name: str, data: bytes) -> None:
        (held / name).parent.mkdir(parents=True, exist_ok=True)
        (held / name).write_bytes(data)
        write()

    def remove(name: str) -> None:
        (held / name).unlink()
        write()

    path.mkdir(exist_ok=True)
    yield Store(f"zip://train::{file}", None, put, remove)
    shutil.rmtree(held)


def _remover(system: Any, root: str) -> Callable[[str], None]:
    return lambda name: system.rm_file(f"{root}/{name}")


STORES = {"memory": memory, "S3": s3, "web": web, "archive": archive}

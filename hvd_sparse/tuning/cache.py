"""A cache of a cluster's measurements for the next vector and the next run, the same for all ranks."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
import time
from typing import Any

import tensorflow as tf

from hvd_sparse._version import __version__
from hvd_sparse.storage.files import replacing
from hvd_sparse.transport import host_names
from hvd_sparse.transport.communicator import Communicator, Grid

_log = logging.getLogger(__name__)
CACHE_VARIABLE = "HVD_SPARSE_CACHE"
KEPT_FOR = 7 * 24 * 3600.0  # seconds after which a cluster is measured again: networks change under the same names
_FORMAT = "hvd_sparse cluster 1"


class MeasurementCache:
    """Measurements of one cluster by subject, kept by the first rank: in memory, and in a file for the next run.

    All ranks create it and read it together. Whatever file or memory the others have, all ranks get what the first one
    knows, so they act the same. The file is $HVD_SPARSE_CACHE/clusters/DIGEST.json, by default under
    ~/.cache/hvd_sparse; the digest is that of the hosts, the shape of the grid, the transport and our version. If the
    file cannot be read or written, a message says so and the cache works without it.

    Attributes:
        path: the path of the file; None except on the first rank.
    """

    def __init__(self, grid: Grid):
        hosts = grid.world.gather_descriptions(host_names.own(), "cache.hosts")
        self._world = grid.world
        self._file = _file_of(_account(grid, hosts)) if grid.world.rank == 0 else None

    @property
    def path(self) -> pathlib.Path | None:
        """The path of the file."""
        return None if self._file is None else self._file.path

    def read(self, subject: str) -> Any:
        """The figures written for a subject, JSON-serializable; None if there are none. A collective."""
        known = None if self._file is None else self._file.figures.get(subject)
        return self._world.gather_descriptions(known, "cache.read")[0]

    def write(self, subject: str, figures: Any) -> None:
        """Stores JSON-serializable figures, also in the file; only the first rank does so."""
        if self._file is not None:
            self._file.figures[subject] = figures
            self._file.save()

    def clear(self) -> None:
        """Discards everything that is stored."""
        if self._file is not None:
            self._file.figures = {}
            self._file.since = time.time()

    def complain(self, problem: str) -> None:
        """Prints on the first rank what is wrong with the file."""
        if self._file is not None:
            self._file.complain(problem)


class _CacheFile:
    """The figures of one cluster in this process, as read from its file."""

    def __init__(self, path: pathlib.Path, account: dict[str, Any]):
        self.path = path
        self.since = time.time()
        self.figures: dict[str, Any] = {}
        self._account = account
        try:
            self._load(json.loads(path.read_text(encoding="utf8")))
        except FileNotFoundError:
            pass
        except (OSError, KeyError, TypeError, ValueError) as error:
            self.complain(f"is not used: {error}")

    def save(self) -> None:
        """Writes the file."""
        content = {"format": _FORMAT, "cluster": self._account, "since": self.since, "figures": self.figures}
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        try:
            with replacing(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            self.complain(f"could not be written, so the next run will measure again: {error}")

    def complain(self, problem: str) -> None:
        """Warns of what is wrong with the file."""
        _log.warning("%s %s", self.path, problem)

    def _load(self, content: dict[str, Any]) -> None:
        """Takes over the figures; raises KeyError, TypeError or ValueError if they are not what `save` writes."""
        if content["format"] != _FORMAT or content["cluster"] != self._account:
            raise ValueError(f"expected {_FORMAT!r} of this cluster, got {content['format']!r} of {content['cluster']}")
        age = time.time() - content["since"]
        if age > KEPT_FOR:
            raise ValueError(f"its figures are {age / 86400:.0f} days old")
        if not isinstance(content["figures"], dict):
            raise TypeError(f"expected figures by subject, got {type(content['figures']).__name__}")
        self.since, self.figures = content["since"], content["figures"]


_files: dict[pathlib.Path, _CacheFile] = {}


def _file_of(account: dict[str, Any]) -> _CacheFile:
    """The cache file of this cluster, read unless this process has already done so."""
    folder = pathlib.Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/hvd_sparse").expanduser() / "clusters"
    digest = hashlib.sha256(json.dumps(account, sort_keys=True).encode()).hexdigest()
    path = folder / f"{digest[:16]}.json"
    if path not in _files:
        _files[path] = _CacheFile(path, account)
    return _files[path]


def _account(grid: Grid, hosts: list[str]) -> dict[str, Any]:
    """What identifies a cluster, JSON-serializable."""
    return {
        "hosts": hosts,
        "nodes": grid.cross.size,
        "local": grid.node.size,
        "transport": _transport(grid.world),
        "node": type(grid.node).__name__,
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "version": __version__,
    }


def _transport(world: Communicator) -> str:
    """What carries the bytes, as far as it is known, for example "HorovodCommunicator gloo"."""
    chosen = (os.environ.get(name, "") for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"))
    return " ".join([type(world).__name__, *sorted({name.lower() for name in chosen if name})])

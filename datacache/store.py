"""What a node keeps of a source: a directory with the listing, the levels on disk, and what processes share.

LOCAL_DIR/KIND-IDENTITY/            one for each source, whatever its content
manifest.json                   which listing is the current one
FINGERPRINT/                    one for each content; those that are no longer current and not in use are removed
listing/, source/           the listing; the bytes of samples, in LMDB
decoded-DECODE/             decoded samples, in LMDB
layout-DECODE.json          what decoded samples are
fetching, serving           locks of samples that are being fetched, and of addresses at which peers are served
quarantine.jsonl, stats/    records that were damaged; counters of each process
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from datacache import disk, files, limits, memory, slab
from datacache.counters import Counters
from datacache.disk import DiskLevel
from datacache.elements import Elements
from datacache.errors import NoSpaceError
from datacache.files import IndexLocks
from datacache.layout import Layout
from datacache.levels import Level, Nowhere, Quarantine
from datacache.listing import UNKNOWN_LENGTH, Listing
from datacache.reader import Decoder, ReadThrough
from datacache.slab import Slab
from datacache.sources import Progress, Source
from datacache.tmpfs import TmpfsLevel

_FORMAT = "datacache store 1"
_KEPT = 2  # levels of decoded samples of the last functions
_SHARES = 4  # of the address space that is left, one for each level and one for everything else
_log = logging.getLogger(__name__)


class Store:
    """A source's directory on the local disk, open.

    Attributes:
        source: where samples come from.
        listing: what it holds.
        fingerprint: of the listing.
        directory: of this content.
        quarantine: the list of records that were found damaged.
        locks: one for each sample, held while it is fetched.
    """

    def __init__(
        self, source: Source, local_dir: str | os.PathLike, relist: bool = False, progress: Progress | None = None
    ):
        """Opens the directory; the first process of a node lists the source, unless an earlier run has done so.

        Args:
            source: where samples come from.
            local_dir: on a disk of this machine; created if missing.
            relist: list the source again.
            progress: of the listing.

        Raises:
            UnsuitableFileSystemError: if local_dir is on a network file system.
            OSError, ValueError: as `Source.scan`, or if local_dir cannot be used.
        """
        self.source = source
        files.refuse_address(local_dir, "local_dir as a directory on a disk of this machine", "choose one")
        root = directory_of(source, local_dir)
        with files.accessing(f"{root} cannot be used"):
            files.refuse_remote(root, "local_dir")
            root.parent.mkdir(parents=True, exist_ok=True)
            _tell_of_doubtful(source, local_dir, root)
            root.mkdir(mode=0o700, exist_ok=True)
            _require_own(root)
        with files.locked(root):
            known = None if relist else _known(root)
            self.listing, self.fingerprint = known or _list(source, root, progress)
            self.directory = root / self.fingerprint
            self._use: int | None = os.open(self.directory / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            files.share(self._use)
            remove_unused(root, keep=self.fingerprint)
        self.quarantine = Quarantine(self.directory / "quarantine.jsonl")
        self.locks = IndexLocks(self.directory / "fetching", lambda index: source.describe(self.listing, index))

    @property
    def stats(self) -> Path:
        """Where processes save their counters."""
        return self.directory / "stats"

    def open_source_level(self, limit: int | None) -> Level:
        """The level for the source's bytes; `limit` in bytes, 0 for none."""
        return self._open("source", "disk", self.forecast(), limit)

    def open_decoded_level(self, decode: str, layout: Layout, limit: int | None) -> Level:
        """The level for decoded samples of this layout, from the decode function with this fingerprint.

        Those of other functions are removed, except for those that are in use and the one that was used last.
        """
        wanted = None if layout.varies else disk.forecast(np.full(len(self.listing), layout.size))
        with self.opening():
            opened = self._open(f"decoded-{decode}", "decoded", wanted, limit)
            _remove_older(self.directory)
        return opened

    def open_memory_level(
        self, decode: str, layout: Layout, owned: range, memory_dir: Path, limit: int | None
    ) -> Level:
        """The level for decoded samples in memory; `owned` are those that this node keeps.

        If shapes vary it is an LMDB file on the tmpfs `memory_dir`, otherwise a slab there, of what the samples need.
        """
        if limit == 0:
            return Nowhere("memory")
        directory, key = memory.directory(memory_dir), f"{self.fingerprint[:16]}-{decode[:16]}"
        if layout.varies:
            return TmpfsLevel(directory, key, limit)
        needed = slab.needed(len(owned), layout.size)
        return Slab(directory, key, owned, needed if limit is None else min(limit, needed))

    def opening(self) -> contextlib.AbstractContextManager[None]:
        """A lock to hold while a level is opened, so that no other process removes it meanwhile."""
        return files.locked(self.directory)

    def forecast(self) -> int | None:
        """Bytes of the local disk that the source's bytes will take; None if that is not known in advance."""
        lengths = self.listing.lengths
        return None if (lengths == UNKNOWN_LENGTH).any() else disk.forecast(lengths)

    def read_through(
        self, decoder: Decoder, memory: Level, decoded: Level, disk: Level, counters: Counters, owned: range
    ) -> ReadThrough:
        """The reader that fetches this source's samples through these levels; see `ReadThrough`."""
        return ReadThrough(
            self.source, self.listing, decoder, memory, decoded, disk, self.locks, self.quarantine, counters, owned
        )

    def load_elements(self, decode: str) -> Elements | None:
        """What `save_elements` saved; None if nothing was, or if it was saved before labels were examined."""
        known = files.read_json(self._layout(decode))
        return Elements.from_json(known) if known and "labels" in known else None

    def save_elements(self, decode: str, elements: Elements) -> None:
        """Saves what decoded samples are."""
        files.write_json(self._layout(decode), {**elements.to_json(), "labels": "int64"})

    def close(self) -> None:
        """Allows others to remove the directory."""
        if self._use is not None:
            os.close(self._use)
            self._use = None

    def _open(self, directory: str, name: str, wanted: int | None, limit: int | None) -> Level:
        if limit == 0:
            return Nowhere(name)
        return DiskLevel(self.directory / directory, self._size(directory, wanted, limit), name)

    def _layout(self, decode: str) -> Path:
        return self.directory / f"layout-{decode}.json"

    def _size(self, directory: str, wanted: int | None, limit: int | None) -> int:
        """The size of an LMDB file: at most what is wanted, and at most the limit; without either, all there is."""
        known = [size for size in (wanted, limit) if size is not None]
        most = _most(self.directory / directory)
        if most is not None and (not known or min(known) > most):
            _log.warning("datacache: %s keeps at most %s bytes, by a limit of this process.", directory, f"{most:,}")
            return most
        if known:
            return min(known)
        device, data = os.statvfs(self.directory), self.directory / directory / "data.mdb"
        has = data.stat().st_blocks * 512 if data.exists() else 0
        return max(device.f_bavail * device.f_frsize + has, disk.SMALLEST)


def directory_of(source: Source, local_dir: str | os.PathLike) -> Path:
    """Where a source is kept, whatever its content."""
    return _directory(source.identity, local_dir)


def _most(directory: Path) -> int | None:
    """The bytes that a level's file may have by this process's limits; None if there are none.

    Raises:
        NoSpaceError: if that is too little for a level.
    """
    rooms = [*limits.of_a_file(), *(room._replace(bytes=room.bytes // _SHARES) for room in limits.of_addresses())]
    if not rooms:
        return None
    least = min(rooms)
    if least.bytes < disk.SMALLEST:
        raise NoSpaceError(
            errno.EFBIG,
            f"{directory} needs at least {disk.SMALLEST:,} bytes, {least.bytes:,} are free within {least.of}: "
            f"{least.remedy}, or pass disk_bytes=0",
        )
    return least.bytes


def _require_own(root: Path) -> None:
    """Raises an error for a directory of another user, which nobody else may use."""
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES,
            f"{root} cannot be used: it belongs to another user (uid {root.stat().st_uid}, and this is uid "
            f"{os.getuid()}): choose a local_dir of your own",
        )


def _tell_of_doubtful(source: Source, local_dir: str | os.PathLike, root: Path) -> None:
    """Says that what an earlier version has kept is not used, when something is about to be kept in its place."""
    if source.doubtful_identity is None or root.exists():
        return
    kept = _directory(source.doubtful_identity, local_dir)
    if kept.is_dir():
        _log.warning(
            "datacache: %s was kept by an earlier version, which did not tell different functions and labels of one "
            "name apart, so it is not used and samples are read from the source; you can remove it.",
            kept,
        )


def _remove_older(directory: Path) -> None:
    """Removes levels of decoded samples that are neither in use nor among the last two; under the lock `opening`."""
    levels = [path for path in directory.glob("decoded-*") if (path / "use").exists()]
    levels.sort(key=lambda path: (path / "use").stat().st_mtime_ns, reverse=True)
    for path in levels[_KEPT:]:
        with files.locked(path):
            if not files.is_in_use(path / "use"):
                shutil.rmtree(path)


def _directory(identity: dict[str, Any], local_dir: str | os.PathLike) -> Path:
    digest = xxhash.xxh3_128(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return Path(local_dir).absolute() / f"{identity['kind']}-{digest[:16]}"


def remove_unused(root: Path, keep: str | None = None) -> list[Path]:
    """Removes the contents that no process has open, and returns the others; the caller holds the lock of `root`."""
    in_use = []
    for directory in root.iterdir():
        if not directory.is_dir() or directory.name == keep:
            continue
        if files.is_in_use(directory / "use"):
            in_use.append(directory)
        else:
            shutil.rmtree(directory)
    return in_use


def _known(root: Path) -> tuple[Listing, str] | None:
    """The complete listing of an earlier run."""
    manifest = files.read_json(root / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        return None
    fingerprint = manifest["fingerprint"]
    listing = Listing.load(root / fingerprint / "listing", fingerprint)
    return None if listing is None else (listing, fingerprint)


def _list(source: Source, root: Path, progress: Progress | None) -> tuple[Listing, str]:
    listing = source.scan(progress)
    fingerprint = listing.fingerprint()
    directory = root / fingerprint
    directory.mkdir(mode=0o700, exist_ok=True)
    listing.save(directory / "listing")
    manifest = {
        "format": _FORMAT,
        "source": source.identity,
        "fingerprint": fingerprint,
        "samples": len(listing),
        "files": listing.file_count,
        "bytes": listing.total_bytes,
    }
    files.write_json(root / "manifest.json", manifest)
    return listing, fingerprint

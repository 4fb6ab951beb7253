"""The level on the local disk: records in an LMDB file that outlives the run.

One process writes at a time, and the map's size never changes while the file is open. Writes are not flushed to the
disk one by one: a killed process loses nothing, as the kernel has what it wrote. A machine that crashes may leave the
file's tree inconsistent, so a marker beside the file names the boot in which it has been written since it was last
flushed, and a file with the marker of another boot is created anew.

LMDB trusts its file: if the tree is damaged it reads outside the file or the page, and the process dies by SIGSEGV or
SIGBUS. So the first process that opens a level walks its tree (a few bytes for each record, which an epoch needs
anyway) and creates the level anew if anything is not as it was written. The contents of records are checked when they
are read. Pages of the tree that a failing disk damages while the level is open are only noticed at the next start: the
process may die by a signal or an `lmdb.Error`, and a sample may be missing, but is never wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import numpy as np

from datacache import files, limits, native
from datacache.errors import NoSpaceError
from datacache.levels import DamagedRecordError, Level, Record, checksum

SMALLEST = 1 << 20  # bytes of a level
_KEY = struct.Struct(">Q")  # big-endian, so that consecutive samples are neighbours in key order
_HEAD = struct.Struct("<Qq")  # checksum, label
_PAGE = 4096
_OVERFLOW_HEAD = 16  # of a run of pages that holds one large value
_LARGE = 2030  # about half a page: values above it have pages of their own
_ENTRY = 40  # key, place and bookkeeping
READERS = 1024  # processes and threads that may read at the same time
_SLACK = 16 << 20  # for the free list, and for copies of the tree that old readers still need
_NEARLY_FULL = 64 << 20  # free bytes below which a failed write counts as a full disk
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OPENS_A_FILE_ONCE = int(lmdb.__version__.partition(".")[0]) >= 2  # and keeps no transaction for later
_OF_LMDB = os.sysconf("SC_PAGE_SIZE")  # page size of the files that it creates
_log = logging.getLogger(__name__)


def forecast(lengths: np.ndarray) -> int:
    """The number of bytes that the file may need for payloads of these lengths; assumes half-full leaves."""
    sizes = lengths.astype(np.int64) + _HEAD.size
    large = sizes > _LARGE
    pages = (sizes[large] + _OVERFLOW_HEAD + _PAGE - 1) // _PAGE
    entries = int(sizes[~large].sum()) + _ENTRY * len(sizes)
    return (int(pages.sum()) * _PAGE + 2 * entries + _SLACK) // _PAGE * _PAGE


class DiskLevel(Level):
    """Records in a directory of its own; the same one may be opened several times, also in one process."""

    def __init__(self, path: Path, size: int, name: str = "disk"):
        """Opens the level, or creates it.

        Args:
            path: the directory, on a disk of this machine.
            size: bytes that the file may grow to; while others have the level open, their size applies.
            name: see `Level`.

        Raises:
            UnsuitableFileSystemError: if the directory is on a network file system.
            ValueError: if size is less than 1 MiB.
            NoSpaceError: if the disk has no room for a new level; an existing one can be opened even on a full disk.
        """
        if size < SMALLEST:
            raise ValueError(f"Expected at least 1 MiB for a level on the local disk, got {size} bytes.")
        size -= size % _PAGE
        files.refuse_remote(path.parent, "The level on the local disk")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name, self._path = name, path.resolve()
        self._wrote = self._full = False
        with files.locked(self._path):
            if not files.is_in_use(self._path / "use"):
                self._get_ready(size)
            self._size = files.read_json(self._path / "size.json")
            self._use: int | None = os.open(self._path / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            files.share(self._use)
            os.utime(self._use)  # when it was used last
        _environments.add(self._path)
        try:
            self._environment()  # now, so that who maps memory later sees what is left of the addresses
        except BaseException:
            DiskLevel.close(self)
            raise

    def holds(self, indices: np.ndarray) -> np.ndarray:
        with self._transaction() as transaction:
            return np.array([transaction.get(_KEY.pack(int(index))) is not None for index in indices], bool)

    def get(self, index: int) -> Record | None:
        with self._transaction() as transaction:
            return _record(transaction, index)

    def collect(self, indices: np.ndarray) -> list[Record | None]:
        """As `Level.collect`, in one transaction."""
        with self._transaction() as transaction:
            return [_whole_record(transaction, int(index)) for index in indices]

    def put(self, index: int, record: Record) -> bool:
        """As `Level.put`; once a record does not fit into the size, or on the disk, no more are kept."""
        if self._full:
            return False
        self._full = not self._keep(index, record)
        return not self._full

    def drop(self, index: int) -> None:
        """As `Level.drop`; on a disk that cannot be written the record stays, but is never served."""
        self._write(lambda transaction: self._take_out(transaction, _KEY.pack(index)))

    def used_bytes(self) -> int:
        return (self._path / "data.mdb").stat().st_blocks * 512

    def count(self) -> int:
        """The number of records."""
        return self._environment().stat()["entries"]

    def sync(self) -> None:
        """Flushes everything to the disk, so that it survives a crash of the machine."""
        with files.locked(self._path / "writer"):
            self._environment().sync(True)
            (self._path / "unsynced").unlink(missing_ok=True)
        self._wrote = False

    def close(self) -> None:
        if self._use is None:
            return
        if self._wrote:
            self.sync()
        _environments.remove(self._path)
        os.close(self._use)
        self._use = None

    def _get_ready(self, size: int) -> None:
        """Prepares the directory; called while no process has the level open."""
        if (self._path / "data.mdb").exists():
            fault = _fault(self._path)
            if fault is not None:
                _log.warning("datacache: %s is rebuilt from the source: %s.", self._path, fault)
                _empty(self._path)
        _set_size(self._path, size)

    def _environment(self) -> lmdb.Environment:
        self._refuse_closed()
        return _environments.get(self._path, self._size)

    def _transaction(self, write: bool = False) -> contextlib.AbstractContextManager[lmdb.Transaction]:
        self._refuse_closed()
        return _environments.transaction(self._path, self._size, write)

    def _refuse_closed(self) -> None:
        if self._use is None:
            raise ValueError(f"The level in {self._path} is closed.")

    def _keep(self, index: int, record: Record) -> bool:
        """Puts a record; False if it does not fit."""
        value = _HEAD.pack(checksum(index, record), record.label) + record.payload
        try:  # an existing record could not be removed, and is not overwritten for the same reason
            self._write(lambda transaction: transaction.put(_KEY.pack(index), value, overwrite=False))
        except NoSpaceError:
            return False
        return True

    def _take_out(self, transaction: lmdb.Transaction, key: bytes) -> None:
        """Deletes a value, after repairing its pages' headers."""
        descriptor = os.open(self._path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
        try:
            if native.mend_value(descriptor, _OF_LMDB, key) is None:
                transaction.delete(key)
        finally:
            os.close(descriptor)

    def _write(self, change: Callable[[lmdb.Transaction], object]) -> None:
        """Changes the file in a transaction of its own.

        Raises:
            NoSpaceError: if the size, or the disk, is used up.
        """
        self._environment()  # opened here, as an error of that is not one of writing
        with files.locked(self._path / "writer"):
            try:
                _mark(self._path)
                with self._transaction(write=True) as transaction:
                    change(transaction)
            except (lmdb.Error, OSError) as error:  # LMDB also reports a full disk as an I/O error
                if not isinstance(error, lmdb.MapFullError) and _free(self._path) > _NEARLY_FULL:
                    raise
                raise NoSpaceError(errno.ENOSPC, str(error)) from None
        self._wrote = True


class _Environments:
    """The LMDB environments of this process: each file open at most once, and none used that a parent process opened.

    Only one process at a time opens or closes one: the last to close destroys LMDB's mutexes, and a process that opens
    meanwhile would use the destroyed ones (mdb_txn_begin: Invalid argument).

    A forked child opens its own. It closes its parent's first if the binding opens no file twice in a process. This
    leaves the parent's readers alone as long as no transaction was running at the fork and none was kept for later; so
    a fork waits for the transactions of other threads, which are short. A binding older than that keeps one for later,
    whatever it is told, and the parent's next reader would fail (MDB_BAD_RSLOT); there nothing is closed.
    """

    def __init__(self) -> None:
        self._users: dict[Path, int] = {}
        self._open: dict[Path, lmdb.Environment] = {}
        self._inherited: dict[Path, lmdb.Environment] = {}
        self._running: dict[int, int] = {}  # transactions by thread
        self._changed = threading.Condition()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._forked_in_parent, after_in_child=self._forked_in_child
        )

    def add(self, path: Path) -> None:
        with self._changed:
            self._users[path] = self._users.get(path, 0) + 1

    def remove(self, path: Path) -> None:
        with self._changed:
            self._users[path] -= 1
            if self._users[path] == 0 and path in self._open:
                with files.locked(path):
                    self._open.pop(path).close()

    def get(self, path: Path, size: int) -> lmdb.Environment:
        with self._changed:
            if path not in self._open:
                with files.locked(path):
                    if path in self._inherited:
                        self._inherited.pop(path).close()
                    self._open[path] = _open(path, size)
            return self._open[path]

    @contextlib.contextmanager
    def transaction(self, path: Path, size: int, write: bool = False) -> Iterator[lmdb.Transaction]:
        environment, thread = self.get(path, size), threading.get_ident()
        with self._changed:
            self._running[thread] = self._running.get(thread, 0) + 1
        try:
            with environment.begin(write=write, buffers=not write) as transaction:
                yield transaction
        finally:
            with self._changed:
                self._running[thread] -= 1
                if not self._running[thread]:
                    del self._running[thread]
                self._changed.notify_all()

    def _before_fork(self) -> None:
        self._changed.acquire()
        while self._running.keys() - {threading.get_ident()}:  # its own cannot end meanwhile
            self._changed.wait()

    def _forked_in_parent(self) -> None:
        self._changed.release()

    def _forked_in_child(self) -> None:
        # They are not released when the process ends, as that would close them without the lock between processes.
        for environment in self._open.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))
        if _OPENS_A_FILE_ONCE:
            self._inherited |= self._open
        self._open = {}
        self._changed = threading.Condition()


_environments = _Environments()


def _record(transaction: lmdb.Transaction, index: int) -> Record | None:
    """As `Level.get`; the result outlives the transaction and its mapped memory."""
    value = transaction.get(_KEY.pack(index))
    if value is None:
        return None
    if len(value) < _HEAD.size:
        raise DamagedRecordError(f"it has {len(value)} bytes, less than its header")
    expected, label = _HEAD.unpack_from(value)
    record = Record(bytes(value[_HEAD.size :]), label)
    if checksum(index, record) != expected:
        raise DamagedRecordError("its checksum is wrong")
    return record


def _whole_record(transaction: lmdb.Transaction, index: int) -> Record | None:
    try:
        return _record(transaction, index)
    except DamagedRecordError:
        return None


def _open(path: Path, size: int) -> lmdb.Environment:
    try:
        environment = lmdb.open(
            str(path),
            map_size=size,
            sync=False,
            readahead=False,
            meminit=False,
            max_readers=READERS,
            mode=0o600,
            max_spare_txns=0,  # none is kept for later: see _Environments
        )
    except lmdb.Error as error:
        raise _unopened(path, size, error) from None
    environment.reader_check()  # releases what killed readers held
    return environment


def _unopened(path: Path, size: int, error: lmdb.Error) -> OSError:
    """The error for a file that LMDB cannot open."""
    for room in limits.of_addresses():
        if room.bytes < size:
            what = f"{path} takes {size:,} bytes of addresses, {room.bytes:,} are free within {room.of}"
            return NoSpaceError(errno.ENOMEM, f"{what}: {room.remedy}, or pass a smaller disk_bytes")
    return OSError(errno.EIO, f"{path} cannot be opened ({error}): check its disk, or remove it to begin anew")


def _set_size(path: Path, size: int) -> None:
    """Writes the size that the file may grow to; if the disk has no room for that, the previous one stays."""
    before = files.read_json(path / "size.json")
    if before == size:
        return
    try:
        files.write_json(path / "size.json", size)
    except NoSpaceError:
        if before is None:
            raise


def _fault(path: Path) -> str | None:
    """Why the file may not be used as it is, None if it may; call it while no process has the file open."""
    marker = path / "unsynced"
    if marker.exists() and marker.read_bytes() != _BOOT.read_bytes():
        return "the machine went down while it was being written"
    descriptor = os.open(path / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fault = native.tree_fault(descriptor, _OF_LMDB)
    finally:
        os.close(descriptor)
    return None if fault is None else f"it is damaged ({fault})"


def _empty(path: Path) -> None:
    for each in path.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


def _free(path: Path) -> int:
    device = os.statvfs(path)
    return device.f_bavail * device.f_frsize


def _mark(path: Path) -> None:
    marker = path / "unsynced"
    if not marker.exists():
        files.write_renamed(marker, _BOOT.read_bytes())

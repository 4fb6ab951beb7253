"""Complete files, locks that end with their process, and detection of file systems."""

import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from datacache import files
from datacache.errors import UnsuitableFileSystemError
from datacache.files import IndexLocks

MOUNTED = """\
/dev/vda / ext4 rw 0 0
server:/export /data nfs4 rw,vers=4.2 0 0
/dev/vdb /data/scratch xfs rw 0 0
sshfs /home/a\\040b fuse.sshfs rw 0 0
overlay /layers fuse.fuse-overlayfs rw 0 0
none /over tmpfs rw 0 0
//smb/share /over cifs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mounts"
    path.write_text(MOUNTED)
    return path


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/var", "ext4"),
        ("/data", "nfs4"),
        ("/data/x/y", "nfs4"),
        ("/database", "ext4"),
        ("/data/scratch/x", "xfs"),
        ("/home/a b/c", "fuse.sshfs"),
        ("/over/x", "cifs"),
        ("/", "ext4"),
    ],
)
def test_a_path_is_on_the_deepest_and_latest_mount(path, kind, mounts):
    assert files.file_system(files.Path(path), mounts) == kind


@pytest.mark.parametrize("path, fits", [("/data", False), ("/home/a b", False), ("/over", False), ("/layers", True)])
def test_remote_file_systems_are_refused(path, fits, mounts):
    if fits:
        return files.refuse_remote(files.Path(path), "The local level", mounts)
    with pytest.raises(
        UnsuitableFileSystemError, match=f"The local level must be on a disk of this machine, but {path}"
    ):
        files.refuse_remote(files.Path(path), "The local level", mounts)


def test_this_machines_own_mounts_can_be_read(tmp_path):
    assert files.file_system(tmp_path) != "unknown"
    assert files.file_system(files.Path("/dev/shm")) == "tmpfs"


def test_a_write_that_fails_leaves_nothing(tmp_path):
    files.write_renamed(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        files.write_renamed(tmp_path / "a", "no bytes")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_json_that_is_damaged_is_as_none(tmp_path):
    files.write_json(tmp_path / "a", {"x": 1})
    assert files.read_json(tmp_path / "a") == {"x": 1}
    (tmp_path / "a").write_text("{")
    assert files.read_json(tmp_path / "a") is None and files.read_json(tmp_path / "b") is None


HOLDER = """
import sys, time
from pathlib import Path
from datacache import files
with {how}:
    print("held", flush=True)
    time.sleep(600)
"""


def holder(how):
    """A process that holds a lock until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER.format(how=how)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("kind", ["flock", "index"])
def test_a_lock_ends_with_its_process(kind, tmp_path):
    path = tmp_path / "lock"
    how = f"files.locked(Path({str(path)!r}))" if kind == "flock" else f"files.IndexLocks(Path({str(path)!r})).hold(7)"
    process, got = holder(how), threading.Event()

    def take():
        with files.locked(path) if kind == "flock" else IndexLocks(path).hold(7):
            got.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not got.wait(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    thread.join()
    assert got.is_set()


def test_a_number_is_taken_by_one_and_free_when_that_has_ended(tmp_path):
    path = tmp_path / "numbers"
    process = holder(f"__import__('contextlib').closing(open(files.take(Path({str(path)!r}), 2**31), 'rb'))")
    assert files.take(path, 2**31) is None
    other, again = files.take(path, 7), files.take(path, 7)
    assert other is not None and again is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    taken = files.take(path, 2**31)
    assert taken is not None
    os.close(other)
    os.close(taken)
    os.close(files.take(path, 7))


def test_index_locks_keep_threads_apart_and_let_other_numbers_pass(tmp_path):
    locks, inside, most = IndexLocks(tmp_path / "lock"), [0] * 3, [0] * 3
    guard = threading.Lock()

    def work():
        for turn in range(60):
            index = turn % 3
            with locks.hold(index * 2**40):
                with guard:
                    inside[index] += 1
                    most[index] = max(most[index], inside[index])
                with guard:
                    inside[index] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_a_forked_child_has_locks_of_its_own(tmp_path):
    locks = IndexLocks(tmp_path / "lock")
    with locks.hold(1):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
            signal.alarm(1)
            with locks.hold(1):
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_child_that_was_forked_under_a_lock_does_not_keep_it(tmp_path):
    path, (reads, writes) = tmp_path / "lock", os.pipe()
    with files.locked(path):
        child = os.fork()
        if child == 0:
            os.read(reads, 1)  # stays alive until the test has finished with it
            os._exit(0)
    try:
        descriptor = os.open(path, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    finally:
        os.write(writes, b".")
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)

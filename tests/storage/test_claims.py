"""A directory is claimed by one process at a time, and the claim ends with the process."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time

import pytest

from hvd_sparse.storage import claims
from hvd_sparse.storage.claims import ClaimedError

HOLD = "import sys; from hvd_sparse.storage import claims; claims.take(sys.argv[1]); print('held', flush=True); input()"


@pytest.fixture
def holder(tmp_path):
    """Another process that has claimed the directory."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path):
    yield
    claims.release(tmp_path)


def test_another_process_is_refused_at_once_and_told_which_one_it_is(tmp_path, holder):
    with pytest.raises(ClaimedError, match=rf"in {tmp_path}: process {holder.pid} on host .*since 20.*of its own"):
        claims.take(tmp_path)


def test_the_claim_ends_with_a_process_that_is_killed(tmp_path, holder):
    holder.kill()
    holder.wait()
    claims.take(tmp_path)
    assert json.loads((tmp_path / claims.NAME).read_text())["process"] == os.getpid()


def test_a_process_that_ends_leaves_no_file(tmp_path, holder):
    holder.communicate("\n")
    assert holder.returncode == 0 and list(tmp_path.iterdir()) == []


def test_a_process_that_has_the_claim_has_it_until_it_gives_it_up(tmp_path):
    for _ in range(3):
        claims.take(tmp_path)
    refused = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True)
    assert "ClaimedError" in refused.stderr
    claims.release(tmp_path)
    claims.release(tmp_path)
    taken = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, input="\n")
    assert taken.stdout == "held\n", taken.stderr


def test_who_gives_up_a_claim_leaves_no_file_and_one_that_has_opened_it_takes_a_new_one(tmp_path, holder, monkeypatch):
    """The other process has opened the file before it is removed, and gets the lock of a file that is gone."""
    lock, opened = claims._locked, []

    def locked(descriptor, place):
        opened.append(descriptor)
        if len(opened) == 1:
            holder.communicate("\n")
        return lock(descriptor, place)

    monkeypatch.setattr(claims, "_locked", locked)
    claims.take(tmp_path)
    assert len(opened) == 2
    assert json.loads((tmp_path / claims.NAME).read_text())["process"] == os.getpid()
    claims.release(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_claim_on_another_host_is_waited_for_as_that_host_may_be_gone(tmp_path, holder, monkeypatch, capsys):
    monkeypatch.setattr(claims, "_POLL", 0.05)
    monkeypatch.setattr(claims.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(claims, "LEASE", 0.5)
    begun = time.monotonic()
    with pytest.raises(ClaimedError):
        claims.take(tmp_path)
    assert time.monotonic() - begun >= 0.5
    assert "waiting up to 0.5 s, in case that host is gone" in capsys.readouterr().err
    monkeypatch.setattr(claims, "LEASE", 60.0)
    holder.kill()
    claims.take(tmp_path)


def test_where_there_are_no_locks_nothing_is_claimed_and_nothing_is_refused(tmp_path, monkeypatch):
    def unable(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unable)
    claims.take(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_file_that_cannot_be_read_is_no_obstacle(tmp_path, text):
    (tmp_path / claims.NAME).write_text(text)
    claims.take(tmp_path)


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        claims.take(tmp_path / "file" / "folder")

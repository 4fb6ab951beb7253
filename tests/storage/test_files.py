"""Files that are written whole or not at all."""

import os
import subprocess
import sys

import pytest

from hvd_sparse.storage import files
from tests.parallel.launch import ROOT


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    with files.replacing(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole" and names(path.parent) == ["file"]


def test_what_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="in the middle"), files.replacing(path) as file:
        file.write(b"half of the")
        raise RuntimeError("in the middle")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]


def test_a_process_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    script = (
        "import os, signal, sys\n"
        "from hvd_sparse.storage import files\n"
        "with files.replacing(sys.argv[1]) as file:\n"
        "    file.write(bytes(100_000))\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script, str(path)], env=environment)
    assert ended.returncode == -9 and path.read_bytes() == b"old"


def test_each_rank_has_a_name_of_its_own():
    assert str(files.of_rank("folder/file", 1, 4)) == "folder/file.rank1of4"


def test_checksums_are_of_all_or_of_the_start(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 1000)
    with open(path, "rb") as file:
        begun = files.sha256_of_start(file, 1500)
        begun.update(file.read())
    assert begun.hexdigest() == files.sha256(path)

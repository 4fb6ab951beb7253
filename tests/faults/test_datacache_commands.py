"""python -m datacache: a mistyped directory is an error and creates nothing, and sizes may have units."""

from __future__ import annotations

import subprocess
import sys

import pytest


def datacache(*arguments):
    return subprocess.run([sys.executable, "-m", "datacache", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images" / "ant").mkdir(parents=True)
    (tmp_path / "images" / "ant" / "0.jpg").write_bytes(b"0")
    return tmp_path / "images"


def test_stats_of_a_mistyped_directory_make_none(images, tmp_path):
    assert datacache("plan", "--images", images, "--local-dir", tmp_path / "local").returncode == 0
    for source, local in ((images, tmp_path / "locla"), (tmp_path / "imgaes", tmp_path / "local")):
        ended = datacache("stats", "--images", source, "--local-dir", local)
        assert ended.returncode == 2 and f"{local} holds nothing of {source}" in ended.stderr
    assert not (tmp_path / "locla").exists() and len(list((tmp_path / "local").iterdir())) == 1


def test_a_size_may_have_a_unit(images, tmp_path):
    ended = datacache("warm", "--images", images, "--local-dir", tmp_path / "local", "--disk-bytes", "40G")
    assert ended.returncode == 0, ended.stderr

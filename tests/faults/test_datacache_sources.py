"""datacache: classes keep their numbers, all spellings of a directory are one place, and a pipe is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import datacache

LIMIT = 60  # seconds until a process counts as hanging


def decode(payload):
    return np.frombuffer(payload, np.uint8)


def write_images(root, *names):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes([number]))


def labels_of(source, tmp_path):
    with datacache.DataCache(source, decode, tmp_path / "local", memory_bytes=0, world=datacache.World()) as cache:
        return cache.classes, [cache.fetch(index)[1] for index in range(len(cache))]


def test_a_class_without_images_does_not_shift_the_others(tmp_path):
    write_images(tmp_path / "images", "ant/0.jpg", "cat/1.jpg")
    (tmp_path / "images" / "bee").mkdir()
    with pytest.raises(ValueError, match="class folders without a file .*'bee'.*pass classes="):
        labels_of(datacache.ImageFolder(tmp_path / "images"), tmp_path)
    source = datacache.ImageFolder(tmp_path / "images", classes=["ant", "bee", "cat"])
    assert labels_of(source, tmp_path) == (("ant", "bee", "cat"), [0, 2])


def test_one_directory_is_one_cache_however_it_is_spelled(tmp_path, monkeypatch):
    write_images(tmp_path / "images", "ant/0.jpg", "cat/1.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    for spelling in ("images", tmp_path / "link", f"{tmp_path}/images/ant/../", f"{tmp_path}/images/"):
        assert labels_of(datacache.ImageFolder(spelling), tmp_path) == (("ant", "cat"), [0, 1])
    assert len(list((tmp_path / "local").iterdir())) == 1


PIPE = """
import datacache
try:
    source = datacache.{kind}({path!r})
    cache = datacache.DataCache(source, bytes, {local!r}, memory_bytes=0, world=datacache.World())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_pipe_with_the_name_of_an_image_is_refused(tmp_path):
    write_images(tmp_path / "images", "ant/1.jpg")
    pipe = tmp_path / "images" / "ant" / "0.jpg"
    os.mkfifo(pipe)
    script = PIPE.format(kind="ImageFolder", path=str(tmp_path / "images"), local=str(tmp_path / "local"))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
    assert "Expected a file, got a named pipe" in ended.stdout and str(pipe) in ended.stdout

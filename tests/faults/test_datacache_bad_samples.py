"""datacache: a bad sample is one error with its name and what to do, and whoever ignores errors comes to an end."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import datacache

COUNT, BAD, LIMIT = 12, 5, 120


def numbers(shape=None):
    """A decode function for samples of this shape, one of which is bad, and a cache's options for it."""

    def decode(payload):
        if payload[0] == BAD:
            raise OSError("this one is bad")
        return np.full(3, payload[0], np.uint8)

    return {"decode": decode, "shape": shape}


def going_on(dataset):
    """What whoever ignores errors gets, who asks again after each: batches of labels, and whether there is an end."""
    elements, found = iter(dataset), []
    for _ in range(10 * COUNT):
        try:
            found.append(next(elements)[1].numpy().tolist())
        except StopIteration:
            return found, True
        except tf.errors.OpError:
            continue
    return found, False


@pytest.mark.parametrize("shape", [None, (None,)], ids=["equal", "varying"])
@pytest.mark.parametrize("map_func", [None, lambda sample, label: (sample + 1, label)], ids=["plain", "mapped"])
def test_whoever_ignores_errors_comes_to_an_end(map_func, shape, tmp_path):
    with open_cache(tmp_path, **numbers(shape)) as cache:
        order = cache.schedule(5, epoch=0).order.tolist()
        whole = [batch for batch in (order[:5], order[5:10], order[10:]) if BAD not in batch]
        dataset = cache.dataset(5, epoch=0, map_func=map_func)
        assert len(dataset) == 3
        for _ in range(2):
            found, ended = going_on(dataset)
            assert ended and found[0] == whole[0] and BAD not in sum(found, [])
            if map_func is None and shape is None:
                assert found == whole


def open_cache(tmp_path, decode, source=None, **more):
    source = source or datacache.Indexed(lambda index: bytes([index]), COUNT, "numbers", labels=range(COUNT))
    places = {"local_dir": tmp_path / "local", "memory_bytes": 0}
    return datacache.DataCache(source, decode, **places, world=datacache.World(), **more)


def decode(payload):
    return np.frombuffer(payload, np.uint8)


def test_a_ragged_list_is_an_error_with_the_samples_name(tmp_path):
    def ragged(payload):
        return [[1], [2, 3]] if payload[0] == BAD else [[1, 2], [3, 4]]

    with open_cache(tmp_path, ragged) as cache, pytest.raises(datacache.DecodeError, match=f"sample {BAD}.* pad rows"):
        cache.fetch(BAD)


def read_own_memory(index):
    """A real input/output error: nothing is mapped at the first address of a process."""
    if index != BAD:
        return bytes([index])
    file = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        return os.read(file, 1)
    finally:
        os.close(file)


def test_a_failing_disk_is_an_error_with_the_samples_name(tmp_path):
    source = datacache.Indexed(read_own_memory, COUNT, "numbers", labels=range(COUNT))
    with open_cache(tmp_path, decode, source) as cache:
        with pytest.raises(OSError, match=f"sample {BAD}.* cannot be read .Input/output error.: .* restore the file"):
            cache.fetch(BAD)
        assert cache.fetch(BAD - 1)[1] == BAD - 1


def images(tmp_path):
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    for name in "abc":
        (folder / f"{name}.jpg").write_bytes(name.encode())
    return folder


def test_a_loop_of_links_is_an_error_with_its_path(tmp_path):
    folder = images(tmp_path)
    (folder / "d.jpg").symlink_to("d.jpg")
    with pytest.raises(OSError, match=r"d.jpg cannot be read .*: it is a loop of links: remove it"):
        open_cache(tmp_path, decode, datacache.ImageFolder(tmp_path / "images"))


def test_a_folder_that_contains_itself_is_an_error_with_its_path(tmp_path):
    """With two of them a walk to the limit of links would take for ever, so one shows it."""
    folder = images(tmp_path)
    (folder / "within").symlink_to(folder)
    with pytest.raises(OSError, match="within is a link to a folder that contains it .*: remove it"):
        open_cache(tmp_path, decode, datacache.ImageFolder(tmp_path / "images"))


@pytest.mark.parametrize("make", [datacache.ImageFolder, datacache.TFRecords])
def test_an_address_is_no_directory(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="nowhere://bucket/train cannot be opened by fsspec: Protocol not known"):
        open_cache(tmp_path, decode, make("nowhere://bucket/train"))
    with pytest.raises(ValueError, match="Expected local_dir as a directory .*, got the address gs://bucket/cache"):
        source = datacache.Indexed(lambda index: bytes([index]), COUNT, "numbers", labels=range(COUNT))
        datacache.DataCache(source, decode, "gs://bucket/cache", memory_bytes=0, world=datacache.World())
    assert not [path for path in tmp_path.iterdir() if ":" in path.name]


AS_ANOTHER = """
import os, sys, tempfile
import numpy as np
import datacache

def decode(payload):
    return np.frombuffer(payload, np.uint8)

def read_all(images, local):
    source = datacache.ImageFolder(images)
    with datacache.DataCache(source, decode, local, memory_bytes=0, world=datacache.World()) as cache:
        for index in range(len(cache)):
            cache.fetch(index)

images, local, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
with tempfile.TemporaryDirectory() as folder:  # the other user may not be able to import what is needed for it
    os.makedirs(f"{folder}/images/cat")
    open(f"{folder}/images/cat/a.jpg", "wb").write(b"a")
    read_all(f"{folder}/images", f"{folder}/local")
os.setgroups([])
os.setuid(uid)
try:
    read_all(images, local)
    print("read all")
except OSError as error:
    print(type(error).__name__, error)
"""


def as_another(images, local):
    """What a user who is neither root nor this one is told."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    command = [sys.executable, "-c", AS_ANOTHER, str(images), str(local), "65534"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def shared():
    """A folder that any user may enter and write to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield pathlib.Path(name)


def test_a_file_that_may_not_be_read_is_an_error_with_the_samples_name(shared):
    folder = images(shared)
    (folder / "b.jpg").chmod(0o600)
    told = as_another(shared / "images", shared / "local")
    assert told.startswith("PermissionError") and f"sample 1 ({folder}/b.jpg) cannot be read" in told
    assert "give this user access" in told


def test_a_folder_that_may_not_be_read_is_an_error_with_its_path(shared):
    folder = images(shared)
    folder.chmod(0o700)
    told = as_another(shared / "images", shared / "local")
    assert f"{folder} cannot be read (Permission denied): give this user access" in told


def test_what_another_user_keeps_is_an_error_with_its_path(shared):
    images(shared)
    with open_cache(shared, decode, datacache.ImageFolder(shared / "images")):
        pass
    (shared / "local").chmod(0o777)
    told = as_another(shared / "images", shared / "local")
    assert "belongs to another user" in told and "choose a local_dir of your own" in told
    assert str(shared / "local") in told


def test_control_another_user_reads_what_is_allowed(shared):
    assert images(shared) and as_another(shared / "images", shared / "local") == "read all"


def test_control_a_whole_epoch_is_read(tmp_path):
    with open_cache(tmp_path, decode) as cache:
        found, ended = going_on(cache.dataset(5, epoch=0))
        assert ended and sum(found, []) == cache.schedule(5, epoch=0).order.tolist()

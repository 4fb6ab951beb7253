"""Where a source is kept: in one place for all spellings of its path."""

import concurrent.futures
import shutil

import numpy as np
import pytest

import datacache
from datacache import World, store
from datacache.sources import ImageFolder
from tests.datacache.node import free_addresses

NAMES = ("ant/0.jpg", "ant/1.jpg", "cat/0.jpg")


def decode(payload):
    return np.frombuffer(payload, np.uint8)


@pytest.fixture
def link(tmp_path):
    """Another name of a folder of images."""
    for number, name in enumerate(NAMES):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(bytes([number]))
    (tmp_path / "link").symlink_to(tmp_path / "images")
    return tmp_path / "link"


@pytest.fixture
def opened(tmp_path):
    """Opens a cache of a source."""

    def open_cache(source):
        levels = {"memory_bytes": 0, "world": datacache.World()}
        return datacache.DataCache(source, decode, tmp_path / "local", **levels)

    return open_cache


def origins(cache):
    """Reads all samples and returns where they came from."""
    with cache:
        assert sorted(label for _, labels in cache.batches(2, 0) for label in labels.tolist()) == [0, 0, 1]
    return {name: count for name, count in cache.counters.numbers().items() if name.startswith("samples.")}


def test_all_spellings_of_a_path_are_one_place(link, opened, tmp_path):
    assert origins(opened(ImageFolder(link)))["samples.source"] >= len(NAMES) - 1
    assert origins(opened(ImageFolder(tmp_path / "images"))) == {"samples.disk": len(NAMES)}
    (kept,) = (tmp_path / "local").iterdir()
    assert kept == store.directory_of(ImageFolder(link), tmp_path / "local")


def test_a_file_is_read_by_the_name_that_was_given(link, opened, tmp_path):
    """A file system that is mounted on access may need this name, and messages contain it."""
    source = ImageFolder(link)
    assert str(link / NAMES[1]) in source.describe(source.scan(), 1)


def test_nodes_that_have_mounted_it_in_different_places_serve_each_other(link, tmp_path):
    shutil.copytree(tmp_path / "images", tmp_path / "elsewhere")  # including modification times
    peers = tuple(free_addresses(2))

    def open_node(node):
        world = World(node, 2, node, 2, peers, peers[node], b"the secret of this test")
        source = ImageFolder((link, tmp_path / "elsewhere")[node])
        places = {name: tmp_path / f"{name}-{node}" for name in ("local_dir", "memory_dir")}
        return datacache.DataCache(source, decode, **places, world=world, peer_timeout=60)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        nodes = list(pool.map(open_node, range(2)))
    with nodes[0], nodes[1]:
        for epoch in range(4):  # a rank reads the other node's samples among its own
            for _ in zip(*(node.batches(1, epoch, drop_remainder=True) for node in nodes), strict=True):
                pass
        assert sum(node.counters.numbers().get("samples.peers", 0) for node in nodes) > 0
        assert all("refused.peers" not in node.counters.numbers() for node in nodes)


class _BeforeFunctionsCounted(datacache.Indexed):
    """The source as earlier versions identified it."""

    @property
    def identity(self):
        return self.doubtful_identity

    @property
    def doubtful_identity(self):
        return {"kind": "Indexed", "name": "train", "size": 4}


def test_what_was_kept_of_a_name_alone_is_not_served_and_is_told_once(opened, tmp_path, caplog):
    def source(kind, more):
        return kind(lambda index: bytes([index + more]), 4, "train", labels=range(4))

    opened(source(_BeforeFunctionsCounted, 0)).close()
    (earlier,) = (tmp_path / "local").iterdir()
    caplog.clear()
    for _ in range(2):
        with opened(source(datacache.Indexed, 7)) as cache:
            assert cache.fetch(1)[0].tolist() == [8]
    (told,) = [record.getMessage() for record in caplog.records if "earlier version" in record.getMessage()]
    assert str(earlier) in told and "is not used" in told and earlier.is_dir()

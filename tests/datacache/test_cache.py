"""The whole cache: which samples it reads, from where and in which order, and what happens on errors."""

import io
import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest
from PIL import Image

import datacache
from datacache import World, counters
from datacache.errors import DecodeError, NoSpaceError, SourceChangedError
from datacache.order import permutation
from examples import photographs
from tests.datacache import members

COUNT, SIDE = 30, 8


def decode(payload, side=SIDE):
    """A JPEG as [side, side, 3] uint8."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.asarray(image.resize((side, side)))


@pytest.fixture
def images(tmp_path):
    """A folder of crops, and its content."""
    return tmp_path / "images", photographs.write_folder(tmp_path / "images", COUNT, **members.SMALL)


@pytest.fixture
def options(tmp_path):
    """Options with levels for this test alone."""
    return {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm", "decode": decode, "world": World()}


def expected(images, epoch, seed=0):
    """Samples and labels of an epoch, in order."""
    path, written = images
    classes = sorted(each.name for each in path.iterdir())
    order = permutation(COUNT, seed, epoch)
    samples = np.stack([decode(written[index][1]) for index in order])
    return samples, np.array([classes.index(written[index][0].parent.name) for index in order])


def read(cache, epoch, batch_size=7):
    """All batches of an epoch in order."""
    batches = list(cache.batches(batch_size, epoch))
    return tuple(np.concatenate(part) for part in zip(*batches, strict=True))


def assert_right(found, images, epoch):
    for got, wanted in zip(found, expected(images, epoch), strict=True):
        np.testing.assert_array_equal(got, wanted)


LEVELS = {
    "all": {},
    "no memory": {"memory_bytes": 0},
    "a little memory": {"memory_bytes": 12_000},
    "no disk": {"disk_bytes": 0},
    "nothing": {"memory_bytes": 0, "disk_bytes": 0},
    "decoded too": {"keep_decoded": True},
    "decoded, no memory": {"keep_decoded": True, "memory_bytes": 0},
    "one worker": {"workers": 1},
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_every_setting_gives_the_same_batches(levels, images, options):
    for _ in range(2):
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options, **levels) as cache:
            assert len(cache) == COUNT and cache.classes == ("astronaut", "chelsea", "coffee")
            for epoch in range(2):
                assert_right(read(cache, epoch), images, epoch)


def test_the_source_is_read_once_and_in_a_second_run_not_at_all(images, options):
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        for epoch in range(3):
            read(cache, epoch)
        numbers = cache.counters.numbers()
    assert numbers["samples.source"] == COUNT
    assert numbers["bytes.source"] == sum(len(content) for _, content in images[1])
    shutil.move(images[0], images[0].with_name("gone"))
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        assert_right(read(cache, 5), images_moved(images), 5)
        assert "samples.source" not in cache.counters.numbers()
        assert cache.counters.numbers()["samples.disk"] == COUNT
        read(cache, 6)
        assert cache.counters.numbers()["samples.memory"] >= COUNT
        directory = cache._opened.store.stats
    assert counters.total(directory)["samples.source"] == COUNT


def test_without_memory_each_epoch_fetches_each_sample_once(images, options):
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options, memory_bytes=0) as cache:
        for epoch in range(3):
            read(cache, epoch)
        numbers = cache.counters.numbers()
    assert numbers["samples.source"] == COUNT
    assert numbers["samples.disk"] == 2 * COUNT + 1  # the first sample is read once more, to find the form of samples


def images_moved(images):
    return images[0].with_name("gone"), images[1]


def test_decoded_samples_on_disk_are_not_decoded_again(images, options):
    calls = []

    def counted(payload):
        calls.append(1)
        return decode(payload)

    counted.datacache_fingerprint = "1"
    options["decode"] = counted
    for _ in range(2):
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options, keep_decoded=True) as cache:
            assert_right(read(cache, 0), images, 0)
    assert len(calls) == COUNT + 1  # the first sample is decoded once more, to find the form of samples


def test_another_decode_function_never_gets_the_samples_of_the_first(images, options):
    import functools

    for side in (8, 4, 8):
        options["decode"] = functools.partial(decode, side=side)
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options, keep_decoded=True) as cache:
            samples, _ = read(cache, 0)
            order = permutation(COUNT, 0, 0)
            np.testing.assert_array_equal(samples, [decode(images[1][index][1], side) for index in order])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_together_read_each_sample_once_in_the_order_of_one(ranks, images, options):
    del options["world"]
    caches = [
        datacache.DataCache(datacache.ImageFolder(images[0]), **options, world=World(rank, ranks))
        for rank in range(ranks)
    ]
    steps = [list(cache.batches(3, epoch=1)) for cache in caches]
    assert len({len(batches) for batches in steps}) == 1
    together = [batch for step in zip(*steps, strict=True) for batch in step]
    assert_right(tuple(np.concatenate(part) for part in zip(*together, strict=True)), images, 1)
    assert sum(cache.counters.numbers().get("samples.source", 0) for cache in caches) == COUNT
    for cache in caches:
        cache.close()


def test_an_epoch_is_resumed_on_another_number_of_ranks(images, options):
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        position = cache.schedule(4, epoch=2).position(3)
        first = list(cache.batches(4, epoch=2))[:3]
    del options["world"]
    caches = [
        datacache.DataCache(datacache.ImageFolder(images[0]), **options, world=World(rank, 2)) for rank in range(2)
    ]
    steps = zip(*(cache.batches(3, epoch=2, position=position) for cache in caches), strict=True)
    together = [*first, *(batch for step in steps for batch in step)]
    assert_right(tuple(np.concatenate(part) for part in zip(*together, strict=True)), images, 2)
    for cache in caches:
        cache.close()


def test_batches_are_aligned_and_stay_as_they_are_while_they_are_held(images, options):
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        held = list(cache.batches(4, 0))
        for samples, labels in held:
            assert samples.ctypes.data % 64 == 0 and labels.dtype == np.int64
        parts = [samples[0, 0] for samples, _ in held]
        copies = [part.copy() for part in parts]
        del held, samples, labels
        read(cache, 1)
        for part, copy in zip(parts, copies, strict=True):
            np.testing.assert_array_equal(part, copy)


def test_a_batch_keeps_the_cache_open(images, options):
    batches = datacache.DataCache(datacache.ImageFolder(images[0]), **options).batches(7, 0)
    assert_right(tuple(np.concatenate(part) for part in zip(*batches, strict=True)), images, 0)


class TestFaults:
    def flip_in(self, path, content):
        """Flips a bit of these bytes wherever they are in a file."""
        position = path.read_bytes().find(content)
        assert position >= 0
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(bytes([content[0] ^ 4]))

    def test_what_is_damaged_in_memory_is_fetched_anew(self, images, options):
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            read(cache, 0)
            (slab,) = (options["memory_dir"]).rglob("*.slab")
            for number in (3, 11):
                self.flip_in(slab, decode(images[1][number][1]).tobytes())
            for epoch in range(2):
                assert_right(read(cache, epoch), images, epoch)
            numbers = cache.counters.numbers()
            assert numbers["damaged.memory"] == 2 and numbers["samples.source"] == COUNT
            assert {entry["index"] for entry in cache._opened.store.quarantine.entries()} == {3, 11}

    def test_what_is_damaged_on_disk_is_fetched_anew(self, images, options):
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            read(cache, 0)
        (data,) = options["local_dir"].rglob("source/data.mdb")
        self.flip_in(data, images[1][5][1])
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            assert_right(read(cache, 0), images, 0)
            numbers = cache.counters.numbers()
            assert numbers["damaged.disk"] == 1 and numbers["samples.source"] == 1

    def test_a_changed_file_stops_the_run_unless_it_was_read_before(self, images, options):
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options, workers=1) as cache:
            changed = images[1][4][0]
            changed.write_bytes(b"other bytes")
            with pytest.raises(SourceChangedError, match=f"{changed} has changed since it was listed.*verify --relist"):
                read(cache, 0)
            changed.write_bytes(images[1][4][1])
            stamp = int(cache._opened.store.listing.times[4])
            os.utime(changed, ns=(stamp, stamp))
            assert_right(read(cache, 0), images, 0)
            changed.unlink()
            assert_right(read(cache, 1), images, 1)

    @pytest.mark.parametrize(
        "change, told",
        [
            (lambda path: path.unlink(), "was listed, but no longer exists: restore the file.*verify --relist"),
            (lambda path: os.truncate(path, 100), "has changed since it was listed: .* 100 bytes of time .*relist"),
            (lambda path: path.write_bytes(b""), "has changed since it was listed: .* 0 bytes of time .*relist"),
        ],
    )
    def test_in_mid_run_a_file_that_goes_is_an_error_and_the_other_batches_are_right(
        self, change, told, images, options
    ):
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            batches = cache.prepare(cache.schedule(5, 0))
            samples, labels = expected(images, 0)
            np.testing.assert_array_equal(batches.read(0)[0], samples[:5])
            lost = int(batches.schedule.indices(5, 0)[2])  # later than the batches fetched ahead
            change(images[1][lost][0])
            for step in range(1, 5):
                np.testing.assert_array_equal(batches.read(step)[0], samples[5 * step : 5 * step + 5])
            with pytest.raises(SourceChangedError, match=told):
                batches.read(5)
            with pytest.raises(SourceChangedError, match=told):
                batches.read(5)
            assert lost not in [entry["index"] for entry in cache._opened.store.quarantine.entries()]

    def test_a_sample_that_cannot_be_decoded_is_named(self, images, options):
        images[1][9][0].write_bytes(images[1][9][1][:200])
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            with pytest.raises(DecodeError, match=f"sample 9 \\({images[1][9][0]}\\) cannot be decoded"):
                read(cache, 0)

    @pytest.mark.parametrize(
        "made, told",
        [
            (lambda payload: np.zeros(len(payload)), "as other samples are, got float64 .*bring all to one shape"),
            (lambda payload: None, "sample 0 .* is decoded to what cannot be kept: Expected an array .*got NoneType"),
            (lambda payload: np.array([object()]), "got ndarray of object"),
            (lambda payload: 1 / 0, "sample 0 .* cannot be decoded \\(ZeroDivisionError: division by zero\\)"),
        ],
    )
    def test_what_is_no_sample_is_refused(self, made, told, images, options):
        options["decode"] = made
        with pytest.raises(DecodeError, match=told):
            with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
                read(cache, 0)

    def test_labels_from_the_decode_function(self, tmp_path, options):
        source, contents = members.tf_records(tmp_path / "records")
        options["decode"] = lambda payload: (np.zeros(3, np.float32), len(payload))
        with datacache.DataCache(source, **options) as cache:
            labels = np.concatenate([labels for _, labels in cache.batches(5, 0)])
            assert labels.tolist() == [len(contents[index]) for index in permutation(members.COUNT, 0, 0)]

    def test_numbers_of_another_byte_order_keep_their_values(self, images, options):
        options["decode"] = lambda payload: np.arange(4, dtype=">i4")
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            assert cache.fetch(0)[0].tolist() == [0, 1, 2, 3]
            assert next(cache.batches(2, 0))[0].tolist() == [[0, 1, 2, 3]] * 2

    def test_memory_that_is_not_there_is_an_error(self, options):
        device = os.statvfs("/dev/shm")
        source = datacache.Indexed(lambda index: b"", 2**20, "large", labels=np.zeros(2**20, np.int64))
        side = int((device.f_blocks * device.f_frsize / 2**20) ** 0.5) + 1
        options.update(
            decode=lambda payload: np.zeros((side, side), np.uint8), memory_dir="/dev/shm", disk_bytes=1 << 20
        )
        with pytest.raises(NoSpaceError, match="Pass a smaller memory_bytes"):
            datacache.DataCache(source, **options)

    @pytest.mark.parametrize(
        "wrong, told",
        [
            ({"seed": -1}, "no negative number"),
            ({"memory_bytes": -1}, "no negative number"),
            ({"memory_bytes": 100}, "at least 8192 bytes of memory"),
            ({"disk_bytes": 100}, "at least 1 MiB"),
            ({"workers": 0}, "at least one worker"),
            ({"peer_timeout": 0}, "peer_timeout of more than 0"),
            ({"decode": 3}, "Expected a function"),
            ({"decode": threading.Lock().acquire}, "attribute datacache_fingerprint"),
        ],
    )
    def test_wrong_arguments_are_refused(self, wrong, told, images, options):
        with pytest.raises(ValueError, match=told):
            datacache.DataCache(datacache.ImageFolder(images[0]), **{**options, **wrong})

    def test_killed_while_it_fills_the_next_run_goes_on(self, images, options):
        """Ten times, after increasing delays; afterwards all samples are right and no cleaning up is necessary."""
        for turn in range(10):
            child = os.fork()
            if child == 0:
                cache = datacache.DataCache(datacache.ImageFolder(images[0]), **options, keep_decoded=True, workers=2)
                read(cache, turn)
                signal.pause()
            time.sleep(0.01 * turn)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options, keep_decoded=True) as cache:
            for epoch in range(2):
                assert_right(read(cache, epoch), images, epoch)
            assert cache._opened.store.quarantine.entries() == []
        assert list(options["memory_dir"].rglob("*.slab")) == []

    def test_a_process_that_is_killed_lets_the_others_go_on(self, images, options):
        """It holds the lock of a sample that it never completes."""
        begun, tell = os.pipe()
        child = os.fork()
        if child == 0:

            def stuck(payload):
                os.write(tell, b"x")
                time.sleep(600)

            stuck.datacache_fingerprint = "1"
            options["decode"] = stuck
            datacache.DataCache(datacache.ImageFolder(images[0]), **options)
        os.read(begun, 1)
        threading.Timer(0.2, os.kill, (child, signal.SIGKILL)).start()
        with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
            assert_right(read(cache, 0), images, 0)
        os.waitpid(child, 0)


class TestWorld:
    def test_horovods_launcher_and_open_mpi_are_understood(self, monkeypatch):
        assert World.from_environment() == World()
        for name, value in {"RANK": 5, "SIZE": 8, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
            monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
        assert World.from_environment() == World(5, 8, 2, 4)
        for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_RANK": 1}.items():
            monkeypatch.setenv(f"HOROVOD_{name}", str(value))
        assert World.from_environment() == World(3, 4, 1, 2)
        monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "3")
        with pytest.raises(ValueError, match="equally many ranks on each node"):
            World.from_environment()

    @pytest.mark.parametrize(
        "arguments, told",
        [
            ({"rank": 1}, "rank in \\[0, size\\)"),
            ({"node": 1}, "node in \\[0, nodes\\)"),
            ({"nodes": 2}, "at least one rank on each"),
            ({"size": 2, "nodes": 2, "peers": ("a:1",)}, "addresses of all 2 nodes with bind and secret"),
            ({"peers": ("a:1",), "bind": "a:1", "secret": b"short"}, "at least 16 random bytes, got bytes of length 5"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arguments, told):
        with pytest.raises(ValueError, match=told):
            World(**arguments)

    def test_nodes_with_peers_divide_the_samples(self):
        peers = ("a:1", "b:1", "c:1")
        worlds = [World(node, 3, node, 3, peers, peers[node], b"secret of the job") for node in range(3)]
        assert [index for world in worlds for index in world.owned(10)] == list(range(10))
        assert World(0, 3, 0, 3).owned(10) == range(10)
        assert "secret" not in repr(worlds[0])

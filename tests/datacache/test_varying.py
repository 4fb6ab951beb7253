"""Samples of varying shape through the whole cache: JPEGs of any size, each in its own size, in an epoch's order."""

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import datacache
from datacache import World, memory
from datacache.errors import DecodeError, NoSpaceError
from datacache.levels import Record
from tests.datacache import members, varying
from tests.datacache.killing import orphan
from tests.datacache.test_integrity import Readers, killed_at
from tests.datacache.varying import COUNT, Images, together

KILLS = 40
LEVELS = {
    "all": {},
    "no memory": {"memory_bytes": 0},
    "no disk": {"disk_bytes": 0},
    "nothing": {"memory_bytes": 0, "disk_bytes": 0},
    "decoded too": {"keep_decoded": True},
    "decoded, no memory": {"keep_decoded": True, "memory_bytes": 0},
    "as much memory as there is": {"memory_bytes": None},
    "one worker": {"workers": 1},
}


@pytest.fixture
def images(tmp_path):
    return Images(tmp_path)


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_every_setting_gives_the_same_batches(levels, images):
    assert len({sample.shape for sample in images.samples}) > COUNT / 2
    for _ in range(2):
        with images.open(**levels) as cache:
            assert cache.layout == ("uint8", varying.SHAPE) and str(cache.layout) == "uint8 [None, None, 3]"
            for epoch in range(2):
                images.assert_order(*together(cache.batches(7, epoch)), epoch)
    assert list(memory.directory(images.options["memory_dir"]).glob("*")) == []


def test_the_source_is_read_once_and_each_sample_decoded_once(images):
    calls = []

    def counted(payload):
        calls.append(1)
        return varying.decode(payload)

    counted.datacache_fingerprint = "1"
    for _ in range(2):
        with images.open(decode=counted, keep_decoded=True) as cache:
            for epoch in range(3):
                images.assert_order(*together(cache.batches(4, epoch)), epoch)
            numbers = cache.counters.numbers()
            assert numbers["samples.memory"] >= 2 * COUNT
            assert numbers["bytes.memory"] > 2 * sum(sample.nbytes for sample in images.samples)
    assert len(calls) == COUNT + 1  # the first sample is decoded once more, to find the type of samples
    assert numbers["samples.decoded"] == COUNT and "samples.source" not in numbers


def test_one_sample_comes_in_its_own_shape(images):
    with images.open() as cache:
        for _ in range(2):
            for index in (0, 17, COUNT - 1):
                sample, label = cache.fetch(index)
                np.testing.assert_array_equal(sample, images.samples[index], strict=True)
                assert label == images.labels[index]


def test_what_was_read_leaves_nothing_behind(images):
    with images.open() as cache:
        batches = cache.prepare(cache.schedule(4, 0))
        for step in range(len(batches)):
            batches.read(step)
        assert batches._asked == {} and batches._fetching == {}


def test_batches_stay_as_they_are_while_they_are_held_and_keep_the_cache_open(images):
    batches = images.open().batches(7, 0)
    held = list(batches)
    images.assert_order(*together(held), 0)
    assert not held[0][0][0].flags.writeable


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_epoch_is_resumed_on_another_number_of_ranks(ranks, images):
    with images.open() as cache:
        position = cache.schedule(4, epoch=2).position(3)
        first = list(cache.batches(4, epoch=2))[:3]
    caches = [images.open(world=World(rank, ranks)) for rank in range(ranks)]
    steps = zip(*(cache.batches(3, epoch=2, position=position) for cache in caches), strict=True)
    images.assert_order(*together([*first, *(batch for step in steps for batch in step)]), 2)
    for cache in caches:
        cache.close()


READER = """
import pathlib, sys
from tests.datacache.varying import Images, together

images = Images(pathlib.Path(sys.argv[1]))
with images.open() as cache:
    print("open", flush=True)
    sys.stdin.readline()
    for epoch in range(3):
        images.assert_order(*together(cache.batches(5, epoch)), epoch)
    print(cache.counters.numbers().get("samples.source", 0), flush=True)
    sys.stdin.readline()
"""


def test_two_processes_share_one_copy(images, tmp_path):
    """At the same time: each sample is read from the source once, and is in memory once."""
    start = [sys.executable, "-c", READER]
    others = [
        subprocess.Popen([*start, tmp_path], stdin=-1, stdout=-1, text=True, cwd=Path(__file__).parents[2])
        for _ in range(2)
    ]

    def tell_all():
        for other in others:
            other.stdin.write("\n")
            other.stdin.flush()

    try:
        assert [other.stdout.readline() for other in others] == ["open\n"] * 2
        tell_all()
        assert sum(int(other.stdout.readline()) for other in others) == COUNT
        (level,) = memory.directory(images.options["memory_dir"]).iterdir()
        assert sum(sample.nbytes for sample in images.samples) < (level / "data.mdb").stat().st_size < 4 << 20
        tell_all()
        assert [other.wait(600) for other in others] == [0, 0]
        assert not level.exists()
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_with_less_memory_than_samples_the_rest_stays_on_disk(tmp_path):
    """The samples are larger, and about half of them fit."""
    sizes = np.random.default_rng(3).integers(100, 300, (COUNT, 2))

    def image(payload):
        height, width = sizes[payload[0]]
        return np.full((height, width, 3), payload[0], np.uint8)

    image.datacache_fingerprint = "1"
    source = datacache.Indexed(lambda index: bytes([index]), COUNT, "sizes", labels=range(COUNT))
    levels = {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm", "memory_bytes": 5 << 18}
    with datacache.DataCache(source, image, **levels, world=World(), shape=(None, None, 3)) as cache:
        for epoch in range(3):
            samples, labels = together(cache.batches(4, epoch))
            assert sorted(labels) == list(range(COUNT))
            for sample, label in zip(samples, labels, strict=True):
                np.testing.assert_array_equal(sample, image(bytes([label])))
        numbers = cache.counters.numbers()
        taken = sum(path.stat().st_blocks * 512 for path in levels["memory_dir"].rglob("*") if path.is_file())
    assert numbers["not kept.memory"] > 0 and taken <= 5 << 18
    assert COUNT / 5 < numbers["samples.memory"] / 2 < 4 * COUNT / 5
    assert numbers["samples.source"] == COUNT and "damaged.memory" not in numbers


class TestShape:
    def test_without_it_another_shape_is_an_error_that_names_it(self, images):
        with images.open(shape=None) as cache:
            with pytest.raises(DecodeError, match="pass DataCache\\(shape=\\(None, None, 3\\)\\), where it may"):
                list(cache.batches(5, 0))

    def test_what_it_does_not_admit_is_an_error(self, images):
        with pytest.raises(DecodeError, match="uint8 \\[None, 40, 3\\] .* as shape=\\(None, 40, 3\\) says, got"):
            with images.open(shape=(None, 40, 3)) as cache:
                list(cache.batches(5, 0))
        with pytest.raises(DecodeError, match="got uint8 .*: let the decode function bring all to one shape\\.$"):
            images.open(shape=(None, 3))

    def test_another_type_is_an_error_whatever_the_shape(self, images):
        def sometimes(payload):
            made = varying.decode(payload)
            return made.astype(np.float32) if made.shape == images.samples[4].shape else made

        sometimes.datacache_fingerprint = "sometimes"
        with images.open(decode=sometimes) as cache:
            with pytest.raises(DecodeError, match="got float32 .*bring all to one shape and dtype"):
                list(cache.batches(5, 0))

    def test_what_was_kept_for_another_shape_is_not_taken(self, images):
        with images.open(keep_decoded=True) as cache:
            list(cache.batches(5, 0))
            with pytest.raises(DecodeError, match="as shape=\\(60, None, 3\\) says"):
                images.open(keep_decoded=True, shape=(60, None, 3))

    def test_one_shape_for_all_may_be_said_too(self, images):
        def thumbnail(payload):
            return varying.decode(payload)[:5, :5]

        thumbnail.datacache_fingerprint = "thumbnail"
        with images.open(decode=thumbnail, shape=(5, 5, 3), memory_bytes=None) as cache:
            samples, _ = next(cache.batches(6, 0))
            assert samples.shape == (6, 5, 5, 3) and list(images.options["memory_dir"].rglob("*.slab"))
        with pytest.raises(DecodeError, match="as shape=\\(4, 5, 3\\) says, got uint8 \\[5, 5, 3\\]"):
            images.open(decode=thumbnail, shape=(4, 5, 3))

    def test_peers_are_refused(self, images):
        world = World(0, 2, 0, 2, ("127.0.0.1:1", "127.0.0.1:2"), "127.0.0.1:1", b"secret of the job")
        with pytest.raises(ValueError, match="samples of one shape only, got uint8 \\[None, None, 3\\] and 2 peers"):
            images.open(world=world)

    @pytest.mark.parametrize("wrong", [(None, -1, 3), "None", 3])
    def test_what_is_no_shape_is_refused(self, wrong, images):
        with pytest.raises(ValueError, match="such as \\(None, None, 3\\), got"):
            images.open(shape=wrong)

    def test_memory_that_is_not_there_is_an_error(self, images):
        device = os.statvfs("/dev/shm")
        with pytest.raises(NoSpaceError, match="Pass a smaller memory_bytes"):
            images.open(memory_dir="/dev/shm", memory_bytes=device.f_blocks * device.f_frsize + 4096)


class TestFaults:
    def memory_file(self, images):
        (path,) = images.options["memory_dir"].rglob("data.mdb")
        return path

    def test_flipped_bits_in_memory_are_never_served(self, images):
        """In the checksum, the label, the shape or the numbers; a whole epoch is read after each flip."""
        numbers = random.Random(0)
        with images.open() as cache:
            images.assert_order(*together(cache.batches(7, 0)), 0)
            path = self.memory_file(images)
            for turn in range(100):
                index = numbers.randrange(COUNT)
                payload, before = cache.layout.pack(images.samples[index]), cache.counters.numbers()
                place = numbers.randrange(40) if turn % 2 else numbers.randrange(len(payload) + 16)
                for start in members.places_of(path, index, Record(payload, int(images.labels[index]))):
                    members.flip(path, start + place, 1 << numbers.randrange(8))
                images.assert_order(*together(cache.batches(7, 1)), 1)
                after = cache.counters.numbers()
                assert after["damaged.memory"] == before.get("damaged.memory", 0) + 1, (turn, index, place)
            assert after["samples.source"] == COUNT and len(cache._opened.store.quarantine.entries()) == 100

    @pytest.mark.parametrize("level", ["memory", "decoded"])
    def test_a_record_whose_shape_is_not_its_own_is_fetched_anew(self, level, images):
        """Its checksum is right, so it is not accidental damage."""
        with images.open(keep_decoded=level == "decoded", memory_bytes=0 if level == "decoded" else 4 << 20) as cache:
            list(cache.batches(7, 0))
            kept = cache._opened.levels[1 if level == "decoded" else 2]
            height, width, _ = images.samples[6].shape
            kept.drop(6)
            kept.put(6, Record(struct.pack("<3Q", height + 1, width, 3) + images.samples[6].tobytes(), 0))
            images.assert_order(*together(cache.batches(7, 1)), 1)
            assert cache.counters.numbers()[f"damaged.{level}"] == 1
            assert "which is no uint8 [None, None, 3]" in cache._opened.store.quarantine.entries()[0]["reason"]

    @pytest.mark.thorough
    def test_killed_at_any_moment_of_a_run(self, images):
        """Another process opens, reads and closes at the same time; no cleaning up is necessary."""
        numbers = random.Random("varying")
        images.options["local_dir"].mkdir()

        def opened(turn):
            local = images.options["local_dir"] / str(turn)
            return images.open(local_dir=local, keep_decoded=turn % 2 == 0, workers=2)

        def read_turn(turn):
            with opened(turn) as cache:
                for epoch in range(2):
                    images.assert_order(*together(cache.batches(7, epoch)), epoch)

        readers = Readers(read_turn)
        for turn in range(KILLS):

            def run(tell, turn=turn):
                tell()
                read_turn(turn)

            readers.go_to(turn)
            killed_at(numbers.uniform(0, 0.08), run)
        readers.end()
        with opened(turn) as cache:
            images.assert_order(*together(cache.batches(7, 0)), 0)
            assert cache._opened.store.quarantine.entries() == []
        assert list(memory.directory(images.options["memory_dir"]).iterdir()) == []

    def test_what_a_killed_run_had_in_memory_the_next_one_has(self, images):
        def run():
            cache = images.open()
            list(cache.batches(7, 0))
            return cache

        orphan(run)
        shutil.rmtree(images.path)
        with images.open() as cache:
            images.assert_order(*together(cache.batches(7, 1)), 1)
            assert cache.counters.numbers()["samples.memory"] == COUNT
            assert "samples.disk" not in cache.counters.numbers()

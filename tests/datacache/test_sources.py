"""Sources: one suite over all in the table, then the properties of each."""

import inspect
import os
import struct
import threading

import numpy as np
import pytest

from datacache import tfrecord
from datacache.any_files import Files
from datacache.errors import DamagedFileError, SourceChangedError
from datacache.indexed import Indexed
from datacache.listing import NO_LABEL, Listing
from datacache.sources import ImageFolder, Source, TFRecords
from datacache.tar import Tar
from examples import photographs
from tests.datacache import members

source = pytest.mark.parametrize("make", members.SOURCES.values(), ids=members.SOURCES)
in_files = pytest.mark.parametrize(
    "make",
    [members.image_folder, members.tf_records, members.files, members.tar],
    ids=["ImageFolder", "TFRecords", "Files", "Tar"],
)


class TestSource:
    @source
    def test_gives_the_bytes_of_every_sample(self, make, tmp_path):
        member, contents = make(tmp_path / "data")
        listing = member.scan()
        assert len(listing) == len(contents) == members.COUNT
        assert [member.read(listing, index) for index in range(len(listing))] == contents
        assert listing.total_bytes in (None, sum(map(len, contents)))

    @source
    def test_lists_the_same_twice(self, make, tmp_path):
        member, _ = make(tmp_path / "data")
        assert member.scan().fingerprint() == member.scan().fingerprint()
        assert list(member.changes(member.scan())) == []

    @source
    def test_a_listing_survives_on_disk(self, make, tmp_path):
        member, contents = make(tmp_path / "data")
        listing = member.scan()
        listing.save(tmp_path / "listing")
        loaded = Listing.load(tmp_path / "listing", listing.fingerprint())
        assert loaded.identity == member.identity and loaded.classes == listing.classes
        assert [member.read(loaded, index) for index in range(len(loaded))] == contents
        np.testing.assert_array_equal(loaded.labels, listing.labels)
        listing.save(tmp_path / "listing")
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == ["listing"]

    @source
    def test_a_damaged_listing_is_not_loaded(self, make, tmp_path):
        listing = make(tmp_path / "data")[0].scan()
        folder, random = tmp_path / "listing", np.random.default_rng(0)
        listing.save(folder)
        for path in (each for each in folder.iterdir() if each.stat().st_size > 0):
            whole = path.read_bytes()
            flipped = bytearray(whole)
            flipped[random.integers(len(whole))] ^= 1 << random.integers(8)
            for damaged in (bytes(flipped), whole[:-1], b""):
                path.write_bytes(damaged)
                assert Listing.load(folder, listing.fingerprint()) is None
            path.write_bytes(whole)
        assert Listing.load(folder, listing.fingerprint()) is not None
        assert Listing.load(tmp_path / "none", listing.fingerprint()) is None

    @source
    def test_names_samples(self, make, tmp_path):
        member, _ = make(tmp_path / "data")
        assert "sample 3" in member.describe(member.scan(), 3)

    @source
    def test_other_arguments_are_another_identity(self, make, tmp_path):
        assert make(tmp_path / "a")[0].identity == make_again(make, tmp_path / "a").identity
        if make is not members.indexed:
            assert make(tmp_path / "b")[0].identity != make_again(make, tmp_path / "a").identity

    def test_every_member_has_a_row(self):
        known = {make.__name__.replace("_", "") for make in members.SOURCES.values()}
        public = {each for each in kinds_of(Source) if not inspect.isabstract(each) and each.__name__[0] != "_"}
        assert known == {each.__name__.lower() for each in public}


def kinds_of(role):
    return set(role.__subclasses__()).union(*map(kinds_of, role.__subclasses__()))


def make_again(make, path):
    """A second source over existing data."""
    if make is members.indexed:
        return make(path)[0]
    kinds = {members.image_folder: ImageFolder, members.tf_records: TFRecords, members.files: Files, members.tar: Tar}
    return kinds[make](path)


def rewritten(path):
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def truncated(path):
    time = path.stat().st_mtime_ns
    os.truncate(path, path.stat().st_size - 1)
    os.utime(path, ns=(time, time))


class TestFiles:
    @in_files
    @pytest.mark.parametrize(
        "change, told",
        [
            (rewritten, "has changed since it was listed: expected .* bytes of time .*, got .* bytes of time"),
            (truncated, "has changed since it was listed"),
            (os.remove, "no longer exists"),
        ],
    )
    def test_a_changed_file_is_noticed_and_the_others_can_be_read(self, make, change, told, tmp_path):
        member, contents = make(tmp_path / "data")
        listing = member.scan()
        path = sorted(each for each in (tmp_path / "data").rglob("*") if each.is_file())[0]
        change(path)
        with pytest.raises(SourceChangedError, match=told) as raised:
            member.read(listing, 0)
        assert str(path) in str(raised.value) and "verify --relist" in str(raised.value)
        (complaint,) = member.changes(listing)
        assert str(path) in complaint
        assert member.read(listing, members.COUNT - 1) == contents[-1]
        if change is rewritten:
            assert member.scan().fingerprint() != listing.fingerprint()

    @in_files
    def test_a_new_file_is_noticed(self, make, tmp_path):
        member, _ = make(tmp_path / "data")
        listing = member.scan()
        old = sorted(each for each in (tmp_path / "data").rglob("*") if each.is_file())[-1]
        new = old.with_name(f"z{old.name}")
        new.write_bytes(old.read_bytes())
        assert list(member.changes(listing)) == [f"{new} is new."]

    @in_files
    def test_a_file_that_becomes_a_pipe_is_not_waited_for(self, make, tmp_path):
        member, _ = make(tmp_path / "data")
        listing = member.scan()
        path = sorted(each for each in (tmp_path / "data").rglob("*") if each.is_file())[0]
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(SourceChangedError, match=f"{path} has changed .* it is a named pipe"):
            member.read(listing, 0)
        assert [each for each in member.changes(listing) if "named pipe" in each]

    @in_files
    def test_content_is_the_same_wherever_it_lies(self, make, tmp_path):
        listing = make(tmp_path / "data")[0].scan()
        (tmp_path / "data").rename(tmp_path / "moved")
        moved = make_again(make, tmp_path / "moved").scan()
        assert moved.fingerprint() != listing.fingerprint() and moved.content() == listing.content()

    @in_files
    def test_progress_is_told(self, make, tmp_path):
        member, _ = make(tmp_path / "data")
        told = []
        listing = member.scan(lambda done, total: told.append(done))
        assert told == list(range(1, listing.file_count + 1))
        list(member.changes(listing, lambda done, total: told.append((done, total))))
        assert told[-1] == (listing.file_count, listing.file_count)

    @in_files
    def test_what_is_not_there_is_an_error(self, make, tmp_path):
        with pytest.raises((FileNotFoundError, NotADirectoryError), match="absent"):
            make_again(make, tmp_path / "absent").scan()


class TestImageFolder:
    def test_labels_are_the_photographs_in_order(self, tmp_path):
        written = photographs.write_folder(tmp_path, 6, **members.SMALL)
        listing = ImageFolder(tmp_path).scan()
        assert listing.classes == ("astronaut", "chelsea", "coffee")
        assert [listing.classes[label] for label in listing.labels] == [path.parent.name for path, _ in written]
        assert [listing.name(file) for file in range(6)] == [str(path.relative_to(tmp_path)) for path, _ in written]

    def test_only_images_in_class_folders_count(self, tmp_path):
        for name in ("top.jpg", "cat/a.JPG", "cat/notes.txt", "cat/deep/er/ü b.png", ".hidden/c.jpg", "cat/.d.jpg"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        listing = ImageFolder(tmp_path).scan()
        assert [listing.name(file) for file in range(listing.file_count)] == ["cat/a.JPG", "cat/deep/er/ü b.png"]
        assert len(ImageFolder(tmp_path, suffixes=(".txt",)).scan()) == 1

    def test_no_image_is_an_error_in_words(self, tmp_path):
        with pytest.raises(ValueError, match="no file ending in .jpg.*CLASS/NAME.jpg"):
            ImageFolder(tmp_path).scan()

    def folders(self, path, *names):
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(b"x")

    def test_classes_are_numbered_as_they_are_given(self, tmp_path):
        self.folders(tmp_path, "ant/a.jpg", "cat/a.jpg", "cat/b.jpg", "empty/notes.txt")
        listing = ImageFolder(tmp_path, classes=["cat", "bee", "ant"]).scan()
        assert listing.classes == ("cat", "bee", "ant") and listing.labels.tolist() == [2, 0, 0]
        member = ImageFolder(tmp_path, classes=("cat", "bee", "ant"))
        assert list(member.changes(member.scan())) == []

    def test_an_empty_folder_that_was_passed_over_is_noticed(self, tmp_path):
        self.folders(tmp_path, "ant/a.jpg", "cat/a.jpg")
        listing = ImageFolder(tmp_path).scan()
        (tmp_path / "bee").mkdir()
        (told,) = ImageFolder(tmp_path).changes(listing)
        assert told == f"{tmp_path}/bee has no listed image, and the classes after it are numbered without it."
        assert list(ImageFolder(tmp_path, classes=["ant", "cat"]).changes(listing)) == []

    def test_other_classes_are_another_place_and_none_are_the_old_one(self, tmp_path):
        assert ImageFolder(tmp_path).identity == {
            "kind": "ImageFolder",
            "path": str(tmp_path),
            "suffixes": [".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff"],
        }
        made = [ImageFolder(tmp_path, classes=classes).identity for classes in (None, ["a", "b"], ["b", "a"])]
        assert made[0] != made[1] != made[2] != made[0]

    def test_images_in_a_folder_that_is_no_class_are_named(self, tmp_path):
        self.folders(tmp_path, *(f"{name}/a.jpg" for name in "abcdefgh"))
        with pytest.raises(ValueError, match="not among classes=.'a'.: 'b', 'c', 'd', 'e', 'f' and 2 more"):
            ImageFolder(tmp_path, classes=["a"]).scan()
        self.folders(tmp_path, "late/a.jpg")
        listing = ImageFolder(tmp_path, classes=[*"abcdefgh", "late"]).scan()
        self.folders(tmp_path, "later/a.jpg")
        told = ImageFolder(tmp_path, classes=[*"abcdefgh", "late"]).changes(listing)
        assert list(told) == [f"{tmp_path}/later/a.jpg is new."]

    @pytest.mark.parametrize("classes", ["cat", [], ["a", "a"], ["a/b"], [1]])
    def test_classes_that_cannot_be_are_refused(self, classes, tmp_path):
        with pytest.raises(ValueError, match="Expected classes as a list of distinct folder names"):
            ImageFolder(tmp_path, classes=classes)

    @pytest.mark.parametrize("suffixes", [".jpg", (), ("jpg",)])
    def test_suffixes_that_cannot_be_are_refused(self, suffixes, tmp_path):
        with pytest.raises(ValueError, match="Expected suffixes such as"):
            ImageFolder(tmp_path, suffixes)


class TestTFRecords:
    def write(self, path, *records):
        tfrecord.write(path / "a.tfrecord", records)
        return path / "a.tfrecord"

    def test_labels_are_in_the_records(self, tmp_path):
        self.write(tmp_path, b"one", b"two")
        assert TFRecords(tmp_path).scan().labels.tolist() == [NO_LABEL, NO_LABEL]

    def test_tensorflow_reads_what_is_written_and_the_other_way_round(self, tmp_path):
        import tensorflow as tf

        records = [b"", b"one", os.urandom(100_000)]
        path = self.write(tmp_path, *records)
        assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == records
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        member = TFRecords(tmp_path)
        listing = member.scan()
        assert [member.read(listing, index) for index in range(3)] == records

    def test_every_flipped_bit_is_noticed(self, tmp_path):
        path = self.write(tmp_path, b"first", b"second")
        whole, time = path.read_bytes(), path.stat().st_mtime_ns
        listing = TFRecords(tmp_path).scan()
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            os.utime(path, ns=(time, time))
            with pytest.raises(DamagedFileError, match="a.tfrecord"):
                TFRecords(tmp_path).scan()
                for index in range(2):
                    TFRecords(tmp_path).read(listing, index)

    def test_a_file_that_is_cut_off_is_an_error(self, tmp_path):
        path = self.write(tmp_path, b"first", b"second")
        for length in range(1, path.stat().st_size):
            if length == 21:  # exactly the first record
                continue
            cut = tmp_path / "cut" / path.name
            cut.parent.mkdir(exist_ok=True)
            cut.write_bytes(path.read_bytes()[:length])
            with pytest.raises(DamagedFileError, match="truncated|no record at byte"):
                TFRecords(cut.parent).scan()

    @pytest.mark.parametrize("magic, told", [(b"\x1f\x8b", "gzip"), (b"\x78\x9c", "zlib"), (b"PK", "not a TFRecord")])
    def test_other_formats_are_named(self, magic, told, tmp_path):
        (tmp_path / "a.tfrecord").write_bytes(magic + bytes(50))
        with pytest.raises(DamagedFileError, match=told):
            TFRecords(tmp_path).scan()

    def test_no_record_is_an_error_in_words(self, tmp_path):
        with pytest.raises(ValueError, match="no record in files named"):
            TFRecords(tmp_path).scan()

    def test_a_length_beyond_the_file_allocates_nothing(self, tmp_path):
        length = struct.pack("<Q", 2**62)
        (tmp_path / "a.tfrecord").write_bytes(length + tfrecord.FOOTER.pack(tfrecord.masked_crc(length)) + bytes(9))
        with pytest.raises(DamagedFileError, match="truncated"):
            TFRecords(tmp_path).scan()


class TestIndexed:
    @pytest.mark.parametrize(
        "size, name, labels, told",
        [
            (0, "x", None, "at least 1 sample"),
            (2, "x", [1], "a label >= 0 for each, got size=2 and 1 labels"),
            (2, "x", [0, -1], "a label >= 0"),
            (2, "", None, "Expected a name"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, size, name, labels, told):
        with pytest.raises(ValueError, match=told):
            Indexed(lambda index: b"", size, name, labels)

    def test_what_are_no_bytes_is_refused(self):
        member = Indexed(lambda index: "text", 1, "x")
        with pytest.raises(TypeError, match="Expected bytes for sample 0 from 'x', got str"):
            member.read(member.scan(), 0)

    def test_another_name_or_other_labels_are_another_fingerprint(self):
        made = [("a", None), ("b", None), ("a", [0, 1]), ("a", [1, 0])]
        assert len({Indexed(bytes, 2, name, labels).scan().fingerprint() for name, labels in made}) == 4

    def test_its_identity_is_name_size_labels_and_function_or_version(self):
        def other(index):
            return bytes(index + 1)

        def made(read=bytes, size=2, name="a", labels=None, version=None):
            return Indexed(read, size, name, labels, version).identity

        others = [{"read": other}, {"size": 3}, {"name": "b"}, {"labels": [0, 1]}, {"labels": [1, 0]}]
        others += [{"version": "1"}, {"version": "2"}]
        assert len({str(made(**each)) for each in [{}, *others]}) == 1 + len(others)
        assert made(other, version="1") == made(version="1")
        assert made(labels=np.array([0, 1], np.int32)) == made(labels=range(2))

    def test_nodes_whose_functions_read_from_different_places_have_the_same_content(self):
        made = [Indexed(lambda index, root=root: root.encode(), 2, "a").scan() for root in ("/one", "/two")]
        assert made[0].fingerprint() != made[1].fingerprint() and made[0].content() == made[1].content()
        assert Indexed(bytes, 2, "a", version="1").scan().content() != made[0].content()

    def test_a_function_that_cannot_be_compared_needs_a_version(self):
        lock = threading.Lock()

        def read(index):
            with lock:
                return b""

        with pytest.raises(ValueError, match=r"'x' .* or a version: pass Indexed\(..., version=\"1\"\).* lock in"):
            Indexed(read, 1, "x")
        assert Indexed(read, 1, "x", version="1").identity["version"] == "1"

    @pytest.mark.parametrize("version", ["", 1])
    def test_a_version_that_is_no_text_is_refused(self, version):
        with pytest.raises(ValueError, match="Expected a version as a string"):
            Indexed(bytes, 1, "x", version=version)


class TestAnyFiles:
    def test_patterns_choose_and_hidden_files_do_not_count(self, tmp_path):
        for name in ("b.npy", "a.npy", "deep/c.npy", "deep/d.txt", ".e.npy", ".git/f.npy"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(name.encode())
        for pattern, names in {
            "**/*": ["a.npy", "b.npy", "deep/c.npy", "deep/d.txt"],
            "*.npy": ["a.npy", "b.npy"],
            "deep/*": ["deep/c.npy", "deep/d.txt"],
        }.items():
            member = Files(tmp_path, pattern)
            listing = member.scan()
            assert [member.key(listing, index) for index in range(len(listing))] == names
            assert [member.read(listing, index) for index in range(len(listing))] == [each.encode() for each in names]

    def test_what_is_not_there_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match=r"has no file whose path matches \*.npy: pass another pattern="):
            Files(tmp_path, "*.npy").scan()
        with pytest.raises(NotADirectoryError, match="Expected a directory, got .*nowhere"):
            Files(tmp_path / "nowhere").scan()
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="Expected a file, got a named pipe"):
            Files(tmp_path).scan()


@source
def test_each_sample_has_a_key_of_its_own(make, tmp_path):
    member, _ = make(tmp_path / "data")
    listing = member.scan()
    assert len({member.key(listing, index) for index in range(len(listing))}) == members.COUNT

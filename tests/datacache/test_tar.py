"""Tar files in the layout of WebDataset, from their members to batches."""

import gzip
import io
import tarfile

import numpy as np
import pytest

import datacache
from datacache.errors import DamagedFileError
from tests.datacache import members

MEMBERS = {
    "b/0001.vec.npy": b"first",
    "b/0001.cls": b"7",
    "b/0002.CLS": b"8",  # as another program wrote it
    "b/.hidden": b"no sample",
    "b/notes": b"no sample either",
    "a/0002.vec.npy": b"of another folder",
    "a/0002.cls": b"9",
}
SAMPLES = [
    {"__key__": "b/0001", "vec.npy": b"first", "cls": b"7"},
    {"__key__": "b/0002", "cls": b"8"},
    {"__key__": "a/0002", "vec.npy": b"of another folder", "cls": b"9"},
]


def written(path, contents, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form) as made:
        for name, content in contents.items():
            if content is None:
                folder = tarfile.TarInfo(name)
                folder.type = tarfile.DIRTYPE
                made.addfile(folder)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_neighbours_of_one_name_are_a_sample(form, tmp_path):
    written(tmp_path / "one.tar", {"b": None, **MEMBERS}, form)
    source = datacache.Tar(tmp_path)
    listing = source.scan()
    assert [source.opened(source.read(listing, index)) for index in range(len(listing))] == SAMPLES


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_belong_to_their_sample(form, tmp_path):
    names = ["x" * 300 + f"/{number}.{kind}" for number in range(3) for kind in ("a", "b")]
    written(tmp_path / "one.tar", {name: name[-3:].encode() for name in names}, form)
    source = datacache.Tar(tmp_path)
    listing = source.scan()
    found = [source.opened(source.read(listing, index)) for index in range(3)]
    assert [(each["__key__"][-2:], each["a"], each["b"]) for each in found] == [
        (f"/{number}", f"{number}.a".encode(), f"{number}.b".encode()) for number in range(3)
    ]


def decode(parts):
    return np.resize(np.frombuffer(parts["jpg"], np.uint8), 40), int(parts["cls"])


def test_batches_have_the_members_of_samples(tmp_path):
    source, contents = members.tar(tmp_path / "data")
    options = {"memory_bytes": 1 << 20, "memory_dir": tmp_path / "shm", "world": datacache.World()}
    for _ in range(2):  # the second time from the disk
        with datacache.DataCache(source, decode, tmp_path / "local", **options) as cache:
            wanted = [decode(source.opened(content)) for content in contents]
            samples, labels = cache.take(range(members.COUNT))
            np.testing.assert_array_equal(samples, [sample for sample, _ in wanted])
            assert labels.tolist() == [label for _, label in wanted] == [number % 3 for number in range(members.COUNT)]


def test_what_is_no_tar_file_is_an_error_that_names_it(tmp_path):
    written(tmp_path / "whole.tar", MEMBERS)
    whole = (tmp_path / "whole.tar").read_bytes()
    for name, content, told in (
        ("packed", gzip.compress(whole), "is compressed by gzip, so no sample can be read by itself"),
        ("noise", b"x" * 2000, "is no tar file, or a damaged one"),
        ("short", whole[:700], "is no tar file, or a damaged one"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "bad.tar").write_bytes(content)
        with pytest.raises(DamagedFileError, match=told) as raised:
            datacache.Tar(folder).scan()
        assert str(folder / "bad.tar") in str(raised.value)
    with pytest.raises(ValueError, match=r"has no record in files named \*\.tgz"):
        datacache.Tar(tmp_path, "*.tgz").scan()

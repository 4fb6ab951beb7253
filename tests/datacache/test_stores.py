"""Sources in stores that fsspec opens: the same samples as from a directory, or an error, and nothing in between."""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import subprocess
import sys

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import datacache
from datacache import files
from datacache.errors import SourceChangedError
from datacache.remote import RemoteFolder
from tests.datacache import members, stores
from tests.parallel.launch import ROOT

SOURCES = {
    "ImageFolder": (members.image_folder, datacache.ImageFolder),
    "TFRecords": (members.tf_records, datacache.TFRecords),
    "Files": (members.files, datacache.Files),
    "Tar": (members.tar, datacache.Tar),
}


@pytest.fixture(params=stores.STORES)
def store(request, tmp_path):
    with stores.STORES[request.param](tmp_path / "store") as made:
        yield made


def uploaded(make, path, store):
    """A directory's source and its contents, with all its files in a store too."""
    source, contents = make(path)
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        store.put(str(file.relative_to(path)), file.read_bytes())
    return source, contents


@pytest.mark.parametrize("make, kind", SOURCES.values(), ids=SOURCES)
def test_samples_are_those_of_a_directory(make, kind, store, tmp_path):
    local, contents = uploaded(make, tmp_path / "data", store)
    source = kind(store.address, storage_options=store.options)
    here, listing = local.scan(), source.scan()
    assert [source.read(listing, index) for index in range(len(listing))] == contents
    for column in ("names", "sizes", "file_of", "offsets", "lengths", "labels"):
        np.testing.assert_array_equal(getattr(listing, column), getattr(here, column))
    assert listing.classes == here.classes and source.key(listing, 3) == local.key(here, 3)
    assert f"sample 3 ({store.address}/" in source.describe(listing, 3)
    again = kind(store.address + "/", storage_options=store.options)
    assert again.identity == source.identity and again.scan().fingerprint() == listing.fingerprint()
    assert list(source.changes(listing)) == []


@pytest.mark.parametrize("store", [name for name in stores.STORES if name != "archive"], indirect=True)
@pytest.mark.parametrize("make, kind", SOURCES.values(), ids=SOURCES)
def test_a_file_that_changes_is_an_error_and_the_others_can_be_read(make, kind, store, tmp_path):
    _, contents = uploaded(make, tmp_path / "data", store)
    source = kind(store.address, storage_options=store.options)
    listing = source.scan()
    name = listing.name(0)
    content = (tmp_path / "data" / name).read_bytes()
    other = name.rpartition(".")
    store.put(f"{other[0]}-new.{other[2]}", content)
    store.put(name, content[::-1])  # of the same size
    with pytest.raises(SourceChangedError, match="has changed since it was listed.*verify --relist"):
        source.read(listing, 0)
    changed, new = source.changes(listing)
    assert f"{store.address}/{name} has changed" in changed and "-new" in new and "is new" in new
    store.remove(name)
    with pytest.raises(SourceChangedError, match="no longer exists"):
        source.read(listing, 0)
    assert "no longer exists" in next(iter(source.changes(listing)))
    assert source.read(listing, members.COUNT - 1) == contents[-1]


def decode(data):
    return np.resize(np.frombuffer(data, np.uint8), 50)


def opened(source, path, **options):
    options = {"memory_bytes": 1 << 20, "memory_dir": path / "shm", "world": datacache.World(), **options}
    return datacache.DataCache(source, decode, path / "local", **options)


def test_a_server_of_s3_is_asked_for_each_object_once(tmp_path):
    """By the server's own count: none in a second epoch, nor in a second run, nor for another endpoint's bucket."""
    with stores.s3(tmp_path) as store:
        local, contents = uploaded(members.image_folder, tmp_path / "data", store)
        before = store.reads()
        for run in range(2):
            with opened(datacache.ImageFolder(store.address, storage_options=store.options), tmp_path) as cache:
                for epoch in range(2):
                    for batch, labels in cache.batches(5, epoch):
                        assert len(batch) == len(labels)
                    assert store.reads() - before == members.COUNT, (run, epoch)
                np.testing.assert_array_equal(cache.take([3])[0][0], decode(contents[3]))
        kept = [each for each in (tmp_path / "local").rglob("*") if each.is_file()]
        assert kept and not any(stores.SECRET.encode() in each.read_bytes() for each in kept), (
            "secrets are kept nowhere"
        )


def test_the_commands_read_from_s3(tmp_path):
    with stores.s3(tmp_path) as store:
        uploaded(members.image_folder, tmp_path / "data", store)
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": store.options["client_kwargs"]["endpoint_url"],
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": stores.SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        command = [
            sys.executable,
            "-m",
            "datacache",
            "warm",
            "--images",
            store.address,
            "--local-dir",
            tmp_path / "local",
        ]
        for _ in range(2):
            ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stderr
            assert store.reads() == members.COUNT


def test_a_server_that_fails_serves_no_wrong_sample(tmp_path):
    with stores.web(tmp_path, ("", "503", "cut", "killed")) as store:
        _, contents = uploaded(members.image_folder, tmp_path / "data", store)
        source = datacache.ImageFolder(store.address)
        listing, right, failed = source.scan(), 0, 0
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            asked = [(index, threads.submit(source.read, listing, index)) for index in [*range(len(listing))] * 10]
        for index, answer in asked:
            error = answer.exception(timeout=60)
            if error is None:
                assert answer.result() == contents[index]
            else:
                assert isinstance(error, OSError) and store.address in str(error), error
                assert not isinstance(error, SourceChangedError), "the source is as it was"
            right, failed = right + (error is None), failed + (error is not None)
        assert right > 10 and failed > 10


def test_a_forked_process_reads_too(tmp_path):
    with stores.web(tmp_path) as store:
        _, contents = uploaded(members.image_folder, tmp_path / "data", store)
        source = datacache.ImageFolder(store.address)
        listing = source.scan()
        assert source.read(listing, 0) == contents[0]
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if source.read(listing, 1) == contents[1] else 1)
        assert os.waitpid(child, 0)[1] == 0


class Expiring(MemoryFileSystem):
    """A store whose credentials serve for a few requests."""

    protocol = "expiring"
    store, pseudo_dirs = {}, [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("expiring://"))

    def __init__(self, token, **options):
        super().__init__(**options)
        self._left = token

    def cat_file(self, *arguments, **options):
        self._left -= 1
        if self._left < 0:
            raise PermissionError("the token has expired")
        return super().cat_file(*arguments, **options)


def test_credentials_are_asked_for_again_when_they_have_expired(tmp_path):
    fsspec.register_implementation("expiring", Expiring, clobber=True)
    given = []

    def options():
        given.append(3)
        return {"token": 3}

    source, contents = members.image_folder(tmp_path / "data")
    for file in (each for each in (tmp_path / "data").rglob("*") if each.is_file()):
        Expiring(9).pipe_file(f"/train/{file.relative_to(tmp_path / 'data')}", file.read_bytes())
    source = datacache.ImageFolder("expiring://train", storage_options=options)
    listing, before = source.scan(), len(given)
    assert [source.read(listing, index) for index in range(12)] == contents and len(given) - before == 3
    source = datacache.ImageFolder("expiring://train", storage_options={"token": 3})
    assert [source.read(listing, index) for index in range(3)] == contents[:3]
    with pytest.raises(PermissionError, match=r"expiring://train/.* cannot be read \(the token has expired\).*options"):
        source.read(listing, 3)


@pytest.mark.parametrize(
    "pattern", ["*", "**/*", "a/*.txt", "*/*.txt", "**/?.txt", "**/[ab].*", "**/[!a].txt", "a/**/*.txt", "**"]
)
def test_patterns_mean_what_they_mean_in_a_directory(pattern, tmp_path):
    with stores.memory(tmp_path) as store:
        for name in ("a.txt", "b.bin", "a/a.txt", "a/b.txt", "a/bc.txt", "a/x/a.txt", "a/x/y/b.txt", "b/a+1.txt"):
            store.put(name, b"1")
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"1")
        if pattern == "**":
            assert len(RemoteFolder(store.address).matching(pattern, "")) == 8
            return
        local, remote = datacache.Files(tmp_path, pattern), datacache.Files(store.address, pattern)
        assert [local.key(local.scan(), each) for each in range(len(local.scan()))] == [
            remote.key(remote.scan(), each) for each in range(len(remote.scan()))
        ]


@pytest.mark.parametrize(
    "address, error, told",
    [
        ("s3://key:word@bucket/train", ValueError, "without password or query, got s3://...@bucket/train"),
        (
            "https://host/train?signature=word",
            ValueError,
            "got https://host/train?...: pass credentials as storage_opt",
        ),
        (
            "nowhere://bucket/train",
            ValueError,
            "cannot be opened by fsspec: Protocol not known: nowhere.",
        ),
        ("memory://nothing/there", FileNotFoundError, "memory://nothing/there has no files: check the address"),
    ],
)
def test_addresses_that_cannot_be_are_refused(address, error, told):
    with pytest.raises(error, match=re.escape(told)) as raised:
        datacache.ImageFolder(address).scan()
    assert "word" not in str(raised.value).replace("password", "")


def test_options_of_a_directory_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected storage_options with an address only"):
        datacache.Files(tmp_path, storage_options={"key": "k"})


def test_without_fsspec_an_address_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        ImportError, match=r"s3://bucket/train is opened by fsspec.*`pip install fsspec`.*s3fs or gcsfs"
    ):
        datacache.Files("s3://bucket/train")


def test_two_endpoints_are_two_places():
    places = {
        RemoteFolder("memory://bucket", {"client_kwargs": {"endpoint_url": each}, "key": "k"}).place for each in "ab"
    }
    assert places == {"memory://bucket endpoint_url=a", "memory://bucket endpoint_url=b"}


@pytest.mark.parametrize(
    "path, remote",
    [
        ("s3://bucket", True),
        ("zip://a::s3://bucket/b.zip", True),
        ("simplecache::s3://bucket", True),
        ("old::new/train", False),
        ("/data/a://b", False),
        ("9p://x", False),
    ],
)
def test_addresses_are_told_from_paths(path, remote):
    assert files.is_address(path) == remote

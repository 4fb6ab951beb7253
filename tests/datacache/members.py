"""Tables of the sources and levels under test.

A new one needs one row here; every test suite of its kind then runs on it.
"""

from __future__ import annotations

import contextlib
import io
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from datacache import tfrecord
from datacache.any_files import Files
from datacache.disk import DiskLevel
from datacache.indexed import Indexed
from datacache.levels import Level, Record, checksum
from datacache.slab import Slab, needed
from datacache.sources import ImageFolder, Source, TFRecords
from datacache.tar import Tar
from datacache.tmpfs import TmpfsLevel
from examples import photographs

COUNT = 12


def image_folder(path: Path) -> tuple[Source, list[bytes]]:
    """A folder with crops of three photographs."""
    return ImageFolder(path), [content for _, content in photographs.write_folder(path, COUNT, **SMALL)]


def tf_records(path: Path) -> tuple[Source, list[bytes]]:
    """The same crops in two files, and an empty record."""
    contents = [content for _, content in photographs.crops(COUNT - 1, **SMALL)] + [b""]
    path.mkdir()
    tfrecord.write(path / "part-0.tfrecord", contents[:5])
    tfrecord.write(path / "part-1.tfrecord", contents[5:])
    return TFRecords(path), contents


def files(path: Path) -> tuple[Source, list[bytes]]:
    """The same crops, flat and in folders, in the order of their paths."""
    contents = [content for _, content in photographs.crops(COUNT, **SMALL)]
    for number, content in enumerate(contents):
        file = path / ("" if number < 7 else "sub/folder") / f"{number:02}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return Files(path), contents


def tar(path: Path) -> tuple[Source, list[bytes]]:
    """The same crops in two files, each with its number beside it."""
    crops, contents = [content for _, content in photographs.crops(COUNT, **SMALL)], []
    path.mkdir()
    for name, numbers in (("part-0.tar", range(5)), ("part-1.tar", range(5, COUNT))):
        places = []
        with tarfile.open(path / name, "w") as made:
            for number in numbers:
                begin = made.offset
                for kind, content in (("jpg", crops[number]), ("cls", str(number % 3).encode())):
                    member = tarfile.TarInfo(f"{'long' * 30 if number == 3 else 'some'}/{number:03}.{kind}")
                    member.size = len(content)
                    made.addfile(member, io.BytesIO(content))
                places.append((begin, made.offset))
        whole = (path / name).read_bytes()
        contents += [whole[begin:end] for begin, end in places]
    return Tar(path), contents


def indexed(path: Path) -> tuple[Source, list[bytes]]:
    """The same crops, returned by a function."""
    contents = [content for _, content in photographs.crops(COUNT, **SMALL)]
    return Indexed(contents.__getitem__, COUNT, "crops, version 1", labels=range(COUNT)), contents


SMALL = {"width": 60, "height": 45, "photographs": 3}
SOURCES: dict[str, Callable[[Path], tuple[Source, list[bytes]]]] = {
    "ImageFolder": image_folder,
    "TFRecords": tf_records,
    "Files": files,
    "Tar": tar,
    "Indexed": indexed,
}


class Place(NamedTuple):
    """A level that can be opened again, and the files that hold its bytes.

    Attributes:
        open: returns the opened level.
        files: returns the files that contain records while it is open.
    """

    open: Callable[[], Level]
    files: Callable[[], list[Path]]


SAMPLES = 40


def slab(path: Path) -> Place:
    """A slab for decoded samples."""
    return Place(
        lambda: Slab(path / "shm", "key", range(SAMPLES), needed(SAMPLES, 10_000)),
        lambda: list((path / "shm").glob("*.slab")),
    )


def disk(path: Path) -> Place:
    """An LMDB file."""
    return Place(lambda: DiskLevel(path / "disk", 16 << 20), lambda: [path / "disk" / "data.mdb"])


def tmpfs(path: Path) -> Place:
    """An LMDB file for decoded samples of varying shape."""
    return Place(
        lambda: TmpfsLevel(path / "shm", "key", 16 << 20),
        lambda: list((path / "shm").glob("*.lmdb/data.mdb")),
    )


LEVELS: dict[str, Callable[[Path], Place]] = {"Slab": slab, "DiskLevel": disk, "TmpfsLevel": tmpfs}


@contextlib.contextmanager
def flipped(path: Path, position: int, mask: int) -> Iterator[None]:
    """Flips bits of a byte of a file temporarily."""
    flip(path, position, mask)
    yield
    flip(path, position, mask)


def flip(path: Path, position: int, mask: int) -> None:
    """Flips bits of a byte of a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def places_of(path: Path, index: int, record: Record) -> list[int]:
    """The positions of all complete copies of a record in an LMDB file: the live one, and old ones on free pages.

    Searching for the payload alone is not enough: a freed page may now belong to the tree and still contain the end of
    an old record, with pointers where that record's header was. A bit flipped there would damage LMDB itself.
    """
    value = struct.pack("<Qq", checksum(index, record), record.label) + record.payload
    content, found, position = path.read_bytes(), [], -1
    while (position := content.find(value, position + 1)) >= 0:
        found.append(position)
    assert found
    return found

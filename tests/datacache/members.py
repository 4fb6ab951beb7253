"""The members of each role. A new one is one row here: every suite of its role then holds it to the laws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import photographs
from datacache import tfrecord
from datacache.sources import ImageFolder, Indexed, Source, TFRecords

COUNT = 12


def image_folder(path: Path) -> tuple[Source, list[bytes]]:
    """Crops of three photographs."""
    return ImageFolder(path), [content for _, content in photographs.write_folder(path, COUNT, **SMALL)]


def tf_records(path: Path) -> tuple[Source, list[bytes]]:
    """The same crops in two files, and an empty record."""
    contents = [content for _, content in photographs.crops(COUNT - 1, **SMALL)] + [b""]
    path.mkdir()
    tfrecord.write(path / "part-0.tfrecord", contents[:5])
    tfrecord.write(path / "part-1.tfrecord", contents[5:])
    return TFRecords(path), contents


def indexed(path: Path) -> tuple[Source, list[bytes]]:
    """The same crops by a function."""
    contents = [content for _, content in photographs.crops(COUNT, **SMALL)]
    return Indexed(contents.__getitem__, COUNT, "crops, version 1", labels=range(COUNT)), contents


SMALL = {"width": 60, "height": 45, "photographs": 3}
SOURCES: dict[str, Callable[[Path], tuple[Source, list[bytes]]]] = {
    "ImageFolder": image_folder,
    "TFRecords": tf_records,
    "Indexed": indexed,
}

"""JPEGs of different sizes, for the tests of samples of varying shape: crops of photographs, decoded as they are."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

import datacache
from datacache.order import permutation
from examples import photographs

COUNT = 30
SHAPE = (None, None, 3)


def write_images(path: Path) -> None:
    """Writes 30 crops of 5 to 60 pixels a side, in a folder for each of three photographs."""
    random, sources = np.random.default_rng(0), list(photographs.load(3).items())
    for number in range(COUNT):
        name, photograph = sources[number % len(sources)]
        width, height = (int(side) for side in random.integers(5, 61, 2))
        left, top = int(random.integers(photograph.width - width)), int(random.integers(photograph.height - height))
        file = path / name / f"{number:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        photograph.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=95)


def decode(payload: bytes) -> np.ndarray:
    """A JPEG as [height, width, 3] uint8."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.asarray(image)


class Images:
    """A folder of such images, and options for a cache of it.

    Attributes:
        path: the folder.
        samples: the decoded images.
        labels: int64.
        options: options of a `DataCache`, with levels for this test alone.
    """

    def __init__(self, path: Path):
        """Writes the images, unless they exist."""
        self.path = path / "images"
        if not self.path.exists():
            write_images(self.path)
        self.samples = [decode(file.read_bytes()) for file in sorted(self.path.rglob("*.jpg"))]
        self.labels = np.repeat(np.arange(3), COUNT // 3)
        self.options = {
            "decode": decode,
            "local_dir": path / "local",
            "memory_dir": path / "shm",
            "world": datacache.World(),
            "shape": SHAPE,
            "memory_bytes": 4 << 20,
        }

    def open(self, **changed) -> datacache.DataCache:
        """Opens a cache of the images."""
        return datacache.DataCache(datacache.ImageFolder(self.path), **{**self.options, **changed})

    def assert_order(self, samples, labels, epoch: int, begin: int = 0) -> None:
        """Asserts that these are the samples and labels of an epoch, from a position to its end."""
        order = permutation(COUNT, 0, epoch)[begin:]
        assert [sample.shape for sample in samples] == [self.samples[index].shape for index in order]
        for sample, index in zip(samples, order, strict=True):
            np.testing.assert_array_equal(sample, self.samples[index], strict=True)
        np.testing.assert_array_equal(labels, self.labels[order])


def together(batches) -> tuple[list[np.ndarray], np.ndarray]:
    """All samples and labels of batches."""
    batches = list(batches)
    return [sample for samples, _ in batches for sample in samples], np.concatenate([labels for _, labels in batches])

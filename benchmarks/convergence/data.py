"""Grey 32 x 32 crops of the photographs that scikit-image and scikit-learn ship; the label is the photograph.

Training crops are of the left halves, held-out ones of the right halves, so that they have no pixel in common. A crop
is a square of 48 to 128 pixels, scaled to 32, possibly mirrored. Its mean is subtracted and its contrast normalised, as
brightness alone would distinguish most photographs. Then a little noise is added, new in each epoch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image

from examples import photographs

SIDE = 32
SQUARES = (48, 128)  # pixels of the photograph
FLAT = 8.0  # grey levels, added to a crop's deviation, so that a piece of sky stays flat


class Crops(NamedTuple):
    """Images [count, 32, 32, 1] float32 of mean 0 and deviation about 1, without noise, and labels [count] int32."""

    images: np.ndarray
    labels: np.ndarray

    def part(self, rank: int, size: int) -> Crops:
        """Every `size`-th crop, beginning with number `rank`."""
        return Crops(self.images[rank::size], self.labels[rank::size])


def halves(half: str) -> list[np.ndarray]:
    """The "left" or "right" halves of all photographs, grey, uint8, by name; the middle column is in neither."""
    if half not in ("left", "right"):
        raise ValueError(f"Expected the half left or right, got {half!r}.")
    whole = [np.asarray(image.convert("L")) for _, image in sorted(photographs.load(further=True).items())]
    return [
        image[:, : image.shape[1] // 2] if half == "left" else image[:, -(image.shape[1] // 2) :] for image in whole
    ]


def crops(half: str, count: int, seed: int) -> Crops:
    """Makes crops, taking photographs in turn; the same for the same seed."""
    random = np.random.default_rng([seed, half == "right"])
    sources = halves(half)
    images = np.empty((count, SIDE, SIDE, 1), np.float32)
    labels = np.arange(count, dtype=np.int32) % len(sources)
    for number, label in enumerate(labels):
        images[number, ..., 0] = _crop(sources[label], random)
    return Crops(images, labels)


def _crop(source: np.ndarray, random: np.random.Generator) -> np.ndarray:
    height, width = source.shape
    side = int(random.integers(SQUARES[0], min(SQUARES[1], height, width) + 1))
    top, left = int(random.integers(height - side + 1)), int(random.integers(width - side + 1))
    square = Image.fromarray(source[top : top + side, left : left + side])
    crop = np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    crop = (crop - crop.mean()) / (crop.std() + FLAT)
    return crop[:, ::-1] if random.random() < 0.5 else crop


def noisy(images: np.ndarray, noise: float, random: np.random.Generator) -> np.ndarray:
    """Adds Gaussian noise to images; `noise` is its deviation in units of a crop's own."""
    return images + noise * random.standard_normal(images.shape, dtype=np.float32)

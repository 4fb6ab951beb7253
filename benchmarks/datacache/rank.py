"""One of several ranks that read the same files through one cache, without TensorFlow; files.py starts it."""

from __future__ import annotations

import argparse
import io
import zlib

import numpy as np
from PIL import Image

import datacache

SIDE = 96
_BATCH = 32


def decode(payload: bytes) -> np.ndarray:
    """A JPEG file as uint8 [96, 96, 3]."""
    image = Image.open(io.BytesIO(payload))
    image.draft("RGB", (SIDE, SIDE))  # decodes at a half or a quarter of its size
    return np.asarray(image.resize((SIDE, SIDE)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="folder of the images")
    parser.add_argument("local_dir", help="directory of the cache")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1, help="number of ranks, all on this node")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    world, source = datacache.World(options.rank, options.size), datacache.ImageFolder(options.folder)
    digest = samples = 0
    with datacache.DataCache(source, decode, options.local_dir, world=world) as cache:
        for epoch in range(options.epochs):
            for pixels, labels in cache.batches(_BATCH, epoch, drop_remainder=True):
                samples += len(labels)
                digest = zlib.crc32(labels.tobytes(), zlib.crc32(pixels.tobytes(), digest))
    print(samples, digest)


if __name__ == "__main__":
    main()

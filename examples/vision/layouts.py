"""Data sets of images on disk, and the decoding of an image for the cache.

- A folder: DATA/train/CLASS/NAME.jpg and DATA/val/CLASS/NAME.jpg.
- TFRecords: DATA/train-00000-of-01024 and DATA/validation-00000-of-00128, or files *.tfrecord* in DATA/train and
  DATA/val; a record is a tf.train.Example with image/encoded and image/class/label.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import tensorflow as tf

import datacache
from examples import extras

Image = extras.need("PIL.Image")

_NAMES = {"train": ("train",), "val": ("val", "validation")}
_RECORDS = "*.tfrecord*"
_ENCODED, _LABEL = "image/encoded", "image/class/label"


def find(path: Path, split: str) -> datacache.Source:
    """The source of a split, "train" or "val".

    Raises:
        FileNotFoundError: if the folder has neither layout; the message lists what was looked for.
    """
    for name in _NAMES[split]:
        folder = path / name
        if folder.is_dir():
            return datacache.TFRecords(folder) if any(folder.glob(_RECORDS)) else datacache.ImageFolder(folder)
        if any(path.glob(f"{name}-*")):
            return datacache.TFRecords(path, f"{name}-*")
    looked = ", ".join(f"{name}/CLASS/*.jpg, {name}/{_RECORDS}, {name}-*" for name in _NAMES[split])
    raise FileNotFoundError(f"Expected images for {split} in {path} in one of the layouts {looked}; found none.")


@dataclasses.dataclass(frozen=True)
class Decode:
    """Decodes a sample's bytes to uint8 [side, side, 3]: the central square of the image, resized.

    Attributes:
        side: height and width.
        in_records: whether samples are records, which hold their labels.
        first_label: the smallest label in records, 1 in ImageNet's; decoded labels count from 0.
    """

    side: int
    in_records: bool = False
    first_label: int = 0

    def __call__(self, payload: bytes) -> np.ndarray | tuple[np.ndarray, int]:
        """The image, with its label if samples are records."""
        if not self.in_records:
            return self._pixels(payload)
        features = tf.train.Example.FromString(payload).features.feature
        label = features[_LABEL].int64_list.value[0] - self.first_label
        return self._pixels(features[_ENCODED].bytes_list.value[0]), label

    def _pixels(self, encoded: bytes) -> np.ndarray:
        with Image.open(io.BytesIO(encoded)) as image:
            image.draft("RGB", (self.side, self.side))  # decodes a JPEG at a half or a quarter of its size
            short = min(image.size)
            left, top = (image.width - short) // 2, (image.height - short) // 2
            square = image.convert("RGB").crop((left, top, left + short, top + short))
            return np.asarray(square.resize((self.side, self.side), Image.Resampling.BILINEAR))

    def in_graph(self, payload: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same with TensorFlow's operations, which round differently; the label is a listing's or the record's."""
        if self.in_records:
            wanted = {_ENCODED: tf.io.FixedLenFeature([], tf.string), _LABEL: tf.io.FixedLenFeature([], tf.int64)}
            parsed = tf.io.parse_single_example(payload, wanted)
            payload, label = parsed[_ENCODED], parsed[_LABEL] - self.first_label
        image = tf.io.decode_image(payload, channels=3, expand_animations=False)
        height, width = tf.unstack(tf.shape(image)[:2])
        short = tf.minimum(height, width)
        square = tf.image.crop_to_bounding_box(image, (height - short) // 2, (width - short) // 2, short, short)
        resized = tf.image.resize(square, [self.side, self.side], antialias=True)
        return tf.cast(tf.round(tf.clip_by_value(resized, 0.0, 255.0)), tf.uint8), label

"""Augmentation after the cache: one batch at a time, and with the same result if a step is repeated."""

from __future__ import annotations

import math

import tensorflow as tf

_ASPECT = (math.log(3 / 4), math.log(4 / 3))


def training_batches(
    batches: tf.data.Dataset, size: int, seed: int, first_step: int, smallest: float
) -> tf.data.Dataset:
    """Random crops and flips of a stream of (uint8 [b, side, side, 3], labels [b]).

    Args:
        batches: an endless data set.
        size: height and width of the result.
        seed: of this rank.
        first_step: index of the first batch among all steps of the training, so that resumed training sees the same
            batches as it would have seen.
        smallest: smallest share of the image's area in a crop.

    Returns:
        Batches of (float32 [b, size, size, 3] in [-1, 1], labels [b]); see `of_any_size`.
    """

    def augmented(step: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = batch
        return crop_and_flip(images, size, tf.stack([tf.constant(seed, tf.int64), step]), smallest), labels

    numbered = batches.enumerate(start=first_step)
    made = numbered.map(augmented, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return made.map(of_any_size).prefetch(2)


def of_any_size(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same batch as [None, None, None, 3] and [None], so that one graph serves all stages."""
    placed = tf.raw_ops.PlaceholderWithDefault
    return placed(input=images, shape=[None, None, None, 3]), placed(input=labels, shape=[None])


def crop_and_flip(images: tf.Tensor, size: int, seed: tf.Tensor, smallest: float) -> tf.Tensor:
    """Random crops (of random area and aspect, Szegedy et al. 2015) resized to one size, half of them mirrored.

    Args:
        images: uint8 [b, side, side, 3].
        size: height and width of the result.
        seed: int64 [2]; the same seed gives the same result.
        smallest: smallest share of the area in a crop.

    Returns:
        float32 [b, size, size, 3] in [-1, 1].
    """
    count = tf.shape(images)[0]
    draws = tf.random.stateless_uniform([5, count], seed)
    area = smallest + (1.0 - smallest) * draws[0]
    aspect = tf.exp(_ASPECT[0] + (_ASPECT[1] - _ASPECT[0]) * draws[1])
    height, width = (tf.minimum(tf.sqrt(each), 1.0) for each in (area / aspect, area * aspect))
    top, left = draws[2] * (1.0 - height), draws[3] * (1.0 - width)
    boxes = tf.stack([top, left, top + height, left + width], axis=1)
    crops = tf.image.crop_and_resize(images, boxes, tf.range(count), [size, size])
    mirrored = tf.where(draws[4][:, None, None, None] < 0.5, tf.reverse(crops, [2]), crops)
    return _scaled(mirrored)


def held_out(images: tf.Tensor, size: int) -> tf.Tensor:
    """The centre of images uint8 [b, side, side, 3], as float32 [b, size, size, 3] in [-1, 1]."""
    begin = (images.shape[1] - size) // 2
    return _scaled(tf.cast(images[:, begin : begin + size, begin : begin + size], tf.float32))


def _scaled(pixels: tf.Tensor) -> tf.Tensor:
    return pixels / 127.5 - 1.0

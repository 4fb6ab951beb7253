"""datacache: `take` and `select` serve the samples of whatever array chooses them, or refuse it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import datacache

COUNT = 12
MASK = np.arange(COUNT) % 2 == 1
WHEN = pytest.mark.parametrize("when", ["cold", "warm"])


def decode(payload):
    return np.frombuffer(payload, np.uint8)


def flipped(sample, label):
    return tf.reverse(sample, [0]), label


@pytest.fixture
def cache(when, tmp_path):
    """A cache of samples that are their own labels, read before or not."""
    source = datacache.Indexed(lambda index: bytes([index]), COUNT, "numbers", labels=range(COUNT))
    places = {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm"}
    with datacache.DataCache(source, decode, **places, world=datacache.World()) as opened:
        if when == "warm":
            opened.take(np.arange(COUNT))
        yield opened


def taken(cache, indices):
    """The labels of these samples, or what is said of them if they are mistaken for something else."""
    try:
        samples, labels = cache.take(indices)
    except TypeError as error:
        return str(error)
    assert samples[:, 0].tolist() == labels.tolist()
    return labels.tolist()


def selected(cache, rows, map_func=None):
    return [labels.numpy().tolist() for _, labels in cache.select(rows, map_func)]


@WHEN
def test_rows_that_were_batched_twice_give_all_their_samples(cache):
    assert taken(cache, [[1, 2, 3], [4, 5, 6]]) == [1, 2, 3, 4, 5, 6]
    assert taken(cache, np.arange(COUNT).reshape(2, 2, 3)) == list(range(COUNT))


@WHEN
@pytest.mark.parametrize("map_func", [None, flipped])
def test_selected_rows_that_were_batched_twice_give_all_their_samples(cache, map_func):
    rows = tf.data.Dataset.range(COUNT).batch(3).batch(2)
    assert selected(cache, rows, map_func) == [list(range(6)), list(range(6, COUNT))]


@WHEN
def test_a_mask_gives_the_samples_that_it_marks(cache):
    assert taken(cache, MASK) == [1, 3, 5, 7, 9, 11]
    assert taken(cache, MASK.tolist()) == [1, 3, 5, 7, 9, 11]


@WHEN
@pytest.mark.parametrize("map_func", [None, flipped])
def test_a_selected_mask_gives_the_samples_that_it_marks(cache, map_func):
    masks = tf.data.Dataset.from_tensor_slices([MASK, ~MASK])
    assert selected(cache, masks, map_func) == [[1, 3, 5, 7, 9, 11], [0, 2, 4, 6, 8, 10]]


@WHEN
def test_a_mask_of_another_length_is_refused(cache):
    with pytest.raises(ValueError, match=rf"Expected a mask of shape \({COUNT},\), .*, got \(5,\)"):
        cache.take(MASK[:5])
    with pytest.raises(tf.errors.OpError, match=rf"Expected a mask of shape \({COUNT},\)"):
        selected(cache, tf.data.Dataset.from_tensors(MASK[:5]))


@WHEN
def test_floats_are_refused(cache):
    with pytest.raises(ValueError, match="Expected indices as an array of integers, .* got float64"):
        cache.take([1.9, 2.9])
    with pytest.raises(ValueError, match="Expected rows as a dataset of batches of integers"):
        selected(cache, tf.data.Dataset.from_tensors([1.9, 2.9]))


@WHEN
@pytest.mark.parametrize("map_func", [None, flipped])
def test_control_integers_give_their_samples(cache, map_func):
    assert taken(cache, [3, 1, 1]) == [3, 1, 1]
    assert selected(cache, tf.data.Dataset.range(COUNT).batch(5), map_func)[-1] == [10, 11]

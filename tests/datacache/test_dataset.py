"""The way into tf.data: the same batches, their shapes known, handed over without a copy, errors with their words."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import datacache
from datacache import World, dataset
from tests.datacache.test_cache import COUNT, SIDE, assert_right, expected, images, options  # noqa: F401 - fixtures


@pytest.fixture
def cache(images, options):  # noqa: F811
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as made:
        yield made


def together(made):
    return tuple(np.concatenate(part) for part in zip(*made.as_numpy_iterator(), strict=True))


def test_it_gives_the_batches_in_order_each_time_it_is_iterated(cache, images):  # noqa: F811
    for epoch in range(2):
        made = cache.dataset(batch_size=7, epoch=epoch)
        for _ in range(2):
            assert_right(together(made), images, epoch)


def test_shapes_and_length_are_known(cache):
    full, rest = cache.dataset(batch_size=6, epoch=0), cache.dataset(batch_size=7, epoch=0)
    assert full.element_spec == (tf.TensorSpec([6, SIDE, SIDE, 3], tf.uint8), tf.TensorSpec([6], tf.int64))
    assert rest.element_spec[0].shape.as_list() == [None, SIDE, SIDE, 3]
    assert cache.dataset(batch_size=7, epoch=0, drop_remainder=True).element_spec[0].shape[0] == 7
    assert (len(full), len(rest)) == (5, 5)
    assert len(cache.dataset(batch_size=7, epoch=0, position=14)) == 3


def test_it_is_fed_into_what_comes_after(cache, images):  # noqa: F811
    samples, labels = expected(images, 3)
    augmented = cache.dataset(batch_size=5, epoch=3).map(lambda x, y: (tf.image.flip_left_right(x), y)).repeat(2)
    found = together(augmented)
    np.testing.assert_array_equal(found[0], np.concatenate([samples[:, :, ::-1]] * 2))
    np.testing.assert_array_equal(found[1], np.concatenate([labels] * 2))


def test_two_iterators_at_once_do_not_disturb_each_other(cache, images):  # noqa: F811
    made = cache.dataset(batch_size=4, epoch=1)
    pairs = list(tf.data.Dataset.zip(made, made.skip(2)))
    samples, _ = expected(images, 1)
    for number, (first, second) in enumerate(pairs):
        np.testing.assert_array_equal(first[0], samples[4 * number : 4 * number + 4])
        np.testing.assert_array_equal(second[0], samples[4 * number + 8 : 4 * number + 12])


def test_batches_that_are_held_stay_as_they_are(cache, images):  # noqa: F811
    samples, _ = expected(images, 0)
    held = [batch for batch, _ in cache.dataset(batch_size=3, epoch=0)]
    together(cache.dataset(batch_size=3, epoch=1))
    for number, batch in enumerate(held):
        np.testing.assert_array_equal(batch, samples[3 * number : 3 * number + 3])


def test_batches_are_handed_over_without_a_copy_and_their_memory_comes_back(cache):
    batches = cache.prepare(cache.schedule(1, 0))
    handed, arrived, read = [], [], batches.read

    def recorded(step):
        batch = read(step)
        handed.append(batch[0].ctypes.data)
        return batch

    batches.read = recorded
    for samples, _ in dataset.make(batches).as_numpy_iterator():
        arrived.append(samples.ctypes.data)
        del samples
    assert sorted(arrived) == sorted(handed) and len(handed) == COUNT
    assert len(set(handed)) < COUNT


def test_a_dataset_keeps_the_cache_open(images, options):  # noqa: F811
    made = datacache.DataCache(datacache.ImageFolder(images[0]), **options).dataset(batch_size=7, epoch=0)
    gc.collect()
    assert_right(together(made), images, 0)


def test_errors_keep_their_words(images, options):  # noqa: F811
    images[1][9][0].write_bytes(b"no image")
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        with pytest.raises(tf.errors.OpError, match="sample 9 .*cannot be decoded.*remove or mend it"):
            together(cache.dataset(batch_size=5, epoch=0))


def test_a_rest_smaller_than_the_ranks_is_an_error_or_left_out(images, options):  # noqa: F811
    options["world"] = World(0, 4)
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        with pytest.raises(ValueError, match="The last batch has 2 samples for 4 ranks"):
            cache.dataset(batch_size=7, epoch=0)
        assert len(cache.dataset(batch_size=7, epoch=0, drop_remainder=True)) == 1


def test_a_model_is_fitted(cache):
    model = tf.keras.Sequential(
        [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(cache.dataset(batch_size=6, epoch=0), epochs=2, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]

"""Samples of varying shape in tf.data: a function gives them one shape, or batches are ragged."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import datacache
from datacache import World, tensors
from datacache.order import permutation
from tests.datacache.test_cache import SIDE, assert_right, expected, images, options  # noqa: F401 - fixtures
from tests.datacache.varying import COUNT, Images

pytestmark = pytest.mark.filterwarnings("ignore:A dataset of one epoch is read a second time")


@pytest.fixture
def folder(tmp_path):
    return Images(tmp_path)


@pytest.fixture
def cache(folder):
    with folder.open() as made:
        yield made


def resized(sample, label):
    return tf.image.resize(sample, (6, 6)), label


def assert_resized(folder, batches, epoch, begin=0):
    order = permutation(COUNT, 0, epoch)[begin:]
    parts = list(batches)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in parts]), folder.labels[order])
    wanted = np.stack([tf.image.resize(folder.samples[index], (6, 6)) for index in order])
    np.testing.assert_array_equal(np.concatenate([samples for samples, _ in parts]), wanted)


@pytest.mark.parametrize("levels", [{}, {"memory_bytes": 0}, {"keep_decoded": True}], ids=str)
def test_a_function_on_each_sample_makes_batches_of_one_shape(levels, folder):
    with folder.open(**levels) as cache:
        for epoch in range(2):
            made = cache.dataset(batch_size=7, epoch=epoch, map_func=resized)
            for _ in range(2):
                assert_resized(folder, made, epoch)


def test_shapes_and_length_are_known(cache):
    full = cache.dataset(batch_size=6, epoch=0, map_func=resized)
    assert full.element_spec == (tf.TensorSpec([6, 6, 6, 3], tf.float32), tf.TensorSpec([6], tf.int64))
    rest = cache.dataset(batch_size=7, epoch=0, map_func=resized)
    assert rest.element_spec[0].shape.as_list() == [None, 6, 6, 3]
    assert (len(full), len(rest), len(cache.dataset(7, 0, position=14))) == (5, 5, 3)
    assert [len(labels) for _, labels in rest] == [7, 7, 7, 7, 2]
    left_out = cache.dataset(batch_size=7, epoch=0, drop_remainder=True, map_func=resized)
    assert [samples.shape[0] for samples, _ in left_out] == [7] * len(left_out) == [7] * 4


def test_without_a_function_batches_are_ragged(cache, folder):
    for epoch in range(2):
        made = cache.dataset(batch_size=6, epoch=epoch)
        assert made.element_spec[0] == tf.RaggedTensorSpec([6, None, None, 3], tf.uint8, 2, tf.int64)
        parts = list(made)
        samples = [sample.to_tensor().numpy() for batch, _ in parts for sample in batch]
        folder.assert_order(samples, np.concatenate([labels for _, labels in parts]), epoch)


def test_chosen_samples_come_in_the_batches_that_chose_them(cache, folder):
    chosen = [[3, 1, 4], [1]]
    rows = tf.data.Dataset.from_generator(lambda: iter(chosen), output_signature=tf.TensorSpec([None], tf.int64))
    for ragged, whole, wanted in zip(cache.select(rows), cache.select(rows, resized), chosen, strict=True):
        for sample, made, index in zip(ragged[0], whole[0], wanted, strict=True):
            np.testing.assert_array_equal(sample.to_tensor(), folder.samples[index])
            np.testing.assert_array_equal(made, tf.image.resize(folder.samples[index], (6, 6)))
        np.testing.assert_array_equal(ragged[1], folder.labels[wanted])
        np.testing.assert_array_equal(whole[1], folder.labels[wanted])


def test_an_epoch_is_resumed_in_its_middle(cache, folder):
    schedule = cache.schedule(4, epoch=2)
    first = list(cache.dataset(4, epoch=2, map_func=resized).take(3))
    rest = cache.dataset(4, epoch=2, position=schedule.position(3), map_func=resized)
    assert_resized(folder, [*first, *rest], 2)
    assert_resized(folder, rest, 2, begin=12)


def test_a_training_reads_epoch_after_epoch(cache, folder, tmp_path):
    training = cache.training(tmp_path / "saved", batch_size=7, save_every=1)
    steps = training.steps_per_epoch
    batches = list(training.dataset(map_func=resized).take(2 * steps))
    for epoch in range(2):
        assert_resized(folder, batches[epoch * steps : (epoch + 1) * steps], epoch)


def test_ranks_together_read_each_sample_once_in_the_order_of_one(folder):
    caches = [folder.open(world=World(rank, 4)) for rank in range(4)]
    steps = list(zip(*(cache.dataset(3, 1, map_func=resized) for cache in caches), strict=True))
    assert [len(labels) for _, labels in steps[-1]] == [2, 2, 1, 1]
    assert_resized(folder, [batch for step in steps for batch in step], 1)
    for cache in caches:
        cache.close()


def test_two_iterators_at_once_do_not_disturb_each_other(cache, folder):
    made = cache.dataset(5, epoch=1, map_func=resized)
    first, second = zip(*tf.data.Dataset.zip(made, made), strict=True)
    assert_resized(folder, first, 1)
    assert_resized(folder, second, 1)


def test_the_function_may_return_anything_that_can_be_batched(cache, folder):
    def described(sample, label):
        return {"size": tf.shape(sample)[:2], "mean": tf.reduce_mean(tf.cast(sample, tf.float64)), "label": label}

    found = list(cache.dataset(7, 0, map_func=described).as_numpy_iterator())
    order = permutation(COUNT, 0, 0)
    sizes = np.concatenate([each["size"] for each in found])
    np.testing.assert_array_equal(sizes, [folder.samples[index].shape[:2] for index in order])
    means = np.concatenate([each["mean"] for each in found])
    np.testing.assert_allclose(means, [folder.samples[index].mean() for index in order])


def test_the_function_may_be_written_in_python_as_for_map(cache, folder):
    def turned(sample, label):
        if tf.shape(sample)[0] > tf.shape(sample)[1]:
            sample = tf.transpose(sample, (1, 0, 2))
        return tf.shape(sample), label

    sizes = np.concatenate([sizes for sizes, _ in cache.dataset(7, 0, map_func=turned)])
    order = permutation(COUNT, 0, 0)
    np.testing.assert_array_equal(sizes, [(*sorted(folder.samples[index].shape[:2]), 3) for index in order])


def test_a_function_on_each_sample_of_one_shape(images, options):  # noqa: F811
    """The same argument with samples that already have one shape, in memory or not."""
    samples, labels = expected(images, 1)
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        for _ in range(2):
            made = cache.dataset(7, 1, map_func=lambda sample, label: (sample[::-1, : SIDE // 2], label))
            parts = list(made)
            np.testing.assert_array_equal(np.concatenate([each for each, _ in parts]), samples[:, ::-1, : SIDE // 2])
            np.testing.assert_array_equal(np.concatenate([each for _, each in parts]), labels)
            assert len(made) == 5


def test_a_function_that_leaves_shapes_as_they_are_is_an_error(cache):
    with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot (add tensor|batch tensors with)"):
        list(cache.dataset(7, 0, map_func=lambda sample, label: (sample, label)))


@pytest.mark.parametrize("dtype", ["bool", "float16", "float64", "int64", "uint16"])
def test_sequences_of_numbers_of_any_type(dtype, tmp_path):
    """One of them is empty."""

    def decode(payload):
        return (np.arange(payload[0]) % 2).astype(dtype)

    decode.datacache_fingerprint = dtype
    source = datacache.Indexed(lambda index: bytes([index]), 10, "lengths", labels=range(10))
    levels = {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm", "memory_bytes": 2 << 20}
    with datacache.DataCache(source, decode, **levels, world=World(), shape=(None,)) as cache:
        for _ in range(2):
            for samples, labels in cache.dataset(4, 0):
                assert samples.dtype == tf.as_dtype(dtype)
                for sample, label in zip(samples, labels, strict=True):
                    np.testing.assert_array_equal(sample, decode(bytes([label])), strict=True)


def test_errors_keep_their_words(folder):
    (folder.path / "astronaut" / "009.jpg").write_bytes(b"no image")
    with folder.open() as cache:
        with pytest.raises(tf.errors.OpError, match="sample 3 .*cannot be decoded.*remove or repair it"):
            list(cache.dataset(5, 0, map_func=resized))


def test_a_closed_cache_is_an_error_in_words(folder):
    cache = folder.open()
    made = cache.dataset(7, 1, map_func=resized)
    list(made)
    cache.close()
    with pytest.raises(tf.errors.OpError, match="is closed"):
        list(made)


def test_a_dataset_keeps_the_cache_open(folder):
    made = folder.open().dataset(7, 0, map_func=resized)
    gc.collect()
    assert_resized(folder, made, 0)


def test_elements_end_to_end_are_aligned_and_in_order(folder):
    joined = tensors._end_to_end(folder.samples)
    assert joined.ctypes.data % 64 == 0 and joined.dtype == np.uint8
    np.testing.assert_array_equal(joined, np.concatenate([sample.reshape(-1) for sample in folder.samples]))


def test_a_model_is_fitted_on_crops(cache):
    def cropped(sample, label):
        return tf.image.resize_with_crop_or_pad(sample, 16, 16), label

    model = tf.keras.Sequential(
        [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(cache.dataset(batch_size=6, epoch=0, map_func=cropped), epochs=3, verbose=0)
    assert history.history["loss"][2] < history.history["loss"][0]

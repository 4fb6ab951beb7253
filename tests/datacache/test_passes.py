"""Datasets of all epochs: each pass that trains has the next epoch's order, whatever else reads them."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import datacache
from datacache import World
from datacache.passes import Passes

COUNT, BATCH = 23, 4
STEPS = 6  # the last batch has 3 samples


def number(data):
    return np.frombuffer(data, np.int64).astype(np.float32)


def ragged(data):
    return np.resize(number(data), 1 + int(number(data)[0]) % 3)


def open_cache(path, decode=number, world=None, count=COUNT, labelled=True, **options):
    labels = np.arange(count) % 2 if labelled else None
    source = datacache.Indexed(lambda index: np.int64(index).tobytes(), count, "numbers", labels)
    options = {"memory_bytes": 4 << 20, "memory_dir": path / "shm", **options}
    return datacache.DataCache(source, decode, path / "local", world=world or World(), **options)


@pytest.fixture
def cache(tmp_path):
    with open_cache(tmp_path) as made:
        yield made


class Reader(keras.Model):
    """A model that notes what it is trained and tested on."""

    def __init__(self):
        super().__init__()
        self.trained, self.tested = [], []
        self.compile(run_eagerly=True)

    def call(self, samples):
        return samples

    def train_step(self, batch):
        self.trained += batch[0][:, 0].numpy().astype(int).tolist()
        return {"loss": 0.0}

    def test_step(self, batch):
        self.tested += batch[0][:, 0].numpy().astype(int).tolist()
        return {"loss": 0.0}


def orders(cache, *epochs):
    """The samples of these epochs in order."""
    return [int(index) for epoch in epochs for index in cache.schedule(BATCH, epoch).order]


def fit(made, model=None, **options):
    model = Reader() if model is None else model
    model.fit(made, verbose=0, **options)
    return model


def test_each_epoch_of_fit_has_an_order_of_its_own(cache):
    assert fit(cache.dataset(BATCH), epochs=5).trained == orders(cache, 0, 1, 2, 3, 4)


def test_training_goes_on_with_the_epoch_that_it_is_told(cache):
    made = cache.dataset(BATCH, first_epoch=2)
    assert fit(made, initial_epoch=2, epochs=5).trained == orders(cache, 2, 3, 4)


def test_one_fit_after_another_goes_on(cache):
    made, model = cache.dataset(BATCH), Reader()
    for _ in range(3):
        fit(made, model)
    assert model.trained == orders(cache, 0, 1, 2)


def test_evaluation_on_the_same_dataset_does_not_count(cache):
    made = cache.dataset(BATCH)
    model = fit(made, epochs=2, validation_data=made)
    model.evaluate(made, verbose=0)
    model.predict(made, verbose=0)
    fit(made, model)
    assert model.trained == orders(cache, 0, 1, 2)
    assert sorted(model.tested) == sorted([*range(COUNT)] * 3)


def test_fit_and_loops_of_ones_own_do_not_disturb_each_other(cache):
    """One rank may read all samples, for their mean, say, and still trains in the same orders as the others."""
    made = cache.dataset(BATCH)
    assert sum(len(samples) for samples, _ in made) == COUNT
    model = fit(made, epochs=2)
    assert [int(value) for samples, _ in made for value in samples[:, 0]] == orders(cache, 1)
    assert fit(made, model).trained == orders(cache, 0, 1, 2)


def test_looks_at_the_first_batch_do_not_count(cache):
    made = cache.dataset(BATCH)
    for _ in range(2):
        first = next(iter(made.prefetch(2)))[0]
        assert first.numpy()[:, 0].astype(int).tolist() == orders(cache, 0)[:BATCH]
    assert fit(made, epochs=2).trained == orders(cache, 0, 1)


def test_a_model_that_is_built_by_the_first_batch_begins_with_epoch_0(cache):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    seen = []

    def note(samples, labels):
        seen.append(samples[:, 0].astype(int).tolist())
        return samples, labels

    def noted(samples, labels):
        told = tf.numpy_function(note, [samples, labels], [tf.float32, tf.int64])
        return tf.ensure_shape(told[0], [None, 1]), tf.ensure_shape(told[1], [None])

    model.fit(cache.dataset(BATCH).map(noted), epochs=3, verbose=0)
    read = [index for batch in seen for index in batch]
    assert read[-3 * COUNT :] == orders(cache, 0, 1, 2), "before them are what Keras builds the model with"


@pytest.mark.parametrize("steps", [STEPS, 4])
def test_epochs_follow_each_other_in_one_iterator(cache, steps):
    made = cache.dataset(BATCH).repeat()
    trained = fit(made, epochs=3, steps_per_epoch=steps).trained
    assert trained == orders(cache, 0, 1, 2)[: len(trained)] and len(trained) > 2 * BATCH * steps


def test_a_loop_of_ones_own_reads_epoch_after_epoch(cache):
    made = cache.dataset(BATCH)
    read = [int(value) for _ in range(3) for samples, _ in made for value in samples[:, 0]]
    assert read == orders(cache, 0, 1, 2)


@pytest.mark.parametrize("decode, shape", [(number, None), (ragged, (None,))])
@pytest.mark.parametrize("levels", [{}, {"memory_bytes": 0}])
def test_functions_on_samples_and_batches_change_nothing(tmp_path, decode, shape, levels):
    with open_cache(tmp_path, decode, shape=shape, **levels) as cache:
        made = cache.dataset(BATCH, map_func=lambda sample, label: (sample[:1], label)).map(lambda x, y: (x, y))
        assert len(made) == STEPS
        assert fit(made.prefetch(3), epochs=3).trained == orders(cache, 0, 1, 2)


def test_varying_shapes_come_in_the_order_of_each_epoch(tmp_path):
    with open_cache(tmp_path, ragged, shape=(None,)) as cache:
        made = cache.dataset(BATCH)
        read = [int(row[0]) for _ in range(2) for samples, _ in made for row in samples]
        assert read == orders(cache, 0, 1)


def test_all_ranks_read_the_same_epochs(tmp_path):
    whole, parts = [], []
    for rank in range(3):
        with open_cache(tmp_path / str(rank), world=World(rank, 3)) as cache:
            made = cache.dataset(BATCH)
            parts.append([batch[0][:, 0].tolist() for _ in range(2) for batch in made.as_numpy_iterator()])
            whole = orders(cache, 0, 1)
    assert [int(value) for step in zip(*parts, strict=True) for part in step for value in part] == whole


def test_passes_that_never_reach_their_end_are_told_once(cache):
    made = cache.dataset(BATCH)
    with pytest.warns(UserWarning, match="Passes over this dataset are left before their last batch") as told:
        model = fit(made.take(2), epochs=6)
    assert len([each for each in told if "Passes over" in str(each.message)]) == 1
    assert model.trained == orders(cache, 0)[: 2 * BATCH] * 6


def test_control_looks_and_whole_passes_are_not_told(cache):
    made = cache.dataset(BATCH)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Passes over")
        warnings.filterwarnings("error", "A dataset of one epoch")
        for _ in range(3):
            next(iter(made))
            next(iter(made))
            fit(made)


def test_a_pass_that_ends_late_does_not_turn_the_epochs_back():
    passes = Passes(0)
    (early, _), (whole, _) = passes.begin(), passes.begin()
    passes.end(whole)
    number, epoch = passes.begin()
    passes.end(number)
    passes.end(early)
    assert epoch == 1 and passes.begin()[1] == 2


def broken(data):
    if number(data)[0] in (5, 17):
        raise ValueError("no number")
    return number(data)


@pytest.mark.parametrize("map_func", [None, lambda sample, label: (sample, label)])
def test_a_pass_in_which_bad_samples_are_left_out_counts(tmp_path, map_func):
    with open_cache(tmp_path, broken) as cache:
        made = cache.dataset(BATCH, map_func=map_func).ignore_errors()
        for epoch in range(6):
            read = [int(value) for samples, _ in made for value in samples[:, 0]]
            assert len(read) > COUNT // 3
            assert read == [index for index in orders(cache, epoch) if index in read], "in this epoch's order"


def test_the_length_is_known_and_the_sizes_are(cache):
    assert len(cache.dataset(BATCH)) == STEPS and cache.dataset(BATCH).element_spec[0].shape.as_list() == [None, 1]
    assert cache.dataset(BATCH, drop_remainder=True).element_spec[0].shape.as_list() == [BATCH, 1]


def test_what_cannot_be_is_refused(cache):
    with pytest.raises(ValueError, match=r"Expected the epoch of position 8: pass epoch=, or use cache.training"):
        cache.dataset(BATCH, position=8)
    with pytest.raises(ValueError, match="Expected either pad or drop_remainder, got both"):
        cache.dataset(BATCH, drop_remainder=True, pad=True)
    with pytest.raises(ValueError, match="Expected a map_func without seed"):
        cache.select(tf.data.Dataset.from_tensors([0, 1]), map_func=lambda sample, label, seed: sample)


# ---- the source's order, and full batches ----


def test_without_shuffling_samples_come_in_the_sources_order(cache):
    made = cache.dataset(BATCH, shuffle=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "A dataset of one epoch")
        for _ in range(2):
            assert [int(value) for samples, _ in made for value in samples[:, 0]] == list(range(COUNT))
    assert np.concatenate([samples for samples, _ in cache.batches(BATCH, shuffle=False)])[:, 0].tolist() == list(
        range(COUNT)
    )
    model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)])
    assert model.predict(made, verbose=0)[:, 0].tolist() == [2.0 * index for index in range(COUNT)]


def weights_by_sample(ranks, batches):
    """For each sample the weights with which all ranks have read it, and the sizes of all batches."""
    found, sizes = {}, set()
    for rank in range(ranks):
        for samples, _, weights in batches(rank):
            assert weights.dtype == np.float32
            sizes.add(len(samples))
            for sample, weight in zip(np.asarray(samples)[:, 0], np.asarray(weights), strict=True):
                found.setdefault(int(sample), []).append(float(weight))
    return found, sizes


@pytest.mark.parametrize("map_func", [None, lambda sample, label: (sample, label)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_evaluation_counts_each_sample_once_on_any_number_of_ranks(tmp_path, shuffle, map_func):
    count, batch, ranks = 97, 8, 4

    def batches(rank):
        with open_cache(tmp_path / str(rank), world=World(rank, ranks), count=count) as cache:
            tensors = cache.dataset(batch, map_func=map_func, shuffle=shuffle, pad=True, epoch=0)
            assert tensors.element_spec[2].shape.as_list() == [batch]
            arrays = list(cache.batches(batch, shuffle=shuffle, pad=True))
            for made, array in zip(tensors.as_numpy_iterator(), arrays, strict=True):
                for one, other in zip(made, array, strict=True):
                    np.testing.assert_array_equal(one, other)
            yield from arrays

    found, sizes = weights_by_sample(ranks, batches)
    assert sizes == {batch} and {index: sum(weights) for index, weights in found.items()} == dict.fromkeys(
        range(count), 1.0
    )


def test_weights_make_a_padded_evaluation_exact(cache):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(weighted_metrics=["mae", "mse"], loss="mae")
    told = model.evaluate(cache.dataset(BATCH, shuffle=False, pad=True), return_dict=True, verbose=0)
    samples = np.arange(COUNT, dtype=np.float32)[:, None]
    errors = model.predict(samples, verbose=0)[:, 0] - np.arange(COUNT) % 2
    np.testing.assert_allclose([told["mae"], told["mse"]], [np.abs(errors).mean(), (errors**2).mean()], rtol=1e-5)


def weighed(data):
    """A sample, a label, and weights of two outputs."""
    return number(data), number(data)[0], {"a": number(data) * 2, "b": 3.0}


WEIGHTED = {
    "weights of one's own": (weighed, {}),
    "neither a pair nor weights": (lambda data: {"x": number(data), "y": 2.0}, {"labelled": False}),
    "shapes that vary": (ragged, {"shape": (None,)}),
}


@pytest.mark.parametrize("epoch", [None, 0])
@pytest.mark.parametrize("decode, options", WEIGHTED.values(), ids=WEIGHTED)
def test_what_elements_become_with_weights(tmp_path, decode, options, epoch):
    with open_cache(tmp_path, decode, **options) as cache:
        last = list(cache.dataset(5, epoch, pad=True, shuffle=False))[-1]
        array = list(cache.batches(5, pad=True, shuffle=False))[-1]
    for made in (last, array):
        if decode is weighed:
            np.testing.assert_array_equal(made[2]["a"][:, 0], [40, 42, 44, 0, 0])
            np.testing.assert_array_equal(made[2]["b"], [3, 3, 3, 0, 0])
        else:
            np.testing.assert_array_equal(made[-1], [1, 1, 1, 0, 0])
            firsts = [row[0] for row in made[0]] if decode is ragged else made[0]["x"][:, 0]
            np.testing.assert_array_equal(firsts, [20, 21, 22, 0, 0])


# ---- random numbers of a sample ----


@pytest.mark.parametrize("decode, shape", [(number, None), (ragged, (None,))])
def test_seeds_depend_on_seed_epoch_and_sample_alone(tmp_path, decode, shape):
    def drawn(ranks, batch, epoch=None, seed=0):
        found = {}
        for rank in range(ranks):
            path = tmp_path / f"{ranks}-{rank}-{seed}"
            with open_cache(path, decode, world=World(rank, ranks), shape=shape, seed=seed) as cache:
                made = cache.dataset(
                    batch,
                    epoch,
                    map_func=lambda sample, label, seed: (sample[:1], tf.random.stateless_uniform([], seed)),
                )
                for samples, values in made.as_numpy_iterator():
                    found.update(zip(samples[:, 0].astype(int).tolist(), values.tolist(), strict=True))
        return found

    first = drawn(1, 4)
    assert sorted(first) == list(range(COUNT)) and len(set(first.values())) == COUNT
    assert drawn(3, 2) == drawn(1, 7, epoch=0) == first
    for other in (drawn(1, 4, epoch=1), drawn(1, 4, seed=1)):
        assert all(other[index] != first[index] for index in first)


def test_seeds_come_with_training_too(cache, tmp_path):
    training = cache.training(tmp_path / "run", batch_size=5, save_every=100)
    made = training.dataset(map_func=lambda sample, label, seed: (sample, seed)).take(2 * 5)
    wanted = cache.dataset(5, map_func=lambda sample, label, seed: (sample, seed))
    whole = [batch for _ in range(2) for batch in wanted.as_numpy_iterator()]
    for one, other in zip(made.as_numpy_iterator(), whole, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(one[1][:, 1], one[0][:, 0])  # the sample's index

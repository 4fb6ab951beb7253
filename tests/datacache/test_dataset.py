"""Datasets for tf.data: the same batches, with known shapes, without copies, and with unchanged error messages."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import datacache
from datacache import World, dataset, lent
from tests.datacache import members
from tests.datacache.test_cache import COUNT, SIDE, assert_right, expected, images, options  # noqa: F401 - fixtures

pytestmark = pytest.mark.filterwarnings("ignore:A dataset of one epoch is read a second time")


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


def test_batches_are_handed_over_without_a_copy_and_their_memory_comes_back(images, options):  # noqa: F811
    """Tests batches that Python gathers because they are not in memory."""
    cache = datacache.DataCache(datacache.ImageFolder(images[0]), **options, memory_bytes=0)
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
    cache.close()


def without_python(batches):
    """A dataset, and the list of the steps that it asks Python for."""
    asked, read = [], batches.read

    def recorded(step):
        asked.append(step)
        return read(step)

    batches.read = recorded
    return dataset.make(batches), asked


def test_what_is_in_memory_is_gathered_without_python(cache, images):  # noqa: F811
    first, asked = without_python(cache.prepare(cache.schedule(7, 0)))
    assert_right(together(first), images, 0)
    assert sorted(asked)[0] == 0
    served = cache.counters.numbers().get("samples.memory", 0)
    made, asked = without_python(cache.prepare(cache.schedule(7, 1)))
    for _ in range(2):
        assert_right(together(made), images, 1)
    assert asked == []
    numbers = cache.counters.numbers()
    assert numbers["samples.memory"] == served + 2 * COUNT and numbers["samples.source"] == COUNT


def test_their_memory_is_aligned_and_used_again(cache):
    together(cache.dataset(batch_size=1, epoch=0))
    places = [samples.ctypes.data for samples, _ in cache.dataset(batch_size=1, epoch=1).as_numpy_iterator()]
    assert all(place % 64 == 0 for place in places)


def test_one_sample_that_is_not_in_memory_is_asked_for_ahead(cache, images):  # noqa: F811
    """The sample is in the last batch: step 0 checks all steps in reach, later steps only the newly reached one."""
    together(cache.dataset(batch_size=2, epoch=0))
    schedule = cache.schedule(2, 1)
    cache.prepare(schedule).memory.drop(int(schedule.indices(9, 0)[0]))
    made, asked = without_python(cache.prepare(schedule))
    iterator = iter(made)
    next(iterator)
    assert_right(together(made), images, 1)
    assert 5 in asked and set(asked) <= set(range(5, 10))  # four batches are fetched ahead


def test_what_is_damaged_in_memory_is_fetched_anew(cache, images, options):  # noqa: F811
    together(cache.dataset(batch_size=7, epoch=0))
    (slab,) = options["memory_dir"].rglob("*.slab")
    position = slab.read_bytes().find(expected(images, 1)[0][8].tobytes())
    with members.flipped(slab, position + 5, 16):
        assert_right(together(cache.dataset(batch_size=7, epoch=1)), images, 1)
        assert cache.counters.numbers()["damaged.memory"] == 1


def test_without_the_native_operation_the_batches_are_the_same(cache, images, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lent, "_library", lambda: None)
    for epoch in range(2):
        assert_right(together(cache.dataset(batch_size=7, epoch=epoch)), images, epoch)


def test_operations_for_another_tensorflow_are_refused(tmp_path, monkeypatch):
    (tmp_path / "_ops.so").touch()
    (tmp_path / "_ops.json").write_text('{"tensorflow": "1.15.0"}')
    monkeypatch.setattr(lent, "_LIBRARY", tmp_path / "_ops.so")
    with pytest.raises(ImportError, match="compiled for TensorFlow 1.15.0, this is TensorFlow 2"):
        lent._library.__wrapped__()


def test_a_closed_cache_is_an_error_in_words(images, options):  # noqa: F811
    cache = datacache.DataCache(datacache.ImageFolder(images[0]), **options)
    together(cache.dataset(batch_size=7, epoch=0))
    made = cache.dataset(batch_size=7, epoch=1)
    cache.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="This memory level is closed: keep the DataCache open"):
        together(made)
    with pytest.raises(tf.errors.FailedPreconditionError, match="is closed"):
        together(cache.dataset(batch_size=7, epoch=1))


class TestOperation:
    """Invalid arguments."""

    @pytest.fixture
    def gather(self, cache):
        cache.dataset(batch_size=7, epoch=0)
        slab = cache.prepare(cache.schedule(7, 0)).memory

        def call(order=(1, 2), spans=((0, 2),), step=0, **other):
            attributes = {"dtype": tf.uint8, "shape": [SIDE, SIDE, 3], "slab": lent._lent[slab], "ahead": 4, **other}
            order, step = tf.constant(order, tf.int64), tf.constant(step, tf.int64)
            return lent._library().datacache_gather(
                order=order, spans=tf.constant(spans, tf.int64), step=step, **attributes
            )

        return call

    @pytest.mark.parametrize(
        "wrong, told",
        [
            ({"step": 1}, "Expected a step in \\[0, 1\\), got 1"),
            ({"step": -1}, "Expected a step in"),
            ({"spans": ((0, 3),)}, "inside the 2 samples of the order, got \\[0, 3\\)"),
            ({"spans": ((-1, 1),)}, "inside the 2 samples"),
            ({"spans": ((2, 1),)}, "inside the 2 samples"),
            ({"spans": ((0, 2), (1, 5))}, "got \\[1, 5\\)"),
            ({"spans": ((0, 2, 3),)}, "spans \\[steps, 2\\]"),
            ({"spans": (0, 2)}, "spans \\[steps, 2\\]"),
            ({"order": ((1, 2),)}, "order \\[n\\]"),
            ({"step": (0,)}, "Expected one step"),
            ({"shape": [None, 3]}, "without unknown dimensions"),
        ],
    )
    def test_is_refused(self, wrong, told, gather):
        with pytest.raises(tf.errors.InvalidArgumentError, match=told):
            gather(**wrong)

    @pytest.mark.parametrize("slab", [-1, 10**6])
    def test_a_slab_that_never_was_is_refused(self, slab, gather):
        with pytest.raises(tf.errors.FailedPreconditionError, match="is closed"):
            gather(slab=slab)

    def test_samples_of_no_slab_and_rows_of_another_size_are_not_found(self, cache, gather):
        together(cache.dataset(batch_size=7, epoch=0))
        assert gather()[2]
        assert not gather(order=(1, -2))[2] and not gather(order=(1, COUNT))[2]
        assert not gather(shape=[SIDE, SIDE, 4])[2] and not gather(dtype=tf.float32)[2]

    def test_shapes_are_known_to_the_graph(self):
        def shapes(order, spans, step):
            found = lent._library().datacache_gather(
                order=order, spans=spans, step=step, dtype=tf.int16, shape=[3, 5], slab=0, ahead=0
            )
            assert [each.shape.as_list() for each in found] == [[None, 3, 5], [None], []]

        def traced(*shapes_given):
            specs = [tf.TensorSpec(shape, tf.int64) for shape in shapes_given]
            return tf.function(shapes).get_concrete_function(*specs)

        traced(None, None, None)
        traced([9], [3, 2], [])
        for wrong in (([9], [2], []), ([9], [3, 3], []), ([9, 1], [3, 2], []), ([9], [3, 2], [1])):
            with pytest.raises(ValueError):
                traced(*wrong)


def test_a_dataset_keeps_the_cache_open(images, options):  # noqa: F811
    made = datacache.DataCache(datacache.ImageFolder(images[0]), **options).dataset(batch_size=7, epoch=0)
    gc.collect()
    assert_right(together(made), images, 0)


def test_errors_keep_their_words(images, options):  # noqa: F811
    images[1][9][0].write_bytes(b"no image")
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        with pytest.raises(tf.errors.OpError, match="sample 9 .*cannot be decoded.*remove or repair it"):
            together(cache.dataset(batch_size=5, epoch=0))


@pytest.mark.parametrize("map_func", [None, lambda sample, label: (tf.image.flip_left_right(sample), label)])
def test_errors_that_are_ignored_cost_batches_and_come_to_an_end(map_func, images, options):  # noqa: F811
    images[1][9][0].write_bytes(b"no image")
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        made = cache.dataset(7, 0, map_func=map_func)
        assert len(made) == 5 and 3 <= len(list(made.ignore_errors())) <= 4


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


# ---- batches chosen elsewhere ----


def test_chosen_samples_come_in_the_batches_that_chose_them(cache, images):  # noqa: F811
    samples, labels = expected(images, 3)
    order = cache.schedule(batch_size=COUNT, epoch=3).order
    chosen = [order[:4], order[4:5], order[[7, 7, 6]]]
    rows = tf.data.Dataset.from_generator(lambda: iter(chosen), output_signature=tf.TensorSpec([None], tf.int64))
    made = cache.select(rows)
    assert made.element_spec == (tf.TensorSpec([None, SIDE, SIDE, 3], tf.uint8), tf.TensorSpec([None], tf.int64))
    flipped = cache.select(rows, lambda sample, label: (tf.image.flip_left_right(sample), label))
    places = [[0, 1, 2, 3], [4], [7, 7, 6]]
    for batch, turned, wanted in zip(made, flipped, places, strict=True):
        np.testing.assert_array_equal(batch[0], samples[wanted])
        np.testing.assert_array_equal(turned[0], samples[wanted][:, :, ::-1])
        np.testing.assert_array_equal(batch[1], labels[wanted])
        np.testing.assert_array_equal(turned[1], labels[wanted])
    taken, _ = cache.take(order[2:4])
    np.testing.assert_array_equal(taken, samples[2:4])


@pytest.mark.parametrize("wrong", [[], [-1], [0, COUNT]])
def test_who_chooses_what_there_is_not_is_told(cache, wrong):
    with pytest.raises(IndexError, match=rf"indices in \[0, {COUNT}\)"):
        cache.take(np.array(wrong, np.int64))


@pytest.mark.parametrize(
    "rows, told",
    [
        (tf.data.Dataset.from_tensors([1.0]), "Expected rows as a dataset of batches of integers"),
        (tf.data.Dataset.range(3), r"got single ones: use rows.batch\(size\)"),
        (tf.data.Dataset.from_tensors(([1], [2])), "got elements of .TensorSpec"),
    ],
)
def test_rows_that_cannot_choose_are_refused(cache, rows, told):
    with pytest.raises(ValueError, match=told):
        cache.select(rows)

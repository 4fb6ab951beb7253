"""The names that identify variables, and which variables of two ranks may be paired."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.exchange.pairing import Label
from hvd_sparse.optimizers.variables import contradict, given_names, names_by_id, path_of, resource, unique_names

PARTS = st.sampled_from(["dense", "dense_1", "dense_7", "lstm", "head", "head#2", "kernel", "kernel#2", "sequential_3"])
PATHS = st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), max_size=12)


class At:
    """A variable at a path."""

    def __init__(self, path):
        self.path = self.name = path


class OwnBlock(keras.layers.Layer):
    """Gives its layer a name that is made of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inside = keras.layers.Dense(2, name=f"{self.name}_in")

    def call(self, data):
        return self.inside(data)


def named(*paths):
    return unique_names([At(path) for path in paths])


def fit(one, other):
    """Whether variables at two paths may be paired."""
    return not contradict(given_names(At(one)), given_names(At(other)))


# ---- names ----


def test_numbers_of_keras_are_counted_anew():
    assert named("dense_4/kernel", "dense_4/bias", "dense_9/kernel") == [
        "dense/kernel",
        "dense/bias",
        "dense_1/kernel",
    ]


def test_they_are_counted_below_each_layer():
    assert named("functional_3/dense_4/kernel", "functional_5/dense_5/kernel") == [
        "functional/dense/kernel",
        "functional_1/dense/kernel",
    ]


def test_equal_paths_are_told_apart_by_their_order():
    assert named("tower/w", "tower/w", "v", "tower/w") == ["tower/w", "tower/w#2", "v", "tower/w#3"]


def test_a_path_may_look_like_one_that_was_told_apart():
    assert named("w#2", "w", "w") == ["w#2", "w", "w#3"]


def test_given_names_and_their_numbers_are_kept():
    assert named("block_7/kernel", "head_2/dense_3/kernel") == ["block_7/kernel", "head_2/dense/kernel"]


def test_layers_inside_a_bidirectional_are_counted_anew():
    path = "bidirectional_2/{}_lstm_5/lstm_cell_9/kernel"
    assert named(path.format("forward"), path.format("backward")) == [
        "bidirectional/forward_lstm/lstm_cell/kernel",
        "bidirectional/backward_lstm/lstm_cell/kernel",
    ]


def test_a_part_of_the_list_is_numbered_differently():
    """So whoever names variables passes an optimizer's whole list."""
    assert named("dense_4/kernel", "dense_9/kernel")[1] != named("dense_9/kernel")[0]


def test_variables_of_tensorflow_have_names():
    variables = [tf.Variable([0.0]), tf.Variable([0.0], name="w"), tf.Variable([0.0], name="w")]
    names = unique_names(variables)
    assert len(set(names)) == 3 and names[1:] == ["w:0", "w:0#2"]
    assert names_by_id(variables) == dict(zip(map(id, variables), names, strict=True))
    assert path_of(variables[1]) == "w:0"


def test_the_tensorflow_variable_in_one_of_keras():
    variable, plain = keras.Variable(np.zeros(2)), tf.Variable([0.0])
    assert resource(variable) is variable.value and resource(plain) is plain


@given(PATHS)
def test_no_two_variables_have_the_same_name(paths):
    names = named(*paths)
    assert len(names) == len(paths) == len(set(names))


@given(PATHS)
def test_a_longer_list_begins_with_the_same_names(paths):
    assert named(*paths)[:-1] == named(*paths[:-1])


@given(st.lists(st.sampled_from(["dense", "lstm", "head"]), min_size=1, max_size=8), st.integers(0, 9))
def test_what_else_a_process_has_built_does_not_matter(layers, before):
    def paths(first):
        numbers = {"dense": first, "lstm": 2 * first}
        for place, layer in enumerate(layers):
            if layer in numbers:
                number = numbers[layer] = numbers[layer] + 1
                yield f"{layer}_{number - 1}/kernel" if number > 1 else f"{layer}/kernel"
            else:
                yield f"{layer}{place}/kernel"

    assert named(*paths(0)) == named(*paths(before))


# ---- models ----


def towers():
    one, other = keras.Input([4]), keras.Input([4])
    block = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization()])
    both = keras.layers.Concatenate()([block(one), keras.layers.Dense(3)(other)])
    return keras.Model([one, other], keras.layers.Dense(1)(both))


def recurrent():
    layers = [keras.Input([3, 2]), keras.layers.Bidirectional(keras.layers.LSTM(2)), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def composed():
    return keras.Sequential([keras.Input([2]), OwnBlock(), keras.layers.Dense(1, name="head")])


MODELS = {
    "dense": lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(1)]),
    "towers": towers,
    "recurrent": recurrent,
    "composed": composed,
}


def build_others(number):
    """Advances Keras's counters."""
    for _ in range(number):
        keras.Sequential([keras.Input([2]), keras.layers.Dense(1), OwnBlock()])
        keras.layers.Bidirectional(keras.layers.LSTM(1))


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("name", ["dense", "towers", "recurrent"])
def test_a_model_has_equal_names_after_other_layers(name, before):
    keras.backend.clear_session()
    expected = unique_names(MODELS[name]().trainable_variables)
    build_others(before)
    assert unique_names(MODELS[name]().trainable_variables) == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_model_may_be_paired_with_itself_after_other_layers(name):
    keras.backend.clear_session()
    first = MODELS[name]()
    build_others(2)
    for one, other in zip(first.variables, MODELS[name]().variables, strict=True):
        assert not contradict(given_names(one), given_names(other)), (one.path, other.path)


@pytest.mark.parametrize("name", ["dense", "towers", "recurrent"])
def test_a_loaded_model_may_be_paired(name, tmp_path):
    """Keras leaves the layers around out of the paths of a model from a file."""
    keras.backend.clear_session()
    build_others(2)
    model = MODELS[name]()
    model.save(tmp_path / "model.keras")
    keras.backend.clear_session()
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for other in (model, MODELS[name]()):
        for one, another in zip(loaded.trainable_variables, other.trainable_variables, strict=True):
            assert not contradict(given_names(one), given_names(another)), (one.path, another.path)


# ---- what may be paired ----

PAIRED = [
    ("dense_4/kernel", "dense/kernel"),
    ("dense_4/kernel", "functional_2/dense/kernel"),  # one rank has wrapped the model
    ("functional_2/head/kernel", "head/kernel"),
    ("head/kernel", "dense_3/kernel"),  # named on one rank only
    ("bidirectional_1/forward_lstm_3/lstm_cell_2/kernel", "bidirectional/forward_lstm/lstm_cell/kernel"),
    ("own_block_3_in/kernel", "own_block_in/kernel"),
    ("Variable:0", "w:0"),
]
APART = [
    ("left/kernel", "right/kernel"),
    ("dense_4/kernel", "dense_4/bias"),
    ("functional/left/dense/kernel", "functional/right/dense/kernel"),
    ("block_1/kernel", "block_2/kernel"),
    ("bidirectional/forward_lstm/kernel", "bidirectional/backward_lstm/kernel"),
    ("own_block_in/kernel", "own_block_out/kernel"),
    ("v:0", "w:0"),
]


@pytest.mark.parametrize("one, other", PAIRED)
def test_these_may_be_paired(one, other):
    assert fit(one, other) and fit(other, one)


@pytest.mark.parametrize("one, other", APART)
def test_these_are_different_variables(one, other):
    assert not fit(one, other) and not fit(other, one)


@given(PATHS)
def test_every_variable_may_be_paired_with_itself(paths):
    assert all(fit(path, path) for path in paths)


def test_labels_fit_if_kind_and_given_names_do():
    label = Label("left/kernel", [[2, 2], "float32"], given_names(At("left/kernel")))
    assert label.fits(label._replace(name="dense/kernel", given=given_names(At("dense/kernel"))))
    assert label.fits(label._replace(given=()))
    assert not label.fits(label._replace(given=given_names(At("right/kernel"))))
    assert not label.fits(label._replace(kind=[[2, 3], "float32"]))

"""Parts of a model in one process: inputs and outputs, where a model can be cut, and files of parts."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import pipeline
from hvd_sparse.pipeline import Grid, Stages, Threshold

L = keras.layers


def two_towers() -> keras.Model:
    """A model like a recommender: a dense tower that is joined with another input."""
    dense, other = keras.Input((6,), name="numbers"), keras.Input((3,), name="categories")
    bottom = L.Dense(8, "relu", name="bottom_1")(dense)
    bottom = L.Dense(5, "relu", name="bottom_2")(bottom)
    joined = L.Concatenate(name="joined")([bottom, L.Dense(5, name="embedded")(other)])
    top = L.Dense(7, "relu", name="top_1")(joined)
    return keras.Model([dense, other], L.Dense(1, name="top_2")(top), name="towers")


def named_data(count: int = 40):
    generator = np.random.default_rng(0)
    x = {
        "numbers": generator.normal(size=(count, 6)).astype("f4"),
        "categories": np.eye(3, dtype="f4")[np.arange(count) % 3],
    }
    return x, (x["numbers"][:, :1] + x["categories"][:, :1] > 0.5).astype("f4")


def test_a_model_is_cut_where_one_tensor_goes_on():
    model = two_towers()
    parts = pipeline.split(model, ["bottom_1", "top_1"])
    assert [[each.name for each in part.inputs][-1] for part in parts][:2] == ["numbers", "categories"]
    assert [len(part.inputs) for part in parts] == [1, 2, 1]
    assert sum(part.count_params() for part in parts) == model.count_params()
    x, _ = named_data()
    np.testing.assert_array_equal(Stages(parts)(x), model(x))
    for after, words in ([["nowhere"], "bottom_1"], [["bottom_2", "bottom_1"], "needed on both sides"]):
        with pytest.raises(ValueError, match=words):
            pipeline.split(model, after)


def test_a_part_that_takes_other_inputs_says_which():
    parts = pipeline.split(two_towers(), ["bottom_2"])
    x, y = named_data()
    model = Stages(parts, 2, sparsity=0.4)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    assert set(model.fit(x, y, verbose=0).history) == {"loss", "accuracy"}
    with pytest.raises(ValueError, match="pass x as a dict"):
        model.fit(x["numbers"], y, verbose=0)
    with pytest.raises(ValueError, match="Expected an input 'categories'"):
        model.fit({"numbers": x["numbers"]}, y, verbose=0)


def test_stages_of_one_process_are_a_model_with_thresholds():
    parts = pipeline.split(two_towers(), ["bottom_1", "top_1"])
    stages, (x, _) = Stages(parts, sparsity=[0.5, 0.0]), named_data()
    bottom, middle, top = parts
    expected = top(middle([Threshold(0.5)(bottom(x["numbers"])), tf.constant(x["categories"])]))
    np.testing.assert_array_equal(stages.predict(x, batch_size=40, verbose=0), expected)
    assert stages.telemetry() == {"stage": 0, "activation_bytes": 0, "gradient_bytes": 0, "waiting_ms": 0.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"micro_batches": 0}, "micro_batches of at least 1"),
        ({"sparsity": [0.5]}, "a sparsity for each of 2 splits"),
        ({"sparsity": 1.0}, "sparsity in"),
        ({"wire_dtype": "float8"}, "float32, float16"),
        ({"schedule": "zigzag"}, "fill_drain"),
        ({"grid": Grid(2, 1)}, "to be 1 ranks, got 2"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Stages(pipeline.split(two_towers(), ["bottom_1", "top_1"]), **arguments)
    with pytest.raises(ValueError, match="at least 1"):
        Grid(0, 1)


def test_a_part_is_a_layer_or_makes_one():
    for part in (3, lambda: "layer"):
        with pytest.raises(TypeError, match="a function that makes one"):
            Stages([part])
    model = Stages([lambda: L.Dense(1)])
    for wrong in ({"jit_compile": True}, {"steps_per_execution": 2}):
        with pytest.raises(ValueError, match="uses the network"):
            model.compile("sgd", "mse", **wrong)


def test_what_is_saved_comes_back(tmp_path):
    """Missing parts, or parts of another step, are reported before anything is changed."""
    x, y = named_data()

    def made(seed):
        keras.utils.set_random_seed(seed)
        model = Stages(pipeline.split(two_towers(), ["bottom_2"]))
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
        return model

    model = made(0)
    model.fit(x, y, epochs=2, verbose=0)
    pipeline.save(model, tmp_path / "saved")
    assert [each.name for each in (tmp_path / "saved").iterdir()] == ["stage-0-of-1.h5"]
    other = made(1)
    pipeline.load(other, tmp_path / "saved")
    kept = [each.numpy() for each in (*other.weights, *other.optimizer.variables)]
    for own, was in zip(kept, (*model.weights, *model.optimizer.variables), strict=True):
        np.testing.assert_array_equal(own, was)
    with h5py.File(tmp_path / "saved" / "stage-0-of-1.h5", "a") as file:
        file.attrs["stages"] = 2
    with pytest.raises(FileNotFoundError, match="files of 2 stages"):
        pipeline.load(other, tmp_path / "saved")
    with h5py.File(tmp_path / "saved" / "stage-1-of-2.h5", "w") as file:
        file.attrs.update(format=1, stages=2, stage=1, step=3)
    with pytest.raises(ValueError, match="of the same step"):
        pipeline.load(other, tmp_path / "saved")
    with h5py.File(tmp_path / "saved" / "stage-1-of-2.h5", "a") as file:
        file.attrs["step"] = 4
    with h5py.File(tmp_path / "saved" / "stage-0-of-1.h5", "a") as file:
        del file["weights/top_2/kernel"]
    with pytest.raises(ValueError, match="weights/top_2/kernel and 0 other"):
        pipeline.load(other, tmp_path / "saved")
    with pytest.raises(ValueError, match="begin parts with keras.Input"):
        pipeline.load(Stages([lambda: L.Dense(1)]), tmp_path / "saved")
    for own, was in zip((*other.weights, *other.optimizer.variables), kept, strict=True):
        np.testing.assert_array_equal(own, was)


def numbered(count, name=None):
    """A model of one stage, of parts with equal shapes, whose variables hold numbers."""
    keras.backend.clear_session()
    own = {"name": name} if name else {}
    made = Stages([lambda: keras.Sequential([keras.Input((4,)), L.Dense(4, **own)]) for _ in range(count)])
    made.compile(keras.optimizers.Adam(), "mse")
    for number, variable in enumerate([*made.weights, *made.optimizer.variables[2:]]):
        variable.assign(np.full(variable.shape, number, "f4"))
    return made


def zeroed(model):
    for variable in (*model.weights, *model.optimizer.variables[2:]):
        variable.assign(np.zeros(variable.shape))
    return model


def assert_loads(folder, saved, into):
    pipeline.load(into, folder)
    wanted = (*saved.weights, *saved.optimizer.variables)
    for found, own in zip((*into.weights, *into.optimizer.variables), wanted, strict=True):
        np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("name", [None, "layer"])
def test_parts_with_layers_of_equal_names_get_their_own_weights_back(name, tmp_path):
    model = numbered(3, name)
    pipeline.save(model, tmp_path)
    assert_loads(tmp_path, model, zeroed(numbered(3, name)))


def as_older(path, **attributes):
    """Takes out of a file what older ones did not have."""
    with h5py.File(path, "a") as file:
        del file.attrs["parts"]
        file.attrs.update(attributes)
        file.visititems(lambda name, item: [item.attrs.pop(each) for each in list(item.attrs)])


def test_an_older_file_of_the_same_stage_is_read(tmp_path):
    model = numbered(2)
    pipeline.save(model, tmp_path)
    as_older(tmp_path / "stage-0-of-1.h5")
    assert_loads(tmp_path, model, zeroed(numbered(2)))


def older_stages(folder, name):
    """Files of two stages, as of two ranks, each of which has numbered its own layer."""
    for stage in range(2):
        model = numbered(1, f"{name}_{stage}" if name else None)
        pipeline.save(model, folder)
        (folder / "stage-0-of-1.h5").rename(folder / f"stage-{stage}-of-2.h5")
        as_older(folder / f"stage-{stage}-of-2.h5", stage=stage, stages=2)


def test_older_files_are_read_where_names_tell_stages_apart(tmp_path):
    older_stages(tmp_path, "layer")
    model = zeroed(numbered(1, "layer_1"))
    assert_loads(tmp_path, numbered(1, "layer_1"), model)


def test_older_files_are_refused_where_nothing_tells_stages_apart(tmp_path):
    older_stages(tmp_path, None)
    model = zeroed(numbered(1))
    with pytest.raises(ValueError, match=r"one variable .*dense/kernel, got it in stage-0-of-2.h5 and stage-1-of-2.h5"):
        pipeline.load(model, tmp_path)
    assert not any(np.any(each) for each in model.weights)


class Idle(L.Layer):
    """A layer with a weight that it does not use."""

    def build(self, input_shape):
        self.weight = self.add_weight((2,))

    def call(self, inputs):
        return inputs


def test_loss_scaling_skips_a_step_whatever_form_its_gradients_have():
    """Rows of embeddings, no gradient, and half precision."""
    layers = [keras.Input((2,)), L.Embedding(4, 3), L.Flatten(), L.Dense(1, dtype="float16"), Idle(dtype="float16")]
    model = Stages([keras.Sequential(layers)])
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0)
    model.compile(scaled, "mse")
    before = [each.numpy() for each in model.weights]
    model.fit(np.array([[0, 1]], "i4"), np.array([[np.inf]], "f4"), verbose=0)
    assert float(scaled.dynamic_scale) == 32.0
    for own, was in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(own, was)

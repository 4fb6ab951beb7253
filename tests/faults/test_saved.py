"""What one rank saves and says when it resumes; `actors_saved.py` has what needs two."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

X = np.random.default_rng(0).normal(size=(16, 3)).astype("f4")


@pytest.fixture(autouse=True, scope="module")
def started():
    hvd.init()


def _optimizer():
    recipe = hvd.recipes.momentum_corrected(hvd.recipes.hitopk(0.2))
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), aggregator=recipe)


def _model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(_optimizer(), "mse")
    return model


def _fit(model, directory, epochs):
    callback = hvd.callbacks.CheckpointCallback(directory)
    return model.fit(X, X[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[callback]).history


class _Layer(keras.layers.Layer):
    """A layer that has an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.inner_optimizer = _optimizer()


class Held(keras.Model):
    """A model that trains with an optimizer in a list, in a dict, or of a layer."""

    def __init__(self, place):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 3))
        self.layer = _Layer() if place == "layer" else None
        self.listed = [_optimizer()] if place == "list" else []
        self.mapped = {"one": _optimizer()} if place == "dict" else {}
        self.built = True

    def call(self, x):
        return self.dense(x)

    def own(self):
        """The optimizer."""
        return [*self.listed, *self.mapped.values(), *([self.layer.inner_optimizer] if self.layer else [])][0]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        self.own().apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("place", ["list", "dict", "layer"])
def test_an_optimizer_anywhere_in_a_model_is_consolidated(place):
    keras.utils.set_random_seed(0)
    model = Held(place)
    model.compile()
    model.fit(X, X[:, :1], batch_size=4, verbose=0)
    hvd.consolidate(model)
    assert any(np.any(np.array(each)) for each in model.own().momentums), "its momentum is still in the exchange"


def test_resuming_is_told(tmp_path, capsys):
    _fit(_model(), tmp_path, 1)
    capsys.readouterr()
    _fit(_model(), tmp_path, 2)
    lines = [each for each in capsys.readouterr().out.splitlines() if "resumes" in each]
    assert len(lines) == 1 and str(tmp_path / "epoch-0000") in lines[0] and "1 of 2" in lines[0], lines


def test_that_nothing_is_left_is_told(tmp_path, capsys):
    _fit(_model(), tmp_path, 2)
    capsys.readouterr()
    assert _fit(_model(), tmp_path, 2) == {}
    assert "nothing is left to train" in capsys.readouterr().out


def test_control_a_stopped_run_trains_the_epochs_that_are_left(tmp_path):
    _fit(_model(), tmp_path, 1)
    assert len(_fit(_model(), tmp_path, 3)["loss"]) == 2

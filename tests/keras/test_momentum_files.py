"""Momentum kept by the exchange, in files of the model: saved in the optimizer's slots, and restored from them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.compression.momentum import VELOCITY
from hvd_sparse.compression.senders import slots_of
from hvd_sparse.keras import momentum
from hvd_sparse.keras.optimizer import distribute
from hvd_sparse.optimizers import slots
from lars import LAMB


def corrected(density=0.25):
    return hvd.recipes.momentum_corrected(hvd.recipes.topk(density))


KINDS = {
    "SGD": lambda: keras.optimizers.SGD(0.25, 0.5),
    "Adam": lambda: keras.optimizers.Adam(0.25),
    "Adamax": lambda: keras.optimizers.Adamax(0.25),
    "Lamb": lambda: keras.optimizers.Lamb(0.25),
    "LAMB": lambda: LAMB(0.25, parallel=False),
}


def stepped(optimizer, variable, steps=3):
    for step in range(steps):
        optimizer.apply([tf.constant(np.arange(1.0, 9.0, dtype="f4") * (-1) ** step)], [variable])
    return optimizer


def compiled(optimizer):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, use_bias=False)])
    model.compile(optimizer, "mse")
    return model


def fitted(model, epochs=1, callbacks=()):
    x = np.arange(16, dtype="f4").reshape(8, 2) / 16
    model.fit(
        x, np.ones((8, 4), "f4"), batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return model


def assert_it_goes_on_to_the_bit(aggregator, folder, stopped, epochs):
    """Asserts that a training that was stopped after some epochs ends as one that was not."""

    def run(name, epochs):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), aggregator=aggregator)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.CheckpointCallback(folder / name)]
        return fitted(compiled(optimizer), epochs, callbacks).get_weights()[0]

    run("stopped", stopped)
    np.testing.assert_array_equal(run("stopped", epochs), run("whole", epochs))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_consolidated_is_what_the_optimizer_would_hold(name):
    """All elements are sent, so that the exchange's momentum equals the plain optimizer's."""
    keras.utils.set_random_seed(0)
    model = fitted(compiled(hvd.DistributedOptimizer(KINDS[name](), aggregator=corrected(1.0))))
    hvd.consolidate(model)
    momenta = slots.momenta(model.optimizer)
    assert momenta
    for held in momenta.values():
        assert np.asarray(held).any()
    variable, plain = keras.Variable(np.ones(8, "f4"), name="v"), keras.Variable(np.ones(8, "f4"), name="v")
    one = stepped(hvd.DistributedOptimizer(KINDS[name](), aggregator=corrected(1.0)), variable)
    other = stepped(KINDS[name](), plain)
    hvd.consolidate(type("Model", (), {"optimizer": one})())
    (held,), (expected,) = (slots.momenta(each).values() for each in (one, other))
    np.testing.assert_allclose(held, expected, rtol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_momentum_goes_on_from_the_slots_of_another_optimizer(name):
    """As in the file that any version has saved."""
    variable = keras.Variable(np.ones(8, "f4"), name="v")
    plain = stepped(KINDS[name](), variable)
    wrapped = KINDS[name]()
    wrapped.build([variable])
    for here, there in zip(wrapped.variables, plain.variables, strict=True):
        here.assign(there)
    distribute(wrapped, aggregator=corrected(1.0))
    stepped(wrapped, variable, 1)
    (state,) = wrapped.exchange.states
    velocity = slots_of(state)[0].velocity
    rule = momentum.of(plain, slots.momenta).rule()
    (expected,) = momentum.of(plain, slots.momenta).gathered()[VELOCITY].values()
    gained = float(rule.gain) * np.arange(1.0, 9.0, dtype="f4")
    np.testing.assert_allclose(velocity, float(rule.decay) * expected + gained, rtol=1e-5)


def test_a_file_that_would_lack_the_momentum_is_refused(tmp_path):
    model = fitted(compiled(hvd.DistributedOptimizer(KINDS["Adam"](), aggregator=corrected())))
    with pytest.raises(RuntimeError, match="before the model is saved, call hvd.consolidate"):
        model.save(tmp_path / "model.keras")
    hvd.consolidate(model)
    model.save(tmp_path / "model.keras")
    fitted(model)
    with pytest.raises(RuntimeError, match="hvd.consolidate"):
        model.save(tmp_path / "model.keras")


@pytest.mark.parametrize("saver", ["ModelCheckpoint", "BestModelCheckpoint", "CheckpointCallback"])
def test_a_callback_before_the_one_that_saves_makes_it_whole(saver, tmp_path):
    path = tmp_path / "model.keras"
    savers = {
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(path),
        "BestModelCheckpoint": lambda: hvd.callbacks.BestModelCheckpoint("loss", filepath=path),
        "CheckpointCallback": lambda: hvd.callbacks.CheckpointCallback(tmp_path),
    }
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), savers[saver]()]
    model = fitted(compiled(hvd.DistributedOptimizer(KINDS["SGD"](), aggregator=corrected(1.0))), 2, callbacks)
    if saver == "CheckpointCallback":
        return
    loaded = hvd.load_model(path, aggregator=corrected(1.0))
    fitted(loaded)
    fitted(model)
    np.testing.assert_allclose(loaded.get_weights()[0], model.get_weights()[0], rtol=1e-6)
    assert loaded.optimizer.momentum == 0.5

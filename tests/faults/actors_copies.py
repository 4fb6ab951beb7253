"""Copies of a compiled model trained alone, callbacks of Keras failed on one rank only, float8 scales differed.

Each rank is a node of its own.
"""

from __future__ import annotations

import contextlib
import copy
import pathlib
import pickle
import tempfile
import warnings

import keras
import numpy as np

import hvd_sparse as hvd

X = np.random.RandomState(7).randn(2, 32, 8).astype("f4")
RECIPES = {"dense": lambda: None, "recommended": lambda: hvd.recipes.recommended(density=1.0)}


def _model():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential([keras.Input((8,)), layers.Dense(4, "tanh"), layers.Dense(1)])


def _trained(recipe="dense"):
    model = _model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), aggregator=RECIPES[recipe]())
    model.compile(optimizer, keras.losses.MeanSquaredError(), run_eagerly=True)
    _fit(model)
    hvd.consolidate(model)
    return model


def _fit(model, **options):
    x = X[hvd.rank()]
    model.fit(x, x[:, :1] * (hvd.rank() + 1), batch_size=8, shuffle=False, verbose=0, **options)


def _require_equal(model):
    everywhere = hvd.allgather_object([np.array(value) for value in model.get_weights()])
    for values in zip(*everywhere, strict=True):
        np.testing.assert_array_equal(values[0], values[1])


def _outcomes(call):
    """Calls a function; returns each rank's error text, "" where there is none."""
    try:
        call()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    else:
        told = ""
    return hvd.allgather_object(told)


def _require_copies_exchange(make, recipe="dense"):
    """Requires that a copy, made on each rank, trains like the original; returns both."""
    model, made = _trained(recipe), []
    assert _outcomes(lambda: made.append(make(model))) == ["", ""]
    _fit(made[0])
    _require_equal(made[0])
    _fit(model)
    return model, made[0]


def _require_like(model, other):
    for value, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def control_the_model_itself_exchanges():
    for recipe in RECIPES:
        _require_copies_exchange(lambda model: model, recipe)


def a_deep_copy_exchanges_and_continues():
    _require_like(*_require_copies_exchange(copy.deepcopy))
    _require_copies_exchange(copy.deepcopy, "recommended")  # its nodes have moments of their own, copies their mean


def _pickled(model):
    return pickle.loads(pickle.dumps(model))


def a_pickled_copy_exchanges_and_continues():
    _require_like(*_require_copies_exchange(_pickled))
    _require_copies_exchange(_pickled, "recommended")


def a_model_compiled_by_the_others_config_exchanges():
    def compiled_like(model):
        other = _model()
        other.set_weights(model.get_weights())
        other.compile_from_config(model.get_compile_config())
        return other

    for recipe in RECIPES:
        _require_copies_exchange(compiled_like, recipe)


def a_clone_exchanges():
    def cloned(model):
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        return other

    _require_copies_exchange(cloned)


def a_deep_copy_of_the_optimizer_exchanges():
    def compiled_with_a_copy(model):
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        other.compile(copy.deepcopy(model.optimizer), "mse", run_eagerly=True)
        return other

    for recipe in RECIPES:
        _require_copies_exchange(compiled_with_a_copy, recipe)


def a_copy_keeps_local_layers_local():
    model = _model()
    adam = keras.optimizers.Adam(0.01)
    model.compile(hvd.DistributedOptimizer(adam, local_layers=model.layers[-1:]), "mse", run_eagerly=True)
    _fit(model)
    other = copy.deepcopy(model)
    _fit(other)
    first, last = (
        [each for weights in hvd.allgather_object([np.array(each) for each in layer.get_weights()]) for each in weights]
        for layer in other.layers
    )
    np.testing.assert_array_equal(first[0], first[2])
    assert np.abs(last[0] - last[2]).max() > 1e-3


def a_loaded_model_that_trains_alone_is_told_once():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        _trained().save(path)
        loaded = keras.models.load_model(path)
        assert hvd.allgather_object([_told(loaded), _told(loaded)]) == [[1, 0], [0, 0]]  # by rank 0, once
        assert _told(hvd.load_model(path)) == 0


def _told(model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _fit(model)
    return sum("hvd.load_model" in str(each.message) for each in caught)


@contextlib.contextmanager
def _shared_folder():
    """The same folder on all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(hvd.broadcast_object(folder, 0))
        hvd.allgather_object(None)  # so that rank 0's folder stays until all are done


def control_one_model_checkpoint_goes_on_working():
    for recipe in RECIPES:
        with _shared_folder() as folder:
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
            if hvd.rank() == 0:
                callbacks.append(keras.callbacks.ModelCheckpoint(folder / "model.keras"))
            model = _trained(recipe)
            _fit(model, callbacks=callbacks)
            assert hvd.rank() or len(hvd.load_model(folder / "model.keras").optimizer.variables) > 4
            if recipe == "dense":
                _fit(model, callbacks=[keras.callbacks.ModelCheckpoint(folder / f"rank{hvd.rank()}.keras")])
                assert (folder / f"rank{hvd.rank()}.keras").exists()


def _require_refused(recipe, make, *texts):
    with _shared_folder() as folder:
        model = _trained(recipe)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), make(folder)]
        told = _outcomes(lambda: _fit(model, callbacks=callbacks))
    assert told[0].startswith("ValueError") and told[0] == told[1], told
    for text in texts:
        assert text in told[0], told


def model_checkpoints_of_one_file_are_one_error():
    _require_refused(
        "dense",
        lambda folder: keras.callbacks.ModelCheckpoint(folder / "model.keras"),
        "model.keras",
        "anks 0, 1",
        "hvd.callbacks.BestModelCheckpoint",
    )


def model_checkpoints_without_moments_are_one_error():
    _require_refused(
        "recommended",
        lambda folder: keras.callbacks.ModelCheckpoint(folder / f"rank{hvd.rank()}.keras"),
        "ank 1, ModelCheckpoint",
        "rank 0 only",
    )


def backups_on_all_ranks_are_one_error():
    for recipe in RECIPES:
        _require_refused(
            recipe,
            lambda folder: keras.callbacks.BackupAndRestore(folder / "backup"),
            "BackupAndRestore",
            "hvd.callbacks.CheckpointCallback",
        )


def float8_scales_are_equal():
    recipes = (None, hvd.recipes.hitopk(0.5), hvd.recipes.recommended(density=0.5))
    for recipe, steps in zip(recipes, (None, 2, None), strict=True):
        keras.utils.set_random_seed(1)
        layer = keras.layers.Dense(4, "tanh", dtype="float8_from_float32")
        model = keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=steps)
        model.compile(hvd.DistributedOptimizer(optimizer, aggregator=recipe), "mse")
        _fit(model)
        _require_equal(model)
        assert np.array(layer.inputs_amax_history).max() == np.abs(X).max()

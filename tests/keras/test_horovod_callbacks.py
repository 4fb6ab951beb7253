"""Callbacks as created in Horovod's scripts, and Horovod's names for elastic training."""

import inspect

import horovod.tensorflow.elastic
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

X, Y = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3), np.ones((16, 2), "f4")
# Copied from horovod.tensorflow.keras.callbacks 0.28.1, which cannot be imported together with Keras 3.
SIGNATURES = {
    "BroadcastGlobalVariablesCallback": ["root_rank", "device", "local_variables"],
    "MetricAverageCallback": ["device"],
    "LearningRateScheduleCallback": [
        "initial_lr",
        "multiplier",
        "start_epoch",
        "end_epoch",
        "staircase",
        "momentum_correction",
        "steps_per_epoch",
    ],
    "LearningRateWarmupCallback": ["initial_lr", "warmup_epochs", "momentum_correction", "steps_per_epoch", "verbose"],
    "BestModelCheckpoint": ["monitor", "verbose", "save_weights_only", "mode", "save_freq"],
}


def compiled():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def fit(model, *callbacks, **options):
    return model.fit(X, Y, batch_size=4, verbose=0, callbacks=list(callbacks), **options).history


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_stand_where_horovod_has_them(name):
    own = list(inspect.signature(getattr(hvd.callbacks, name)).parameters)
    assert own[: len(SIGNATURES[name])] == SIGNATURES[name]


def test_devices_and_local_variables_are_taken():
    local = tf.Variable(1.0)
    callbacks = (
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, "/cpu:0", local),
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, device="", local_variables=[local, keras.Variable(2.0)]),
        hvd.callbacks.MetricAverageCallback("/cpu:0"),
    )
    assert np.isfinite(fit(compiled(), *callbacks)["loss"][0])
    with pytest.raises(ValueError, match="variables of Keras or TensorFlow, got 3"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[3])


def test_the_best_model_is_kept(tmp_path):
    path = tmp_path / "best.keras"
    model = compiled()
    best = hvd.callbacks.BestModelCheckpoint("val_loss", mode="min", filepath=path)
    rates = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: -1.0 if epoch else 1.0)
    history = fit(model, rates, best, validation_data=(X, Y), epochs=3)
    assert history["val_loss"][0] == min(history["val_loss"]) < history["val_loss"][2]
    loaded = hvd.load_model(path)
    assert loaded.optimizer.iterations == 4
    assert loaded.evaluate(X, Y, verbose=0) == pytest.approx(history["val_loss"][0], rel=1e-5)


def test_the_file_may_be_told_later(tmp_path):
    best = hvd.callbacks.BestModelCheckpoint("loss", save_weights_only=True)
    with pytest.raises(ValueError, match=r"a filepath ending with '.weights.h5', got None"):
        fit(compiled(), best)
    best.filepath = tmp_path / "best.weights.h5"
    fit(compiled(), best)
    assert best.filepath == str(tmp_path / "best.weights.h5")
    assert (tmp_path / "best.weights.h5").exists()
    with pytest.raises(ValueError, match="must end in"):
        hvd.callbacks.BestModelCheckpoint(filepath=tmp_path / "best.txt")


OF_KERAS = ["KerasState", "CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


@pytest.mark.parametrize("name", [*horovod.tensorflow.elastic.__all__, *OF_KERAS, "State", "ObjectState"])
def test_elastic_training_has_horovods_names(name):
    assert name in hvd.elastic.__all__ and callable(getattr(hvd.elastic, name))

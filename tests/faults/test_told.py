"""What users were told: Keras's warning at the end of shared batches, and the names of parts in place of a recipe's."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hvd_sparse as hvd

X = np.random.default_rng(0).normal(size=(40, 4)).astype("f4")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def started():
    """One rank, a node of its own that is to select."""
    hvd.init(local_size=1)
    yield
    hvd.init()


def rows(taken):
    return taken.map(lambda rows: (tf.gather(X, rows), tf.gather(Y, rows)))


def warned(batches, **options):
    """What Keras warns of while a model on servers trains on batches."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    push = hvd.compressors.SampledThreshold(0.5)
    optimizer = hvd.servers.ShardedServers(keras.optimizers.Adagrad(0.02), push=push)
    model.compile(optimizer, "mse")
    try:
        model.fit(batches, epochs=2, verbose=0, **options)
    finally:
        hvd.servers.finish(optimizer)


def test_shared_batches_do_not_run_out_of_data():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        shared = hvd.servers.SharedBatches(len(X), batch_size=8)
        try:
            warned(rows(shared.dataset()))
        finally:
            shared.close()
    assert [str(each.message) for each in seen if "ran out of data" in str(each.message)] == []


def test_control_other_data_may_run_out():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warned(rows(tf.data.Dataset.range(40).batch(8)), steps_per_epoch=7)
    assert any("ran out of data" in str(each.message) for each in seen)


def trained(recipe, log_dir=None):
    """The last record of a training with a recipe."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, 0.9), aggregator=recipe), "mse")
    callback = hvd.callbacks.TelemetryCallback(log_dir, every=1)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[callback])
    return callback.records[-1]


NAMES = {
    "topk": lambda recipes: recipes.topk(0.5),
    "recommended": lambda recipes: recipes.recommended(0.5),
    "updates(hitopk)": lambda recipes: recipes.updates(recipes.hitopk(0.5)),
    "warmup(topk)": lambda recipes: recipes.warmup(recipes.topk(0.01), stage_steps=2),
    "schedule: dense": lambda recipes: recipes.schedule([(0, recipes.dense()), (5, recipes.topk(0.5))]),
    "torus2d": lambda recipes: recipes.torus2d(),
    "auto: topk": lambda recipes: recipes.auto(0.5, ["topk"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_telemetry_names_the_recipe(name):
    assert trained(NAMES[name](hvd.recipes))["recipe"] == name


def test_on_one_node_telemetry_names_what_took_its_place():
    hvd.init()
    assert trained(hvd.recipes.hitopk(0.5))["recipe"] == "hitopk: mean"


def test_the_log_names_the_recipe(tmp_path):
    trained(hvd.recipes.dropping(0.5), tmp_path)
    events = EventAccumulator(str(tmp_path / "rank0"))
    events.Reload()
    assert events.Tensors("exchange/recipe")[-1].tensor_proto.string_val[0] == b"dropping"


def test_control_telemetry_has_the_density():
    assert trained(hvd.recipes.topk(0.5))["density"] == pytest.approx(2 / 5)

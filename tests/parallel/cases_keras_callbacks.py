"""Callbacks with several ranks."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras.callbacks.averaging import broadcast_state
from tests.parallel.cases import case
from tests.parallel.training import (
    L,
    assert_replicas_equal,
    distributed,
    network,
    on_every_rank,
    own_data,
    raises,
    shared_folder,
)


@case(
    ranks=(2, 4),
    over=lambda ranks: [{"built": built} for built in (("all", "some", "none") if ranks == 2 else ("none",))],
    quick=lambda ranks, built: (ranks, built) == (2, "some"),
)
def broadcast_gives_all_the_values_of_one(built):
    """Also if only rank 0 has loaded, and therefore built, its model."""
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([L.Dense(16, "tanh"), L.Dropout(0.5), L.Dense(2)])
    if built == "all" or (built == "some" and hvd.rank() == 0):
        model.build((None, 6))
    local = model.local = keras.Variable([float(hvd.rank())], trainable=False)
    model.compile(distributed(keras.optimizers.Adam(0.05)), "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])
    first = [None]

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            first[0] = first[0] or [np.array(weight).tobytes().hex() for weight in self.model.trainable_weights]

    model.fit(*own_data(), batch_size=8, verbose=0, callbacks=[callback, Note()])
    assert len({json.dumps(bits) for bits in on_every_rank(first[0])}) == 1
    assert_replicas_equal(model.trainable_variables, model.optimizer.variables)
    assert float(local[0]) == hvd.rank()
    seeds = on_every_rank(np.array(model.layers[1].seed_generator.state).tolist())
    assert len({tuple(seed) for seed in seeds}) == hvd.size()


@case(ranks=(2, 4))
def broadcast_leaves_residuals_alone():
    model = network()
    model.compile(distributed(aggregator="topk"), "mse")
    model.fit(*own_data(), batch_size=8, verbose=0)
    own = model.optimizer.exchange.rank_state().values
    broadcast_state(model, 0)
    for name, value in model.optimizer.exchange.rank_state().values.items():
        np.testing.assert_array_equal(value, own[name])
    digests = on_every_rank({name: value.tobytes().hex() for name, value in own.items()})
    assert digests[0] != digests[1]


@case(ranks=(2,))
def slots_that_a_broadcast_has_dropped_are_gathered_again():
    """Rank 0 has gathered them to save a file; the rank that broadcasts has not."""
    folder = shared_folder()
    model = network()
    recipe = hvd.recipes.updates(hvd.recipes.topk(0.5))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05), aggregator=recipe), "mse")
    model.fit(*own_data(), batch_size=8, verbose=0)

    def saved(name):
        hvd.consolidate(model)
        if hvd.rank() == 0:
            model.save(folder / name)
        on_every_rank(None)
        return [np.array(each) for each in keras.models.load_model(folder / name).optimizer.variables]

    once = saved("once.keras")
    assert any(each.any() for each in once[2:])
    broadcast_state(model, 1)
    for before, after in zip(once, saved("again.keras"), strict=True):
        np.testing.assert_array_equal(before, after)


@case(ranks=(2,))
def the_best_model_is_written_by_rank_0():
    """It is chosen by the ranks' mean loss; by rank 1's loss alone the first epoch would be the best."""
    folder = shared_folder()
    model = network()
    model.compile(distributed(), "mse")
    best = hvd.callbacks.BestModelCheckpoint("loss", filepath=folder / f"best{hvd.rank()}.keras")
    callbacks = keras.callbacks.CallbackList([hvd.callbacks.MetricAverageCallback(), best], model=model)
    callbacks.on_train_begin()
    losses = [[2.0, 1.0, 3.0], [1.0, 1.5, 3.0]][hvd.rank()]
    for epoch, loss in enumerate(losses):
        for weight in model.weights:
            weight.assign(keras.ops.full(weight.shape, epoch))
        callbacks.on_epoch_begin(epoch)
        callbacks.on_epoch_end(epoch, {"loss": loss})
    assert on_every_rank(sorted(path.name for path in folder.iterdir())) == [["best0.keras"]] * hvd.size()
    assert all(np.all(weight == 1.0) for weight in hvd.load_model(folder / "best0.keras").get_weights())


@case(ranks=(2, 4))
def metrics_are_averaged():
    callback = hvd.callbacks.MetricAverageCallback()
    callback.set_model(network())
    callback.model.compile(distributed(), "mse")
    logs = {"loss": float(hvd.rank()), "accuracy": 1.0}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": (hvd.size() - 1) / 2, "accuracy": 1.0}
    other = {"loss": 1.0} if hvd.rank() else {"los": 1.0}
    with raises(ValueError, "the names of their metrics", '"loss"', '"los"'):
        callback.on_epoch_end(1, other)


@case(ranks=(2, 4))
def the_rate_warms_up_from_one_rank_to_all():
    size = hvd.size()
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    model = network()
    model.compile(distributed(keras.optimizers.SGD(0.5)), "mse")
    warmup = hvd.callbacks.LearningRateWarmupCallback(1.0, warmup_epochs=2)
    model.fit(*own_data(32), batch_size=8, epochs=3, verbose=0, callbacks=[warmup, Note()])
    expected = [(step / 4 * (size - 1) / 2 + 1) / size for step in range(1, 9)] + [1.0] * 4
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert rates[7] == 1.0


@case(
    ranks=(4,),
    over=lambda ranks: [{"recipe": recipe} for recipe in ("dense", "torus2d", "topk", "hitopk")],
    quick=lambda ranks, recipe: recipe == "hitopk",
)
def telemetry_counts_the_bytes_of_each_rank(recipe):
    """One bucket of d = 64 elements on 2 nodes of 2 ranks: the bytes must be those stated in docs/algorithms.md."""
    hvd.init(local_size=2)
    variable = keras.Variable(np.zeros(64, "f4"))
    telemetry = hvd.Telemetry()
    optimizer = distributed(keras.optimizers.SGD(1.0), recipe, telemetry=telemetry)
    for step in range(3):
        optimizer.apply([tf.random.stateless_normal([64], (step, hvd.rank()))], [variable])
    figures = optimizer.exchange.read_telemetry()
    dense, pair = 64 * 4, 8
    sent = {
        "dense": 2 * 3 * dense // 4,
        "torus2d": dense // 2 + 2 * 1 * (dense // 2) // 2 + dense // 2,
        "topk": 3 * 16 * pair,
        "hitopk": dense // 2 + 1 * 8 * pair + min(dense // 2, 2 * 8 * pair),
    }
    assert figures["bytes_inside"] + figures["bytes_across"] == sent[recipe]
    if recipe in ("torus2d", "hitopk"):
        across = {"torus2d": 2 * 1 * (dense // 2) // 2, "hitopk": 8 * pair}
        assert figures["bytes_across"] == across[recipe]
        assert figures["total_bytes_across"] == telemetry.total_bytes_across == 3 * across[recipe]
    assert figures["step"] == 3
    assert figures["density"] == (0.25 if recipe in ("topk", "hitopk") else 1.0)
    assert figures["exposed_communication_ms"] > 0
    assert (figures["residual_norm"] > 0) == (recipe in ("topk", "hitopk"))

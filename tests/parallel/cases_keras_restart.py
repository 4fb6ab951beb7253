"""Training that is stopped and resumed."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import checkpoint, topology
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.storage import archives
from tests.parallel.cases import case
from tests.parallel.training import RECIPES, L, distributed, network, own_data, raises, shared_folder


def state_of(model):
    exchange = exchange_of(model.optimizer)
    own = [*exchange.rank_state().values.values()]
    return [np.array(value) for value in (*model.variables, *model.optimizer.variables, *own)]


def trained_with_checkpoints(folder, epochs, recipe, policy="float32", optimizer=None):
    """A model after some epochs, with dropout and a local layer; nothing is saved if there is no folder."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(hvd.rank())
    keras.config.set_dtype_policy(policy)
    try:
        local = L.Dense(4)
        model = network(layers=[L.Dropout(0.2), local])
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(distributed(optimizer or keras.optimizers.Adam(0.01), recipe, local_layers=[local]), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    callbacks += [hvd.callbacks.CheckpointCallback(folder)] if folder else []
    model.fit(*own_data(), batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"recipe": "topk", "policy": "float32"} if ranks == 2 else {"recipe": "hitopk", "policy": "mixed_float16"}
    ],
)
def a_stopped_run_ends_with_the_bits_of_one_that_was_not(recipe, policy):
    """With dropout, a local layer, momentum and residuals: state that differs between ranks or must be restored."""
    hvd.init(local_size=2)
    folder = shared_folder()
    trained_with_checkpoints(folder / "stopped", 1, recipe, policy)
    resumed = trained_with_checkpoints(folder / "stopped", 2, recipe, policy)
    whole = trained_with_checkpoints(folder / "whole", 2, recipe, policy)
    assert not resumed._initial_epoch, "a fit after this one begins where it is told to"
    for first, second in zip(state_of(resumed), state_of(whole), strict=True):
        np.testing.assert_array_equal(first, second)


@case(ranks=(2, 4), over=lambda ranks: [{"then": then} for then in (RECIPES if ranks == 4 else ("hitopk",))])
def what_was_kept_by_other_ranks_is_conserved(then):
    """Restores a checkpoint of 3 P ranks; its residual is divisible, and P ranks must get a third of each sum."""
    hvd.init(local_size=2)
    shapes = {"kernel": (3, 5), "bias": (7,)}
    variables = [keras.Variable(np.zeros(shape, "f4"), name=name) for name, shape in shapes.items()]
    generator = np.random.default_rng(0)
    kept = {name: 3 * hvd.size() * generator.integers(-9, 10, shape).astype("f4") for name, shape in shapes.items()}
    manifest = {
        "format": archives.FORMAT,
        "ranks": 3 * hvd.size(),
        "exact": False,
        "unit": "gradients",
        "step": 12,
        "counters": {},
        "variables": [[name, list(shape)] for name, shape in shapes.items()],
    }
    path = shared_folder() / "residuals.npz"
    if hvd.rank() == 0:
        checkpoint.write(path, manifest, kept)
    exchange = hvd.GradientExchange(RECIPES[then], bucket_bytes=32, first_bucket_bytes=32)
    assert checkpoint.restore(path, exchange) is None
    zeros = [tf.zeros(shape) for shape in shapes.values()]
    means = exchange(zeros, variables)
    left = exchange.residual_sum().residuals
    for name, mean in zip(shapes, means, strict=True):
        residual = left.get(name, np.zeros(shapes[name]))
        np.testing.assert_array_equal(mean * hvd.size() + residual, kept[name] / 3)
    assert exchange.step == 13


@case(ranks=(2,))
def a_rank_that_cannot_write_tells_all():
    exchange = hvd.GradientExchange(RECIPES["topk"])
    exchange([tf.ones([4])], [keras.Variable(np.zeros(4, "f4"), name="w")])
    folder = shared_folder()
    path = folder / "residuals.npz" if hvd.rank() == 0 else pathlib.Path("/proc/no such folder/residuals.npz")
    with raises(OSError, "Could not write the residuals", "rank 1: "):
        checkpoint.save(path, exchange)
    topology.world().gather_descriptions(None, "test.written")
    with raises(OSError, "Could not read the residuals", "rank 0: "):
        checkpoint.restore(folder / "missing.npz", exchange)

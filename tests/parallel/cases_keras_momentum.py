"""Training with momentum on the sender's side and a density that begins high, by Horovod."""

from __future__ import annotations

import keras
import numpy as np

import hvd_sparse as hvd
from tests.parallel.cases import case
from tests.parallel.cases_keras_restart import state_of
from tests.parallel.training import L, assert_replicas_equal, distributed, network, own_data, shared_folder

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.05, 0.5),
    "Adam": lambda: keras.optimizers.Adam(0.01),
}


def recipe():
    """All stages within the first epoch of `own_data`."""
    return hvd.recipes.warmup(hvd.recipes.momentum_corrected(hvd.recipes.hitopk(0.1)), 1, [0.5], dense_steps=1)


def both(ranks):
    return [{"optimizer": name, "policy": policy} for name, policy in (("SGD", "mixed_float16"), ("Adam", "float32"))]


def trained(optimizer, policy, epochs, folder=None):
    keras.backend.clear_session()
    keras.utils.set_random_seed(hvd.rank())
    keras.config.set_dtype_policy(policy)
    try:
        local = L.Dense(4)
        model = network(layers=[L.Dropout(0.1), local])
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(distributed(OPTIMIZERS[optimizer](), recipe(), local_layers=[local]), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    callbacks += [hvd.callbacks.CheckpointCallback(folder)] if folder else []
    options = {"batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    return model, model.fit(*own_data(), **options).history["loss"], local


@case(ranks=(4,), over=both, quick=lambda ranks, optimizer, policy: optimizer == "SGD")
def fit_learns_and_replicas_agree(optimizer, policy):
    hvd.init(local_size=2)
    model, losses, local = trained(optimizer, policy, 8)
    assert losses[-1] < 0.7 * losses[0], losses
    own = {id(variable) for variable in local.trainable_variables}
    assert_replicas_equal([variable for variable in model.trainable_variables if id(variable) not in own])


@case(ranks=(4,), over=both, quick=lambda ranks, optimizer, policy: optimizer == "Adam")
def a_stopped_run_ends_with_the_bits_of_one_that_was_not(optimizer, policy):
    hvd.init(local_size=2)
    folder = shared_folder()
    trained(optimizer, policy, 2, folder / "stopped")
    resumed, *_ = trained(optimizer, policy, 4, folder / "stopped")
    whole, *_ = trained(optimizer, policy, 4, folder / "whole")
    for first, second in zip(state_of(resumed), state_of(whole), strict=True):
        np.testing.assert_array_equal(first, second)

"""Training with sender-side momentum or a sender-side optimizer, and with a density warm-up, under Horovod."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras.exchanging import exchange_of
from lars import LAMB, LARS
from tests.parallel.cases import case, thorough
from tests.parallel.cases_keras_restart import state_of, trained_with_checkpoints
from tests.parallel.training import assert_replicas_equal, shared_folder

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.05, 0.5),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "LARS": lambda: LARS(0.5, trust_coefficient=0.1),
    "Lamb": lambda: keras.optimizers.Lamb(0.05),
    "Muon": lambda: keras.optimizers.Muon(0.02),
    "LAMB": lambda: LAMB(0.02),
}
SENDS = {
    "momentum": hvd.recipes.momentum_corrected,
    "updates": hvd.recipes.updates,
    "updates with the gain ratio": lambda recipe: hvd.recipes.updates(recipe, ahead=True, gain_ratio=True),
}
# Tests on threads train and resume with every optimizer; here is one of each kind of network traffic.
WAYS = [
    {"sends": "momentum", "optimizer": "SGD", "policy": "mixed_float16"},
    {"sends": "updates", "optimizer": "Adam", "policy": "float32"},
    {"sends": "updates", "optimizer": "LARS", "policy": "mixed_float16"},
    {"sends": "updates with the gain ratio", "optimizer": "Adam", "policy": "float32"},
    {"sends": "updates with the gain ratio", "optimizer": "Muon", "policy": "float32"},
]


def trained(sends, optimizer, policy, epochs, folder=None):
    """All stages of the warm-up are within the first epoch."""
    recipe = hvd.recipes.warmup(SENDS[sends](hvd.recipes.hitopk(0.1)), 1, [0.5], dense_steps=1)
    return trained_with_checkpoints(folder, epochs, recipe, policy, OPTIMIZERS[optimizer]())


@case(ranks=(4,), over=lambda ranks: [*WAYS[:2], WAYS[3]], quick=lambda ranks, sends, **_: sends == "updates")
def fit_learns_and_replicas_agree(sends, optimizer, policy):
    hvd.init(local_size=2)
    model = trained(sends, optimizer, policy, 8)
    losses = model.history.history["loss"]
    assert losses[-1] < 0.7 * losses[0], losses
    own = {id(variable) for variable in exchange_of(model.optimizer).local_variables()}
    assert_replicas_equal([variable for variable in model.trainable_variables if id(variable) not in own])


@case(ranks=(2, 4), over=lambda ranks: WAYS[3:] if ranks == 4 else WAYS[2:3], quick=thorough)
def a_stopped_run_ends_with_the_bits_of_one_that_was_not(sends, optimizer, policy):
    hvd.init(local_size=hvd.size() // 2)
    folder = shared_folder()
    trained(sends, optimizer, policy, 1, folder / "stopped")
    resumed = trained(sends, optimizer, policy, 2, folder / "stopped")
    whole = trained(sends, optimizer, policy, 2, folder / "whole")
    for first, second in zip(state_of(resumed), state_of(whole), strict=True):
        np.testing.assert_array_equal(first, second)


@case(ranks=(4,), over=lambda ranks: [{"optimizer": each} for each in ("LARS", "LAMB", "Lamb")], quick=thorough)
def ranks_whose_shards_are_empty_take_part_with_the_others(optimizer):
    """Tests a graph, in which these ranks must not leave an operation out: five elements in shards of two."""
    hvd.init(local_size=4)

    def trained_by(recipe):
        made = hvd.DistributedOptimizer(OPTIMIZERS[optimizer](), aggregator=recipe)
        variables = [keras.Variable(np.arange(1.0, 4.0, dtype="f4")), keras.Variable(np.ones(2, "f4"))]
        made.build(variables)
        step = tf.function(lambda gradients: made.apply(gradients, variables))
        for number in range(5):
            values = np.random.default_rng([hvd.rank(), number]).standard_normal(5).astype("f4")
            step([tf.constant(values[:3]), tf.constant(values[3:])])
        return np.concatenate([variable.numpy() for variable in variables])

    own = trained_by(hvd.recipes.updates(hvd.recipes.hitopk(1.0)))
    np.testing.assert_allclose(own, trained_by(hvd.recipes.torus2d()), rtol=1e-5)


@case(
    ranks=(4,),
    over=lambda ranks: [{"first": 2, "then": 1}, {"first": 1, "then": 2}],
    quick=lambda ranks, first, **_: first == 2,
)
def recommended_continues_on_another_number_of_nodes(first, then):
    """Two nodes send the largest of their updates, four average blocks."""
    folder, recipe = shared_folder(), hvd.recipes.recommended(0.05)
    hvd.init(local_size=first)
    before = trained_with_checkpoints(folder, 4, recipe, optimizer=OPTIMIZERS["Adam"]())
    hvd.init(local_size=then)
    model = trained_with_checkpoints(folder, 8, recipe, optimizer=OPTIMIZERS["Adam"]())
    losses = model.history.history["loss"]
    assert len(losses) == 4 and losses[-1] < 0.7 * before.history.history["loss"][0], losses
    own = {id(variable) for variable in exchange_of(model.optimizer).local_variables()}
    assert_replicas_equal([variable for variable in model.trainable_variables if id(variable) not in own])

"""Measurements and choices are the same on all ranks; residuals survive a change of the choice."""

import math
import pathlib

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import checkpoint
from hvd_sparse.spec import Spec
from hvd_sparse.tuning import planner
from tests import figures
from tests.members import AGGREGATORS
from tests.parallel.cases import case, thorough
from tests.parallel.training import (
    assert_replicas_equal,
    distributed,
    network,
    on_every_rank,
    own_data,
    shared_folder,
)
from tests.simulation import Shape, integers, same_bits

SIZE, DENSITY = 4099, 0.02
AUTO = hvd.recipes.auto(DENSITY, budget=0.0)
CHANGES = [("topk", "dense"), ("dense", "hitopk"), ("hitopk", "torus2d")]
SHAPES = {"kernel": (30, 20), "bias": (7,)}


@case(
    ranks=(2, 4),
    over=lambda ranks: [{"local_size": n} for n in ((1, 2) if ranks == 2 else (2,))],
    quick=lambda ranks, local_size: (ranks, local_size) == (2, 1),
)
def ranks_measure_alike_and_choose_alike(local_size):
    hvd.init(local_size=local_size)
    cluster = planner.measure()
    assert (cluster.nodes, cluster.local) == (hvd.size() // local_size, local_size)
    for link in (cluster.inside, cluster.across):
        assert link.latency == 0 <= link.call and 0 < link.bandwidth < math.inf
    assert cluster.memory > 0 and cluster.entry >= 0 and (cluster.reducing is None) == (cluster.nodes == 1)
    own = f"{cluster} {planner.plan(cluster, 10**6, 0.01).recipe}"
    everyones = hvd.topology.world().gather_descriptions(own, "planner.everyones")
    assert everyones == [everyones[0]] * hvd.size()


def changed_copy(source, target, winner):
    """A copy of a cache file in which one recipe was the fastest; returns when the copy exists."""
    if hvd.rank() == 0:
        figures.copy(source, target, figures.won_by(winner))
    hvd.topology.world().gather_descriptions(None, "test.copied")
    return target


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2}], quick=thorough)
def every_rank_chooses_the_same_and_exchanges_as_that(local_size):
    """Also while a function is traced, and if other ranks have another cache file or none."""
    hvd.init(local_size=local_size)
    folder = shared_folder() if hvd.rank() % 2 else pathlib.Path(f"{shared_folder()}/of rank {hvd.rank()}")
    states = {}

    @tf.function
    def exchange(vector):
        if not states:
            states["traced"] = AUTO.init(Spec(SIZE, hvd.topology.grid(), name="traced"))
        return AUTO.aggregate(vector, states["traced"])

    random = np.random.default_rng(0)
    vectors = [integers(random, SIZE, hvd.size()).astype(np.float32) for _ in range(hvd.size())]
    with figures.kept_in(folder):
        means = [exchange(tf.constant(vectors[hvd.rank()])).numpy() for _ in range(3)]
        eager = AUTO.init(Spec(SIZE, hvd.topology.grid(), name="eager"))
    choice = states["traced"].choice
    assert choice == eager.choice and on_every_rank(choice) == [choice] * hvd.size()
    shape = Shape(hvd.size(), local_size)
    simulated = AGGREGATORS[choice].simulate(shape, SIZE, DENSITY, "float32", "float32")
    for mean in means:
        same_bits(mean, simulated.step(vectors))
    same_bits(AUTO.residual(states["traced"]).numpy(), simulated.residual[hvd.rank()])


@case(ranks=(2,), quick=thorough)
def a_model_trains_with_buckets_of_different_choices():
    hvd.init(local_size=1)
    model = network(hidden=64)
    with figures.kept_in(shared_folder()):
        optimizer = distributed(aggregator=hvd.recipes.auto(0.25, budget=0.0), bucket_bytes=256, first_bucket_bytes=64)
        model.compile(optimizer, "mse")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        losses = model.fit(*own_data(), batch_size=8, epochs=6, verbose=0, callbacks=callbacks).history["loss"]
    assert losses[-1] < losses[0]
    assert_replicas_equal(model.variables)


def exchange_of(folder, steps):
    """An exchange that chose by the measurements in a folder, after some steps on integers; and its variables."""
    exchange = hvd.GradientExchange(AUTO, bucket_bytes=1 << 20, first_bucket_bytes=1 << 20)
    variables = [keras.Variable(np.zeros(shape, "f4"), name=name) for name, shape in SHAPES.items()]
    with figures.kept_in(folder):
        for step in range(steps):
            random = np.random.default_rng([step, hvd.rank()])
            exchange([tf.constant(integers(random, s, hvd.size()), tf.float32) for s in SHAPES.values()], variables)
    return exchange, variables


@case(
    ranks=(2,),
    over=lambda ranks: [{"first": first, "then": then} for first, then in CHANGES],
    quick=thorough,
)
def what_was_kept_survives_a_change_of_the_choice(first, then):
    hvd.init(local_size=2)
    folder = shared_folder()
    exchange_of(folder / "measured", 1)
    before = changed_copy(folder / "measured", folder / "before", first)
    after = changed_copy(folder / "measured", folder / "after", then)
    exchange, _ = exchange_of(before, 3)
    path = folder / "residuals.npz"
    checkpoint.save(path, exchange)
    kept = exchange.residual_sum().residuals
    assert exchange.account()["decided"] == [first] and bool(kept) == (first in ("topk", "hitopk"))
    again, _ = exchange_of(before, 1)
    assert checkpoint.restore(path, again) is True, "the same choice goes on to the bit"
    other, variables = exchange_of(after, 1)
    assert other.account()["decided"] == [then]
    assert checkpoint.restore(path, other) is False, "another one's own state does not fit"
    assert other.step == 3
    means = other([tf.zeros(shape) for shape in SHAPES.values()], variables)
    left = other.residual_sum().residuals
    for (name, shape), mean in zip(SHAPES.items(), means, strict=True):
        came_out = hvd.size() * mean.numpy() + left.get(name, np.zeros(shape))
        np.testing.assert_array_equal(came_out, kept.get(name, np.zeros(shape)))


@case(ranks=(2,), quick=thorough)
def the_command_measures_anew_for_auto():
    folder = shared_folder()
    with figures.kept_in(folder):
        planner.main([])
    hvd.topology.world().gather_descriptions(None, "test.written")
    assert set(figures.read(folder)["figures"]) == {"cluster"}
    with figures.kept_in(folder):
        AUTO.init(SIZE)

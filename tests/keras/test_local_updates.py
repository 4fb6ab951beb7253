"""Optimizers that the exchange runs on each node's gradients, compared with a training in NumPy."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.aggregators import Compressed, Hierarchical, LocalSteps, SparseAllReduce
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.senders import slots_of
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import exchanging, local_optimizer
from hvd_sparse.optimizers.whole_slots import WholeSlots
from lars import LAMB, LARS
from tests import simulation, threads
from tests.keras import test_momentum
from tests.keras.nodes import OPTIMIZERS, F, Nodes, Slots
from tests.keras.test_momentum import RATE, SHAPES, SIZE, combinations, gradients, packed, unpacked, weights
from tests.simulation import Shape

STEPS = 20
GRIDS = [(1, 1), (2, 1), (3, 3), (3, 1), (4, 4), (6, 2), (6, 3), (8, 4)]


def some(names, *quick):
    """All of the names; the quick tier runs only those in `quick`."""
    return [pytest.param(name, marks=[pytest.mark.thorough] * (name not in quick)) for name in names]


RECIPES = {
    "topk": (lambda: hvd.recipes.topk(0.1), simulation.exact),
    "hitopk": (lambda: hvd.recipes.hitopk(0.1), simulation.searched()),
}


def distributed(optimizer, recipe, grid, **options):
    """As `hvd.DistributedOptimizer` makes it, on ranks that are threads."""
    exchange = GradientExchange(recipe, optimizer=local_optimizer.of(optimizer), **options)
    exchange.grid = lambda: grid
    exchanging.distribute(optimizer, exchange)
    return optimizer


def kept(optimizer):
    """The slots and the residual of a rank."""
    (state,) = optimizer.exchange.states
    (slots,) = slots_of(state)
    return values_of(slots), optimizer.exchange.aggregator.residual(state).numpy()


def values_of(slots):
    """The values of slots, flat; of an optimizer that needs whole variables, in the order of the vector."""
    if not isinstance(slots, WholeSlots):
        return {name: slot.numpy() for name, slot in slots.slots.items()}
    found = {}
    for (name, _), slot in slots.of_variables.items():
        found.setdefault(name, []).append(slot.numpy().ravel())
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def trained(make, recipe, ranks, local_size):
    """Each rank's weights after each step, and its slots and residual."""
    return test_momentum.trained(make, recipe, ranks, local_size, distributed, kept)


@pytest.mark.parametrize("recipe, name, ranks, local_size", combinations("topk", "hitopk", OPTIMIZERS, (4, 2), GRIDS))
def test_every_step_is_that_of_numpy(recipe, name, ranks, local_size):
    compare(recipe, name, ranks, local_size)


SCALED = {"Adam": True, "LAMB": True, "Nesterov": False, "LARS": True}  # whether the gain ratio has an effect


@pytest.mark.parametrize("recipe, name, ranks, local_size", combinations("topk", "hitopk", SCALED, (4, 2), GRIDS[1::2]))
def test_every_step_with_the_gain_ratio_is_that_of_numpy(recipe, name, ranks, local_size):
    compare(recipe, name, ranks, local_size, SCALED[name])


def compare(recipe, name, ranks, local_size, scaled=None):
    """Compares a training with one in NumPy; if not None, the recipe has the gain ratio, which has an effect or not."""
    make, step, begins, decay = OPTIMIZERS[name]
    make_recipe, select = RECIPES[recipe]
    shape = Shape(ranks, local_size)
    simulated = Nodes(shape, select, 0.1, recipe == "topk", lambda: Slots(SIZE, step, **begins), bool(scaled))
    ran = trained(make, hvd.recipes.updates(make_recipe(), gain_ratio=scaled is not None), ranks, local_size)
    expected = weights()
    for number in range(STEPS):
        vectors = [packed(gradients(rank, number)) for rank in range(ranks)]
        lowered = simulated.step(vectors, [packed(expected)] * simulated.nodes)
        for weight, update in zip(expected, unpacked(lowered), strict=True):
            weight -= weight * F(decay) * F(RATE)
            weight -= update
        for rank in range(ranks):
            own, (slots, residual) = ran[rank][number]
            simulation.same_bits(residual, simulated.residual[rank])
            assert set(slots) == set(begins)
            for each, value in slots.items():
                simulation.same_bits(value, simulated.slots_of(rank)[each])
            for weight, other in zip(own, expected, strict=True):
                np.testing.assert_allclose(weight, other, rtol=0, atol=1e-6 * np.abs(other).max())


def plain(make, ranks, local_size):
    """The weights of a training whose exchange is dense."""

    def one_rank(grid):
        optimizer = make()
        exchange = GradientExchange(hvd.recipes.torus2d(), name="plain")
        exchange.grid = lambda: grid
        exchanging.distribute(optimizer, exchange)
        variables = [keras.Variable(value, name=name) for name, value in zip(SHAPES, weights(), strict=True)]
        for step in range(STEPS):
            optimizer.apply([tf.constant(gradient) for gradient in gradients(grid.world.rank, step)], variables)
        return [variable.numpy() for variable in variables]

    return threads.run(ranks, local_size, one_rank)[0]


@pytest.mark.parametrize("name", some(OPTIMIZERS, "Adam", "RMSprop"))
def test_with_one_node_that_sends_all_it_is_the_dense_optimizer(name):
    make = OPTIMIZERS[name][0]
    ran = trained(make, hvd.recipes.updates(hvd.recipes.hitopk(1.0)), 2, 2)
    for own, expected in zip(ran[0][-1][0], plain(make, 2, 2), strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", some(["SGD", "momentum", "Nesterov"], "Nesterov"))
def test_with_many_nodes_that_send_all_the_linear_ones_are_the_dense_optimizer(name):
    make = OPTIMIZERS[name][0]
    ran = trained(make, hvd.recipes.updates(hvd.recipes.hitopk(1.0)), 6, 2)
    for own, expected in zip(ran[0][-1][0], plain(make, 6, 2), strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


# ---- on one rank ----


def sending(density=0.25):
    return hvd.recipes.updates(hvd.recipes.topk(density))


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize("name", ["Adam", "RMSprop", "LARS", "LAMB"])
def test_a_graph_and_eager_code_move_weights_alike(name, in_graph):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name][0](), aggregator=sending(1.0))
    other, variable, expected = OPTIMIZERS[name][0](), *(keras.Variable(np.ones(4, "f4")) for _ in range(2))
    run = tf.function(lambda gradient: optimizer.apply([gradient], [variable])) if in_graph else None
    for step in range(3):
        gradient = tf.constant([1.0, -2.0, 3.0, 0.5]) * (step + 1)
        run(gradient) if run else optimizer.apply([gradient], [variable])
        other.apply([gradient], [expected])
    np.testing.assert_allclose(variable, expected, rtol=1e-6)
    assert int(optimizer.iterations) == 3


@pytest.mark.parametrize("name", ["Adam", "LAMB"])
def test_local_variables_and_rows_keep_the_optimizers_own_step(name):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name][0](), aggregator=sending(1.0))
    shared, local, table = variables = [
        keras.Variable(np.ones((2, 2), "f4"), name=name) for name in ("shared", "local", "table")
    ]
    optimizer.register_local_var(local)
    for _ in range(3):
        rows = tf.IndexedSlices(tf.ones([2, 2]), tf.range(2), tf.constant([2, 2]))
        optimizer.apply([tf.ones([2, 2]), tf.ones([2, 2]), rows], variables)
    for variable in (local, table):
        np.testing.assert_allclose(variable, shared, rtol=1e-6)
    kinds = ("first_moment", "second_moment") if name == "LAMB" else ("momentum", "velocity")
    apart = [slot.name for slot in optimizer.variables][2:]
    assert apart == [f"{variable}_{kind}" for variable in ("local", "table") for kind in kinds]


def test_weight_decay_constraint_and_average_act_on_the_weights():
    def make():
        return keras.optimizers.AdamW(0.5, weight_decay=0.1, use_ema=True, ema_momentum=0.5)

    def stepped(optimizer):
        variable = keras.Variable(np.ones(4, "f4"))
        variable.constraint = keras.constraints.NonNeg()
        for _ in range(3):
            optimizer.apply([tf.constant([1.0, -2.0, 3.0, 0.5])], [variable])
        return variable.numpy(), np.asarray(optimizer._model_variables_moving_average[0])

    for own, expected in zip(
        stepped(hvd.DistributedOptimizer(make(), aggregator=sending(1.0))), stepped(make()), strict=True
    ):
        np.testing.assert_allclose(own, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["Adam", "LAMB"])
def test_accumulated_gradients_are_one_step(name):
    def make():
        optimizer = OPTIMIZERS[name][0]()
        optimizer.gradient_accumulation_steps = 2
        return optimizer

    def stepped(optimizer):
        variable = keras.Variable(np.ones(4, "f4"))
        run = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
        for step in range(4):
            run(tf.constant([1.0, -2.0, 3.0, 0.5]) * (step + 1.0))
        return variable.numpy()

    own = hvd.DistributedOptimizer(make(), aggregator=sending(1.0))
    np.testing.assert_allclose(stepped(own), stepped(make()), rtol=1e-6)
    assert own.exchange.step == 2


@pytest.mark.parametrize("name", ["momentum", "LARS", "LAMB"])
def test_a_step_that_loss_scaling_skips_leaves_all_as_it_was(name):
    make = OPTIMIZERS[name][0]
    scaled = hvd.LossScaleOptimizer(hvd.DistributedOptimizer(make(), aggregator=sending(1.0)), initial_scale=8.0)
    variable, expected, plain = keras.Variable(np.ones(4, "f4")), keras.Variable(np.ones(4, "f4")), make()
    for scaled_one in (8.0, np.inf, 4.0):  # a skipped step halves the scale
        scaled.apply([tf.fill([4], scaled_one)], [variable])
    for _ in range(2):
        plain.apply([tf.ones([4])], [expected])
    np.testing.assert_allclose(variable, expected, rtol=1e-6)


@pytest.mark.parametrize("name", some(["Adam", "LARS", "LAMB", "Adafactor"], "Adam", "LARS", "LAMB"))
def test_a_step_with_a_nan_leaves_slots_residual_and_weights_as_they_were(name):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name][0](), aggregator=sending())
    variable = keras.Variable(np.ones(8, "f4"))
    optimizer.apply([tf.range(8.0)], [variable])

    def everything():
        state = [part.numpy() for exchange in optimizer.exchange.states for part in exchange.variables]
        return [*state, variable.numpy(), *(np.asarray(slot) for slot in optimizer.variables)]

    before = everything()
    assert len(before) > 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="Nothing was written"):
        optimizer.apply([tf.constant([np.nan, *range(7)], tf.float32)], [variable])
    for one, other in zip(before, everything(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["Adam", "LARS", "LAMB", "Muon"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_rank_whose_gradient_is_not_finite_is_named(name, value):
    """Also if other shards of its node contain parts of the variable, whose norm is then unknown."""

    def one_rank(grid):
        recipe = hvd.recipes.updates(hvd.recipes.hitopk(0.5))
        optimizer = distributed(OPTIMIZERS[name][0](), recipe, grid, name="spoilt")
        variable = keras.Variable(np.ones(8, "f4"), name="v")
        optimizer.apply([tf.range(8.0)], [variable])
        before = variable.numpy()
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1") as caught:
            optimizer.apply([tf.constant([value if grid.world.rank == 1 else 1.0, *range(7)], tf.float32)], [variable])
        np.testing.assert_array_equal(variable, before)
        return str(caught.value)

    assert len(set(threads.run(6, 3, one_rank))) == 1


SENDS_ALL = LocalUpdates(ErrorFeedback(TopK(1.0)))
# All aggregators that exchange a shard or delay its exchange.
ON_SHARDS = {
    "Compressed": Hierarchical(Compressed(SENDS_ALL)),
    "SparseAllReduce": Hierarchical(SparseAllReduce(SENDS_ALL)),
    "Accumulated": hvd.recipes.warmup(hvd.recipes.updates(hvd.recipes.hitopk(0.5)), 1, dense_steps=3),
    "Held": LocalSteps(Hierarchical(Compressed(dataclasses.replace(SENDS_ALL, ahead=True, gathers=True))), 3),
}


@pytest.mark.parametrize("name", some(["LARS", "LAMB", "Lamb"], "LAMB"))
@pytest.mark.parametrize("recipe", ON_SHARDS)
def test_an_empty_shard_takes_part(name, recipe):
    """Five elements in shards of two leave none for the last of four ranks; on one node each recipe equals dense."""

    def one_rank(grid, recipe):
        optimizer = distributed(OPTIMIZERS[name][0](), recipe, grid, name="few")
        variables = [keras.Variable(np.arange(1.0, 4.0, dtype="f4")), keras.Variable(np.ones(2, "f4"))]
        for step in range(3):
            values = np.random.default_rng([grid.world.rank, step]).standard_normal(5).astype("f4")
            optimizer.apply([tf.constant(values[:3]), tf.constant(values[3:])], variables)
        return np.concatenate([variable.numpy() for variable in variables])

    own = threads.run(4, 4, lambda grid: one_rank(grid, ON_SHARDS[recipe]))
    expected = threads.run(4, 4, lambda grid: one_rank(grid, hvd.recipes.torus2d()))
    for one, other in zip(own, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


class OwnStep(keras.optimizers.Adam):
    """Derived from a known optimizer, with another step."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient / tf.norm(gradient))


class OwnUpdate(LAMB):
    """Derived from a known optimizer, with another update of variables."""

    def _update(self, group, gradients, ratios, learning_rate):
        super()._update(group, gradients, tf.ones_like(ratios), learning_rate)


class OwnConfig(keras.optimizers.Adam):
    """Derived from a known optimizer, with the same step."""


class OwnLARS(LARS):
    """Derived from a known optimizer, with the same step."""


REFUSED = [keras.optimizers.Nadam, keras.optimizers.Ftrl, OwnStep, OwnUpdate]


@pytest.mark.parametrize("kind", REFUSED)
def test_an_optimizer_that_the_exchange_cannot_run_is_refused_by_name(kind):
    with pytest.raises(
        ValueError, match=f"cannot run {kind.__name__} on a node.*Lion, Muon, Adafactor, Lamb, or LARS or LAMB"
    ):
        hvd.DistributedOptimizer(kind(0.1), aggregator=sending())
    hvd.DistributedOptimizer(OwnConfig(0.1), aggregator=sending())
    hvd.DistributedOptimizer(OwnLARS(0.1), aggregator=sending())


def test_what_has_no_optimizer_refuses_the_recipe():
    variable = tf.Variable(tf.ones([8]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2)
    with pytest.raises(ValueError, match="runs an optimizer, and has none"):
        hvd.DistributedGradientTape(tape, aggregator=sending()).gradient(loss, [variable])


@pytest.mark.parametrize(
    "recipe",
    [
        lambda: hvd.recipes.updates(hvd.recipes.dense()),
        lambda: hvd.recipes.updates(hvd.recipes.updates(hvd.recipes.topk(0.1))),
        lambda: hvd.recipes.updates(hvd.recipes.momentum_corrected(hvd.recipes.topk(0.1))),
        lambda: hvd.recipes.updates(hvd.recipes.sparcml(0.1, as_published=True)),
    ],
)
def test_what_cannot_be_made_of_it_is_refused(recipe):
    with pytest.raises(ValueError, match="Expected a recipe with error feedback|wraps exactly one error feedback"):
        recipe()


def test_sums_and_updates_do_not_go_together():
    with pytest.raises(ValueError, match="a recipe that exchanges weight updates"):
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), aggregator=sending(), op=hvd.Sum)


@pytest.mark.parametrize(
    "make", [lambda: keras.optimizers.SGD(1.0, 0.5), lambda: LARS(1.0, 0.5, weight_decay=0.0, parallel=False)]
)
def test_a_rate_that_changes_scales_the_velocity_of_the_exchange(make):
    def velocity_after(correction):
        optimizer = hvd.DistributedOptimizer(make(), aggregator=sending(1.0))
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(optimizer, "mse")
        callback = hvd.callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: 0.5**epoch, momentum_correction=correction
        )
        model.fit(np.zeros((1, 1)), np.zeros((1, 1)), verbose=0)
        (velocity,) = local_optimizer.velocities(optimizer)
        velocity.assign(tf.ones_like(velocity))
        model.fit(np.zeros((1, 1)), np.zeros((1, 1)), epochs=2, verbose=0, callbacks=[callback])
        return float(velocity[0])

    assert velocity_after(False) == 0.25 and velocity_after(True) == 0.125

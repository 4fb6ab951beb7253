"""Horovod's arguments on several ranks, compared with NumPy computations of Horovod's results from all gradients."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from tests.parallel.cases import case
from tests.parallel.training import assert_replicas_equal, distributed, raises

STEPS, WIDTH = 6, 8
SPARSE = hvd.recipes.topk(0.25)


def gradients_of(rank):
    """Small integers, so that additions in any order give the same bits."""
    return np.random.default_rng(rank).integers(-8, 8, size=(STEPS, WIDTH)).astype("f4")


def all_gradients():
    return np.stack([gradients_of(rank) for rank in range(hvd.size())], axis=1)


def trained(optimizer, gradients=None):
    variable = keras.Variable(np.zeros(WIDTH, "f4"), name="variable")
    for gradient in gradients_of(hvd.rank()) if gradients is None else gradients:
        optimizer.apply([tf.constant(gradient)], [variable])
    return np.asarray(variable)


def topk_sums(of_steps, k=2):
    """The sums over ranks that exact top-k with error feedback sends in each step, and the final residuals."""
    residuals, sums = np.zeros_like(of_steps[0]), []
    for of_ranks in of_steps:
        residuals = residuals + of_ranks
        sent = np.zeros_like(residuals)
        for row, sent_row in zip(residuals, sent, strict=True):
            largest = np.argsort(-np.abs(row), kind="stable")[:k]
            sent_row[largest] = row[largest]
        residuals = residuals - sent
        sums.append(sent.sum(axis=0))
    return np.array(sums), residuals.sum(axis=0)


@case(ranks=(2, 4), over=lambda ranks: [{"kind": kind} for kind in ("optimizer", "tape")])
def dense_gradients_are_added_up(kind):
    expected = all_gradients().sum(axis=(0, 1))
    if kind == "optimizer":
        hvd.init(local_size=2)
        for recipe in (None, hvd.recipes.torus2d()):
            weights = trained(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum, aggregator=recipe))
            np.testing.assert_array_equal(-weights, expected)
        return
    variable = tf.Variable(np.zeros(WIDTH, "f4"))
    for factor in gradients_of(hvd.rank()):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(factor * variable)
        variable.assign_sub(hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [variable])[0])
    np.testing.assert_array_equal(-variable.numpy(), expected)


@case(ranks=(2, 4))
def a_sparse_recipes_sum_is_p_times_its_mean_and_residuals_are_unscaled():
    sums, kept = topk_sums(all_gradients())
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op, aggregator=SPARSE, name=f"op{op}")
        np.testing.assert_array_equal(-trained(optimizer), sums.sum(axis=0) / divisor)
        np.testing.assert_array_equal(optimizer.exchange.residual_sum().residuals["variable"], kept)
    hvd.init(local_size=2)
    results = [
        trained(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op, aggregator=recipe))
        for recipe in (hvd.recipes.hitopk(0.25), hvd.recipes.sparcml(0.25, collective="split_allgather"))
        for op in (hvd.Sum, hvd.Average)
    ]
    np.testing.assert_array_equal(results[0], hvd.size() * results[1])
    np.testing.assert_array_equal(results[2], hvd.size() * results[3])


@case(ranks=(2,))
def rows_and_clipped_sums_follow_op():
    rank, size = hvd.rank(), hvd.size()
    table = keras.Variable(np.zeros((3, 2), "f4"), name="table")
    optimizer = distributed(keras.optimizers.SGD(1.0), SPARSE, op=hvd.Sum)
    optimizer.apply([tf.IndexedSlices(tf.ones([2, 2]), tf.constant([rank, 2]), tf.constant([3, 2]))], [table])
    np.testing.assert_array_equal(table, [[-1, -1], [-1, -1], [-2, -2]])
    of_ranks = all_gradients()[0]
    weights = trained(distributed(keras.optimizers.SGD(1.0, clipnorm=4.0), None, op=hvd.Sum), gradients_of(rank)[:1])
    total = of_ranks.sum(axis=0)
    np.testing.assert_allclose(-weights, total * min(1.0, 4.0 / np.linalg.norm(total)), rtol=1e-6)
    # A sparse recipe's sum is P times its clipped mean with the threshold divided by P.
    results = [
        trained(
            distributed(keras.optimizers.SGD(1.0, clipnorm=norm), hvd.recipes.topk(1.0), op=op), gradients_of(rank)[:1]
        )
        for norm, op in ((4.0, hvd.Sum), (4.0 / size, hvd.Average))
    ]
    np.testing.assert_allclose(results[0], size * results[1], rtol=1e-6)


@case(ranks=(2, 4), over=lambda ranks: [{"averaged": averaged} for averaged in (False, True)])
def gradients_of_passes_are_added_up_and_exchanged_once(averaged):
    passes = 2
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": averaged}
    of_steps = all_gradients().reshape(-1, passes, hvd.size(), WIDTH).sum(axis=1) / (passes if averaged else 1)
    dense = distributed(keras.optimizers.SGD(1.0, momentum=0.5), hvd.recipes.dense(), **options)
    expected, velocity = np.zeros(WIDTH), np.zeros(WIDTH)
    for of_ranks in of_steps:
        velocity = 0.5 * velocity - of_ranks.mean(axis=0)
        expected += velocity
    np.testing.assert_array_equal(trained(dense), expected)
    assert (int(dense.iterations), dense.exchange.step) == (STEPS, STEPS // passes)
    sparse = distributed(keras.optimizers.SGD(1.0), SPARSE, **options)
    sums, kept = topk_sums(of_steps)
    np.testing.assert_array_equal(-trained(sparse), sums.sum(axis=0) / hvd.size())
    np.testing.assert_array_equal(sparse.exchange.residual_sum().residuals["variable"], kept)


@case(ranks=(2,))
def a_pass_that_overflows_on_one_rank_is_left_out_by_all():
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2, aggregator=SPARSE)
    optimizer = hvd.LossScaleOptimizer(inner, initial_scale=1.0)
    variable = keras.Variable(np.zeros(WIDTH, "f4"), name="variable")
    gradients = gradients_of(hvd.rank())
    spoilt = gradients[0].copy()
    spoilt[3] = np.inf if hvd.rank() == 1 else 1.0
    for gradient in (gradients[0], spoilt, gradients[1]):
        scale = float(optimizer.dynamic_scale) if optimizer.built else 1.0
        optimizer.apply([tf.constant(gradient * scale)], [variable])
    of_steps = all_gradients()[:2].sum(axis=0, keepdims=True)
    np.testing.assert_array_equal(-np.asarray(variable), topk_sums(of_steps)[0][0] / hvd.size())
    assert int(inner.iterations) == 2 and inner.exchange.step == 1


@case(ranks=(2, 4))
def a_process_set_exchanges_among_its_ranks_and_waits_for_no_other():
    members = [0, 3] if hvd.size() > 2 else [1]
    outside = hvd.rank() not in members
    of_members, own = all_gradients()[:, members], gradients_of(hvd.rank())
    mean = of_members.mean(axis=1).sum(axis=0)
    sparse_mean = topk_sums(of_members)[0].sum(axis=0) / len(members)
    with _process_sets(members) as (process_set,):
        options = {"process_set": process_set}
        for recipe, expected in ((hvd.recipes.dense(), mean), (hvd.recipes.topk(1.0), mean), (SPARSE, sparse_mean)):
            if outside and recipe is SPARSE:
                continue  # the members do not wait for it
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), aggregator=recipe, **options)
            np.testing.assert_array_equal(-trained(optimizer), own.sum(axis=0) if outside else expected)
            with raises(ValueError, "cannot be saved or restored"):
                optimizer.exchange.residual_sum()
        variable = tf.Variable(np.zeros(WIDTH, "f4"))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(own[0] * variable)
        total = hvd.DistributedGradientTape(tape, op=hvd.Sum, **options).gradient(loss, [variable])[0]
        np.testing.assert_array_equal(total, own[0] if outside else of_members[0].sum(axis=0))


@case(ranks=(4,))
def two_process_sets_train_beside_each_other_in_fit():
    x, y = np.ones((4, 1), "f4"), np.full((4, 1), 2.0 ** hvd.rank(), "f4")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    with _process_sets([0, 3], [1, 2]) as (outer, inner):
        own = outer if hvd.rank() in (0, 3) else inner
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.25), process_set=own), "mse")
        model.fit(x, y, batch_size=4, epochs=1, verbose=0)
        np.testing.assert_array_equal(model.layers[0].kernel, [[0.5 * np.mean([2.0**rank for rank in own.ranks])]])


@case(ranks=(2, 4), over=lambda ranks: [{"in_function": each} for each in (False, True)])
def gradients_of_tensors_are_averaged(in_function):
    rank, size = hvd.rank(), hvd.size()
    values, variable = [tf.constant([1.0, 2.0]), tf.constant(3.0)], tf.Variable([1.0, 1.0])
    wide = tf.Variable([0.0], dtype=tf.float64)

    def step(factor):
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = factor * tf.reduce_sum(values[0] * variable) * values[1] + 2.0 * values[1]
            loss = tf.cast(loss, tf.float64) + tf.reduce_sum(tf.cast(factor, tf.float64) * wide)
        sources = {"t": values, "v": variable, "w": wide}
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, sources)

    for _ in range(2):
        sums = (tf.function(step) if in_function else step)(tf.constant(1.0 + rank))
    total = float(sum(range(1, size + 1)))
    np.testing.assert_array_equal(sums["t"][0], [3 * total] * 2)
    np.testing.assert_array_equal(sums["t"][1], 3 * total + 2 * size)
    np.testing.assert_array_equal(sums["v"], [3 * total, 6 * total])
    np.testing.assert_array_equal(sums["w"], [total])


@case(ranks=(2,))
def float16_compression_rounds_on_the_wire_of_a_recipe():
    gradient = np.float32([1.0, 1.0 + 2.0**-12, 4.0, 3.0, 0.0, 0.0, 0.0, 0.0])
    for recipe in (hvd.recipes.dense(), hvd.recipes.topk(0.5)):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), compression=hvd.Compression.fp16, aggregator=recipe
        )
        weights = trained(optimizer, [gradient])
        np.testing.assert_array_equal(-weights, gradient.astype(np.float16))
        assert_replicas_equal([tf.constant(weights)])


@case(ranks=(2,))
def partial_tapes_leave_layers_to_their_ranks():
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    own = 2.0 + 2 * hvd.rank()
    for op, shared in ((hvd.Average, 3.0), (hvd.Sum, 6.0)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.constant([[own]])))
        tape = hvd.PartialDistributedGradientTape(tape, op=op, local_layers=layers[0])
        gradients = tape.gradient(loss, model.trainable_variables)
        np.testing.assert_array_equal(np.ravel(gradients), [own / 2, shared])


@contextlib.contextmanager
def _process_sets(*groups):
    """Adds process sets while Horovod runs and removes them afterwards; every rank calls it."""
    added = [horovod.add_process_set(list(group)) for group in groups]
    yield added
    for process_set in added:
        horovod.remove_process_set(process_set)


@case(ranks=(3,))
def all_ranks_reach_a_barrier_before_any_leaves_it():
    folder = pathlib.Path(hvd.broadcast_object(tempfile.mkdtemp()))
    pair = hvd.add_process_set([0, 2])

    @tf.function
    def traced():
        (folder / f"traced{hvd.rank()}").touch()
        hvd.barrier()
        return len(list(folder.glob("traced*")))

    assert int(traced()) == 3
    if hvd.rank() == 1:
        with raises(ValueError, "Rank 1 is not in the process set"):
            hvd.barrier(process_set=pair)
    else:
        (folder / f"pair{hvd.rank()}").touch()
        hvd.barrier(process_set=pair)
        assert len(list(folder.glob("pair*"))) == 2
    hvd.barrier()
    hvd.remove_process_set(pair)

"""Errors of one rank are reported on all ranks, or all skip the step; no state is damaged and no rank hangs."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras.exchanging import exchange_of
from tests.parallel.cases import case
from tests.parallel.training import RECIPES, assert_replicas_equal, distributed, network, own_data, raises

QUICK_WAYS = (("hitopk", "xla"), ("hitopk", "ours"), ("dense", "keras"))


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"recipe": recipe, "eager": eager}
        for recipe in ({2: "dense", 4: "torus2d"}[ranks], "hitopk")
        for eager in (False, True)
        if recipe == "hitopk" or not eager
    ],
    quick=lambda ranks, recipe, eager: (ranks, recipe, eager) == (2, "hitopk", False),
)
def a_nan_on_one_rank_stops_all_and_spoils_nothing(recipe, eager):
    hvd.init(local_size=2)
    model = network()
    model.compile(distributed(keras.optimizers.AdamW(0.01), recipe), "mse", run_eagerly=eager)
    x, y = own_data(8)
    model.fit(x, y, batch_size=8, verbose=0)
    weights = [np.array(weight) for weight in model.weights]
    own = exchange_of(model.optimizer).rank_state().values
    steps = int(model.optimizer.iterations)
    guilty = hvd.size() - 1
    if hvd.rank() == guilty:
        x = np.where(np.arange(x.size).reshape(x.shape) == 3, np.nan, x)
    with raises(tf.errors.InvalidArgumentError, f"rank {guilty}", "hvd.LossScaleOptimizer", "last checkpoint"):
        model.fit(x, y, batch_size=8, verbose=0)
    for before, after in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(before, after)
    for name, after in exchange_of(model.optimizer).rank_state().values.items():
        np.testing.assert_array_equal(own[name], after)
    assert int(model.optimizer.iterations) == steps
    model.fit(*own_data(8), batch_size=8, verbose=0)
    assert_replicas_equal(model.trainable_variables)


@case(ranks=(2,))
def a_nan_in_the_rows_of_an_embedding_stops_all():
    table = keras.Variable(np.zeros((4, 2), "f4"), name="table")
    optimizer = distributed(keras.optimizers.SGD(1.0))
    value = np.nan if hvd.rank() == 0 else 1.0
    slices = tf.IndexedSlices(tf.fill([1, 2], value), tf.constant([1]), tf.constant([4, 2]))
    with raises(tf.errors.InvalidArgumentError, "rank 0", "the rows of table"):
        optimizer.apply([slices], [table])
    np.testing.assert_array_equal(table, np.zeros((4, 2)))


@case(ranks=(2,), over=lambda ranks: [{"beside": each} for each in (False, True)])
def a_nan_in_a_gradient_of_float64_stops_all(beside):
    """`beside`: whether there is a gradient of float32, too."""
    variables = [keras.Variable([0.0], dtype="float64", name="wide"), keras.Variable([0.0], name="narrow")]
    variables = variables if beside else variables[:1]
    optimizer = distributed(keras.optimizers.SGD(1.0), "dense")

    def step(value):
        optimizer.apply([tf.constant([value], each.dtype) for each in variables], variables)

    step(1.0 + hvd.rank())
    with raises(tf.errors.InvalidArgumentError, "rank 1", "wide"):
        step(np.inf if hvd.rank() == 1 else 1.0)
    for variable in variables:
        np.testing.assert_array_equal(variable, [-1.5])
    step(2.0)
    for variable in variables:
        np.testing.assert_array_equal(variable, [-3.5])


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"recipe": recipe, "way": way}
        for recipe in (("dense", "hitopk") if ranks == 2 else ("hitopk",))
        for way in ("fit", "xla", "ours", "keras")
        if (recipe, ranks) == ("hitopk", 2) or way in ("fit", "keras")
    ],
    quick=lambda ranks, recipe, way: ranks == 2 and (recipe, way) in QUICK_WAYS,
)
def an_overflow_on_one_rank_is_a_step_that_all_skip(recipe, way):
    """`way`: fit under mixed_float16, the same with our train step, or an eager loop with either optimizer class."""
    hvd.init(local_size=2)
    guilty = hvd.rank() == hvd.size() - 1
    if way in ("fit", "xla"):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = network()
        finally:
            keras.config.set_dtype_policy("float32")
        model = hvd.compiled_train_step(model) if way == "xla" else model
        model.compile(distributed(aggregator=recipe), "mse")
        x, y = own_data(8)
        train = lambda bad: model.fit(x * (1e30 if bad else 1.0), y, batch_size=8, verbose=0)  # noqa: E731
    else:
        model = network()
        cls = hvd.LossScaleOptimizer if way == "ours" else keras.optimizers.LossScaleOptimizer
        model.compile(cls(distributed(aggregator=recipe)), "mse")
        ones = [tf.ones(weight.shape) * 1024 for weight in model.trainable_variables]
        bad = [tf.fill(weight.shape, np.inf) for weight in model.trainable_variables]
        train = lambda spoilt: model.optimizer.apply(bad if spoilt else ones, model.trainable_variables)  # noqa: E731
    scaler = model.optimizer
    exchange = exchange_of(scaler)
    while exchange.step < 2:
        train(False)
    scale, step = float(scaler.dynamic_scale.numpy()), exchange.step
    skips = [id(variable) for variable in scaler._variables]
    before = [np.array(v) for v in (*model.weights, *(v for v in scaler.variables if id(v) not in skips))]
    own = exchange.rank_state().values
    train(guilty)
    assert float(scaler.dynamic_scale.numpy()) == scale / 2
    assert exchange.step == step
    after = [*model.weights, *(v for v in scaler.variables if id(v) not in skips)]
    for first, second in zip(before, after, strict=True):
        np.testing.assert_array_equal(first, second)
    for name, value in exchange.rank_state().values.items():
        np.testing.assert_array_equal(own[name], value)
    train(False)
    assert exchange.step == step + 1
    assert_replicas_equal(model.trainable_variables, scaler.variables)


@case(ranks=(2, 4))
def ranks_with_other_models_are_told_on_every_rank():
    model = network(hidden=16 + (hvd.rank() == 1))
    model.compile(distributed(), "mse")
    with raises(ValueError, "disagree on the gradients", "on rank 1", "[6, 17]", "[6, 16]"):
        model.fit(*own_data(8), batch_size=8, verbose=0)


@case(ranks=(2, 4))
def ranks_with_other_recipes_are_told_on_every_rank():
    model = network()
    model.compile(distributed(aggregator=hvd.recipes.topk(0.25 if hvd.rank() else 0.5)), "mse")
    with raises(ValueError, "disagree on the gradients or the recipe", "rank 1 has recipe", "0.25", "0.5"):
        model.fit(*own_data(8), batch_size=8, verbose=0)


@case(ranks=(2,))
def ranks_of_which_one_has_telemetry_are_told():
    model = network()
    model.compile(distributed(telemetry=hvd.Telemetry() if hvd.rank() else None), "mse")
    with raises(ValueError, "rank 1 has telemetry = true"):
        model.fit(*own_data(8), batch_size=8, verbose=0)


@case(ranks=(2,))
def explicit_xla_is_refused_on_every_rank():
    with raises(ValueError, "communication with other ranks cannot be compiled", "hvd.compiled_train_step(model)"):
        network().compile(distributed(), "mse", jit_compile=True)


@case(ranks=(2,), over=lambda ranks: [{"recipe": recipe} for recipe in ("dense", "hitopk")])
def explicit_xla_around_a_tape_names_the_remedy_on_every_rank(recipe):
    hvd.init(local_size=1)
    model = network()

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        tape = hvd.DistributedGradientTape(tape, aggregator=RECIPES[recipe])
        return tape.gradient(loss, model.trainable_variables)

    with raises(tf.errors.InvalidArgumentError, "cannot_be_compiled_by_XLA", "leave_out_jit_compile"):
        step(own_data(8)[0])

"""LARS and LAMB as Keras and hvd_sparse use them: ordinary optimizers."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
import lars
from tests import members as recipes
from tests.lars import layers
from tests.lars.members import MEMBERS, stepper

X = np.linspace(-1, 1, 96, dtype="f4").reshape(32, 3)
Y = np.stack([np.sin(3 * X.sum(axis=1)), X[:, 0] ** 2], axis=1).astype("f4")
OPTIMIZERS = {
    "LARS": lambda **options: lars.LARS(options.pop("learning_rate", 0.05), trust_coefficient=0.1, **options),
    "LAMB": lambda **options: lars.LAMB(options.pop("learning_rate", 0.02), **options),
}


@pytest.fixture(params=list(OPTIMIZERS))
def make(request):
    return OPTIMIZERS[request.param]


def model_of(optimizer, **compiling):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(2, dtype="float32"),
        ]
    )
    model.compile(optimizer, "mse", **compiling)
    return model


def fitted(optimizer, epochs=3, **options):
    keras.utils.set_random_seed(0)
    model = model_of(optimizer)
    history = model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, shuffle=False, **options)
    return model, history.history["loss"]


def test_it_learns(make):
    _, losses = fitted(make(), epochs=20)
    assert losses[-1] < 0.3 * losses[0]


def test_run_eagerly_is_the_same(make):
    weights = []
    for eager in (False, True):
        keras.utils.set_random_seed(0)
        model = model_of(make(), run_eagerly=eager)
        model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    for first, second in zip(*weights, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


def test_a_learning_rate_that_is_set_counts(make):
    model, _ = fitted(make(), epochs=1)
    model.optimizer.learning_rate = 0.0
    if isinstance(model.optimizer, lars.LARS):
        for velocity in model.optimizer.momentums:
            velocity.assign(keras.ops.zeros_like(velocity))
    before = model.get_weights()
    model.fit(X, Y, batch_size=8, verbose=0)
    for first, second in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_schedule_is_followed(make):
    """A piecewise constant schedule gives the same result as setting its values by hand."""
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [1.0, 0.5, 0.25])
    scheduled, by_hand = make(learning_rate=rates), make(learning_rate=0.0)
    results = []
    for optimizer in (scheduled, by_hand):
        variables = layers.variables_of("transformer")
        step = stepper(optimizer, variables)
        for number, rate in enumerate([1.0, 1.0, 0.5, 0.5, 0.25]):
            if optimizer is by_hand:
                optimizer.learning_rate = rate
            step([tf.constant(gradient) for gradient in layers.gradients_of("transformer", number)])
        results.append([variable.numpy() for variable in variables])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("clipping", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping_comes_first(make, clipping):
    variables = [layers.variable("a/bias", np.zeros(2, "f4")), layers.variable("b/bias", np.zeros(2, "f4"))]
    plain = [layers.variable("a/bias", np.zeros(2, "f4")), layers.variable("b/bias", np.zeros(2, "f4"))]
    gradients = [tf.constant([3.0, 4.0]), tf.constant([0.1, 12.0])]
    clipped = {
        "clipnorm": [tf.clip_by_norm(gradient, 0.5) for gradient in gradients],
        "global_clipnorm": tf.clip_by_global_norm(gradients, 0.5)[0],
        "clipvalue": [tf.clip_by_value(gradient, -0.5, 0.5) for gradient in gradients],
    }[clipping]
    make(**{clipping: 0.5}).apply(gradients, variables)
    make().apply(clipped, plain)
    for first, second in zip(variables, plain, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5)


@pytest.mark.parametrize("traced", [False, True])
def test_accumulated_gradients_make_one_step(make, traced):
    """Two steps of two gradients each equal two steps of their means; Adam's correction counts steps, not gradients."""
    gradients = [layers.gradients_of("transformer", number) for number in range(4)]
    together, apart = layers.variables_of("transformer"), layers.variables_of("transformer")
    accumulating, plain = make(gradient_accumulation_steps=2), make()
    step = stepper(accumulating, apart, traced)
    for each in gradients:
        step([tf.constant(gradient) for gradient in each])
    for first, second in (gradients[:2], gradients[2:]):
        plain.apply([(tf.constant(a) + tf.constant(b)) / 2 for a, b in zip(first, second, strict=True)], together)
    for first, second in zip(together, apart, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-7)


def test_moving_averages_are_of_the_updated_weights(make):
    variables = layers.variables_of("transformer")
    optimizer = make(use_ema=True, ema_momentum=0.5)
    followed = [weight.numpy() for weight in variables]
    for number in range(3):
        optimizer.apply([tf.constant(each) for each in layers.gradients_of("transformer", number)], variables)
        share = 0.5 if number else 0.0
        followed = [share * old + (1 - share) * new.numpy() for old, new in zip(followed, variables, strict=True)]
    optimizer.finalize_variable_values(variables)
    for variable, average in zip(variables, followed, strict=True):
        np.testing.assert_allclose(variable, average, rtol=1e-5, atol=1e-6)


def test_constraints_hold(make):
    variable = keras.Variable(np.ones(3, "f4"), name="kernel")
    variable.constraint = keras.constraints.UnitNorm(axis=0)
    make().apply([tf.constant([1.0, -1.0, 0.5])], [variable])
    np.testing.assert_allclose(np.linalg.norm(variable), 1.0, rtol=1e-6)


def test_a_constant_loss_scale_is_divided_out(make):
    variables, plain = layers.variables_of("transformer"), layers.variables_of("transformer")
    gradients = [tf.constant(each) for each in layers.gradients_of("transformer", 0)]
    make(loss_scale_factor=8.0).apply([8 * gradient for gradient in gradients], variables)
    make().apply(gradients, plain)
    for first, second in zip(variables, plain, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_step_that_overflows_is_skipped(make):
    variable = layers.variable("dense/kernel", np.ones(2, "f4"))
    optimizer = keras.optimizers.LossScaleOptimizer(make(), initial_scale=4.0)
    optimizer.apply([tf.constant([4.0, 8.0])], [variable])
    before = [each.numpy() for each in [variable, *optimizer.inner_optimizer.variables]]
    optimizer.apply([tf.constant([np.inf, 1.0])], [variable])
    for first, second in zip(before, [variable, *optimizer.inner_optimizer.variables], strict=True):
        np.testing.assert_array_equal(first, second)
    assert optimizer.dynamic_scale == 2.0


@pytest.mark.parametrize("distributed", [False, True])
def test_mixed_precision(make, distributed):
    keras.config.set_dtype_policy("mixed_float16")
    hvd.init()
    optimizer = hvd.DistributedOptimizer(make()) if distributed else make()
    model, losses = fitted(optimizer, epochs=20)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert losses[-1] < 0.6 * losses[0]


# ---- saving ----


def assert_same_state(first, second):
    for ours, theirs in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("distributed", [False, True])
def test_a_saved_model_goes_on_to_the_bit(make, tmp_path, distributed):
    hvd.init()
    optimizer = make(exclude=["gamma$"], parallel=False)
    model, _ = fitted(hvd.DistributedOptimizer(optimizer) if distributed else optimizer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) in (lars.LARS, lars.LAMB)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert len(loaded.optimizer.variables) == 2 + len(model.trainable_variables) * (
        1 if isinstance(optimizer, lars.LARS) else 2
    )
    assert_same_state(model.optimizer, loaded.optimizer)
    for each in (model, loaded):
        each.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    assert_same_state(model.optimizer, loaded.optimizer)
    for first, second in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_weights_alone_bring_the_slots_along(make, tmp_path):
    model, _ = fitted(make())
    model.save_weights(tmp_path / "all.weights.h5")
    other = model_of(make())
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "all.weights.h5")
    for first, second in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_tensorflow_checkpoint(make, tmp_path):
    variables = layers.variables_of("transformer")
    optimizer = make()
    optimizer.apply([tf.constant(each) for each in layers.gradients_of("transformer", 0)], variables)
    saved = [each.numpy() for each in optimizer.variables]
    checkpoint = tf.train.Checkpoint(optimizer=optimizer)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    optimizer.apply([tf.constant(each) for each in layers.gradients_of("transformer", 1)], variables)
    checkpoint.read(path).assert_existing_objects_matched()
    for before, after in zip(saved, optimizer.variables, strict=True):
        np.testing.assert_array_equal(before, after)


ALONE = """
import sys, keras, numpy as np, lars
model = keras.models.load_model(sys.argv[1])
model.fit(np.ones((8, 3), "f4"), np.ones((8, 2), "f4"), verbose=0)
assert str(model.optimizer.choice) == "each rank alone: there is one rank", model.optimizer.choice
assert not {"horovod", "hvd_sparse"} & {name.partition(".")[0] for name in sys.modules}
"""


def test_neither_horovod_nor_hvd_sparse_is_needed(tmp_path):
    hvd.init()
    model, _ = fitted(hvd.DistributedOptimizer(lars.LAMB()), epochs=1)
    model.save(tmp_path / "model.keras")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "model.keras")], env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


# ---- with hvd_sparse ----


@pytest.mark.parametrize("recipe", ["mean", "hitopk", "schedule"])
@pytest.mark.parametrize("member", ["LARS", "LAMB"])
def test_every_recipe_that_sends_all_changes_nothing(recipe, member):
    """With one rank and density 1, every recipe's mean is the gradient, so the step is the same as without it."""
    hvd.init(local_size=1)  # given, so that recipes select
    aggregator = (
        recipes.switching(["dense", "topk"], 1.0, "float32")
        if recipe == "schedule"
        else recipes.AGGREGATORS[recipe].make(1.0, "float32")
    )
    results = []
    for wrap in (lambda optimizer: optimizer, lambda o: hvd.DistributedOptimizer(o, aggregator=aggregator)):
        variables = layers.variables_of("transformer")
        optimizer = wrap(MEMBERS[member].make(learning_rate=0.5, weight_decay=0.25))
        step = stepper(optimizer, variables)
        for number in range(3):
            if hasattr(optimizer, "set_epoch"):
                optimizer.set_epoch(min(number, 1))
            step(layers.gradients_of("transformer", number))
        results.append([variable.numpy() for variable in [*variables, *optimizer.variables]])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_sparse_recipe_trains(make):
    hvd.init(local_size=1)  # given, so that recipes select
    optimizer = hvd.DistributedOptimizer(make(learning_rate=0.02), aggregator=hvd.recipes.hitopk(0.5))
    _, losses = fitted(optimizer, epochs=20)
    assert losses[-1] < 0.7 * losses[0]


def test_the_tape(make):
    hvd.init(local_size=1)  # given, so that recipes select
    variables, plain = layers.variables_of("transformer"), layers.variables_of("transformer")
    weights = [tf.constant(each) for each in layers.gradients_of("transformer", 0)]

    def loss(values):
        return tf.add_n([tf.reduce_sum(value * weight) for value, weight in zip(values, weights, strict=True)])

    with tf.GradientTape() as tape:
        total = loss(variables)
    tape = hvd.DistributedGradientTape(tape, aggregator=hvd.recipes.topk(1.0))
    make().apply(tape.gradient(total, [variable.value for variable in variables]), variables)
    make().apply(weights, plain)
    for first, second in zip(variables, plain, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_step_that_fails_leaves_weights_and_slots_alone(make):
    hvd.init(local_size=1)  # given, so that recipes select
    variables = layers.variables_of("transformer")
    optimizer = hvd.DistributedOptimizer(make(), aggregator=hvd.recipes.topk(0.5))
    step = stepper(optimizer, variables)
    good = [tf.constant(gradient) for gradient in layers.gradients_of("transformer", 0)]
    step(good)
    states = [*variables, *optimizer.variables[2:]]  # without Keras's step counter and learning rate
    before = [each.numpy() for each in states]
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0"):
        step([tf.fill(good[0].shape, np.nan), *good[1:]])
    for first, second in zip(before, states, strict=True):
        np.testing.assert_array_equal(first, second)

"""Models split over real processes: results equal those of one process, and an error of one stage stops all."""

from __future__ import annotations

import contextlib
import functools
import os
import signal

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import pipeline
from hvd_sparse.pipeline import Grid, StageError, Stages, Threshold
from tests import simulation
from tests.parallel.cases import Launch, case, thorough
from tests.parallel.run import meet
from tests.parallel.training import on_every_rank, raises, shared_folder
from tests.pipeline.hybrid import Hybrid, Settings
from tests.simulation import Shape

L = keras.layers


def parts(count, width=24, **first):
    """`count` parts of three layers each, the same on every rank."""

    def part(number):
        def dense(width, name, seed, **options):
            start = keras.initializers.GlorotUniform(seed=seed)
            return L.Dense(width, kernel_initializer=start, name=f"{name}_{number}", **options)

        before = 6 if number == 0 else width - 4 * (number - 1)
        hidden = dense(20, "hidden", 2 * number, activation="relu", **(first if number == 0 else {}))
        last = dense(2 if number == count - 1 else width - 4 * number, "last", 2 * number + 1)
        between = L.LayerNormalization(name=f"normal_{number}")
        return keras.Sequential([keras.Input((before,)), hidden, between, last], name=f"part_{number}")

    return [lambda number=number: part(number) for number in range(count)]


def data(count=50, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 6)).astype("f4")
    return x, np.tanh(x[:, :2] - x[:, 2:4]).astype("f4")


def trained_in_one(made, x, y, sparsity, micro_batches, batch_size, epochs, optimizer):
    """The whole model with `Threshold` layers, trained by a loop over the same micro-batches in the same order."""
    layers = [each() for each in made]
    thresholds = [Threshold(sparsity) if sparsity else None for _ in layers[1:]] + [None]
    loss_of = keras.losses.MeanSquaredError()

    @tf.function(reduce_retracing=True)
    def outcome(x, y, share):
        for layer, threshold in zip(layers, thresholds, strict=True):
            x = layer(x, training=True)
            x = x if threshold is None else threshold(x, training=True)
        own = [tf.reduce_sum(each) for layer in layers for each in layer.losses]
        return share * tf.add_n([loss_of(y, x), *own])

    outcome(x[:1], y[:1], tf.constant(1.0))
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    optimizer.build(variables)
    step = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    for _ in range(epochs):
        for begin in range(0, len(x), batch_size):
            rows = slice(begin, min(begin + batch_size, len(x)))
            step(_gradients(outcome, variables, x[rows], y[rows], micro_batches))
    return layers


def _gradients(outcome, variables, x, y, micro_batches):
    count, total = min(micro_batches, len(x)), None
    for number in range(count):
        own = slice(len(x) * number // count, len(x) * (number + 1) // count)
        with tf.GradientTape() as tape:
            loss = outcome(x[own], y[own], tf.constant(len(x[own]) / len(x), tf.float32))
        found = tape.gradient(loss, variables)
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    return total


def weights_of_all(model, ranks):
    """The weights of all stages of the first trainer, in order."""
    told = on_every_rank([each.numpy().tolist() for each in model.weights])
    return [np.array(each, "f4") for rank in ranks for each in told[rank]]


def as_written(run):
    """Runs a case without graph optimisation, whose effect depends on the rest of the graph."""

    @functools.wraps(run)
    def plainly(**arguments):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        try:
            run(**arguments)
        finally:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})

    return plainly


QUICK = {"schedule": "one_forward_one_backward", "sparsity": 0.75}


def over(ranks):
    """One, two and five splits in both schedules; several parts per rank, in one process and on four ranks."""
    drained = {**QUICK, "schedule": "fill_drain"}
    yield from {2: [QUICK, {**drained, "sparsity": 0.0}], 3: [QUICK, drained], 6: [drained]}.get(ranks, [QUICK])


@case(ranks=(1, 2, 3, 4, 6), over=over, quick=lambda ranks, **how: ranks == 2 and how == QUICK)
@as_written
def stages_are_the_model_in_one_process(schedule, sparsity):
    """Bit for bit, with micro-batches of different sizes, as many on each rank; metrics cover all of them."""
    x, y = data()
    made = parts({1: 5, 4: 5}.get(hvd.size(), hvd.size()), kernel_regularizer="l2")
    model = Stages(made, 3, sparsity=sparsity, schedule=schedule)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)).history
    expected = trained_in_one(made, x, y, sparsity, 3, 20, 2, keras.optimizers.Adam(0.01))
    found = weights_of_all(model, range(hvd.size()))
    for mine, other in zip(found, [each for layer in expected for each in layer.weights], strict=True):
        np.testing.assert_array_equal(mine, other)
    predicted = model.predict(x, batch_size=50, verbose=0)
    np.testing.assert_allclose(history["val_mae"][-1], np.abs(predicted - y).mean(), rtol=1e-5)
    loss, error = model.evaluate(x, y, batch_size=50, verbose=0)
    np.testing.assert_allclose(error, history["val_mae"][-1], rtol=1e-5)
    assert history["loss"][-1] > history["mae"][-1] ** 2, "without the regularizer of the first stage"
    assert len({str(each) for each in on_every_rank([history, predicted.tolist(), loss, error])}) == 1
    model.close()


@case(ranks=(2,), over=lambda ranks: [{"dtype": dtype} for dtype in ("float16", "int8", "int4")], quick=thorough)
def fewer_bits_on_the_wire_train_all_the_same(dtype):
    """The number of payload bytes must be as documented too."""
    x, y = data(64)
    model = Stages(parts(2, 64), 2, sparsity=0.75, wire_dtype=dtype)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    losses = model.fit(x, y, batch_size=32, epochs=8, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    told, value = model.telemetry(), {"float16": 2 * 16, "int8": 4 + 16, "int4": 4 + 8}[dtype]
    positions = min(64 // 8, 2 * 16)
    expected = (16 * 32 * (value + positions), 0) if hvd.rank() == 0 else (0, 16 * 32 * value)
    assert (told["activation_bytes"], told["gradient_bytes"]) == expected
    model.close()


@case(ranks=(2,))
def a_gradient_that_is_not_finite_ends_the_step_on_all_stages():
    """Weights stay as before the step; with loss scaling all stages skip it and continue."""
    x, y = data(32)
    model = Stages(parts(2), 2)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(x, y, verbose=0, shuffle=False)
    before = [each.numpy() for each in (*model.weights, *model.optimizer.variables)]
    spoiled = y.copy()
    spoiled[20] = np.inf
    for _ in range(2):  # the connections must still work
        with raises(FloatingPointError, "A gradient of stage 1 (rank 1) is not finite"):
            model.fit(x, spoiled, verbose=0, shuffle=False)
    for own, was in zip((*model.weights, *model.optimizer.variables), before, strict=True):
        np.testing.assert_array_equal(own, was)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0)
    model.compile(scaled, "mse")
    model.fit(x, spoiled, verbose=0, shuffle=False)
    assert float(scaled.dynamic_scale) == 32.0
    for own, was in zip(model.weights, before, strict=False):
        np.testing.assert_array_equal(own, was)
    model.fit(x, y, verbose=0, shuffle=False)
    assert any((own.numpy() != was).any() for own, was in zip(model.weights, before, strict=False))
    model.close()


@case(ranks=(2,), quick=thorough)
def clipping_is_by_the_norm_of_all_stages():
    """As in one process; loss scaling makes no difference."""
    x, y = data(32)
    clipping = functools.partial(keras.optimizers.SGD, 0.5, global_clipnorm=0.05)
    made, model = parts(2), Stages(parts(2), 2)
    model.compile(keras.optimizers.LossScaleOptimizer(clipping(), initial_scale=64.0), "mse")
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    expected = trained_in_one(made, x, y, 0.0, 2, 16, 2, clipping())
    free = trained_in_one(made, x, y, 0.0, 2, 16, 2, keras.optimizers.SGD(0.5))
    found = weights_of_all(model, (0, 1))
    others = [[each for layer in layers for each in layer.weights] for layers in (expected, free)]
    for own, each, far in zip(found, *others, strict=True):
        np.testing.assert_allclose(own, each, rtol=0, atol=1e-6)
        assert np.abs(own - far).max() > 1e-4
    model.close()


@case(ranks=(2,), quick=thorough)
def what_stages_cannot_do_together_is_told_on_all():
    x, y = data(32)
    with raises(ValueError, "Expected at least 2 parts"):
        Stages(parts(1))
    with raises(ValueError, "1 trainers of 3 stages to be 2 ranks, got 3"):
        Stages(parts(3), grid=Grid(1, 3))
    with raises(ValueError, "disagree", "the stages' settings"):
        Stages(parts(2), 1 + hvd.rank())

    def refused(made, words, x=x, y=y, **options):
        model = Stages(made)
        model.compile("sgd", "mse")
        with raises(Exception, *words):
            model.fit(x, y, verbose=0, shuffle=False, **options)
        with raises(StageError):  # the state remains an error
            model.fit(x, y, verbose=0, shuffle=False)
        model.close()

    built = parts(2)
    refused([built[0], parts(2, 7)[1]], ["7", "24"])
    twins = keras.Input((6,))
    refused(
        [keras.Model(twins, [L.Dense(4)(twins), L.Dense(4)(twins)]), built[1]],
        ["got 2 tensors", "single tensor goes on"],
    )
    refused(parts(2), ["disagree on the batch"], x + hvd.rank())
    model = Stages(parts(2))
    model.compile("sgd", "mse")
    with raises(StageError, "disagree on the mode: test here and train there"):
        (model.evaluate if hvd.rank() else model.fit)(x, y, verbose=0)
    model.close()


class Striking(L.Layer):
    """Passes its input on; in the given micro-batch of training it sends a signal to its own process."""

    def __init__(self, number, after):
        super().__init__()
        self._number, self._left = number, after

    def call(self, x, training=None):
        if training:
            tf.py_function(self._count, [], [])
        return x

    def _count(self):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._number)


def struck(number):
    """Three parts; the middle one sends the signal in the second micro-batch of the third step."""
    first, middle, last = parts(3)
    return [first, lambda: keras.Sequential([keras.Input((24,)), middle(), Striking(number, 10)]), last]


@case(ranks=(3,), launch=Launch(dies=(1,)), quick=thorough)
def a_stage_that_stops_or_dies_in_mid_step_ends_the_others():
    """Both neighbours report which stage it was; if it resumes it fails too; weights are as before the step."""
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "200"  # by default Horovod tolerates a stopped rank for 30 s
    hvd.init()
    processes = on_every_rank(os.getpid())

    class Keeping(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            kept[:] = [each.numpy() for each in model.weights]

    x, y = data(64)
    for strike in (signal.SIGSTOP, signal.SIGKILL):
        model, kept = Stages(struck(strike), 4), []
        model.compile("sgd", "mse")
        words = [] if hvd.rank() == 1 else ["stage 1 (rank 1) was lost"]
        with raises(StageError, *words):
            model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[Keeping()])
        assert len(kept) == len(model.weights) > 0
        for own, was in zip(model.weights, kept, strict=True):
            np.testing.assert_array_equal(own, was)
        if strike == signal.SIGSTOP:
            if hvd.rank() != 1:
                meet("told", (0, 2))
                os.kill(processes[1], signal.SIGCONT)
            model.close()
            on_every_rank("all go on")


TRAINERS = Shape(2, 1)  # of one stage, for the simulation of their exchange


def exchanges_of(recipe, weights):
    """The simulations of each stage's exchange: a held threshold for each variable, or the top k of all of them."""
    return [_exchange_of(recipe, [each.size for each in own]) for own in weights]


def _exchange_of(recipe, sizes):
    if recipe == "topk":
        return [(simulation.Flat(TRAINERS, sum(sizes), simulation.exact, 0.2), range(len(sizes)))]
    held = [simulation.Flat(TRAINERS, size, simulation.Held(3), 0.1) for size in sizes]
    return [(each, [number]) for number, each in enumerate(held)]


def two_layers(seed):
    """Two layers; `Hybrid` is their simulation."""
    start = keras.initializers.GlorotUniform(seed=seed)
    bottom, top = L.Dense(24, "relu", kernel_initializer=start), L.Dense(2, kernel_initializer=start)
    return [keras.Sequential([keras.Input((6,)), bottom]), keras.Sequential([keras.Input((24,)), top])]


@contextlib.contextmanager
def grid_of(trainers, stages):
    """A grid whose process sets are removed afterwards."""
    grid = Grid(trainers, stages)
    for process_set in grid.process_sets:
        hvd.add_process_set(process_set)
    try:
        yield grid
    finally:
        for process_set in grid.process_sets:
            hvd.remove_process_set(process_set)


@case(
    ranks=(4,),
    over=lambda ranks: [{"recipe": recipe} for recipe in ("dct", "topk")],
    quick=lambda ranks, recipe: recipe == "topk",
)
def hybrid_training_is_its_simulation(recipe):
    """Compares weights and residuals of all ranks in each of eight steps, to 1e-6 of the largest."""
    x, y = data(60)
    made = {"topk": hvd.recipes.topk(0.2), "dct": hvd.recipes.dct(0.9, life=3)}[recipe]
    how = Settings(0.75, 0.25, 2)
    with grid_of(2, 2) as grid:
        stage, trainer = grid.stage_of(hvd.rank()), grid.trainer_of(hvd.rank())
        model = Stages(two_layers(trainer), how.micro_batches, sparsity=how.sparsity, grid=grid)
        descent = keras.optimizers.SGD(how.rate)
        model.compile(hvd.DistributedOptimizer(descent, aggregator=made, process_set=grid.process_set), "mse")
        starts = [[each.numpy() for each in part.weights] for part in two_layers(0)]  # of the first trainer
        simulations = [Hybrid(starts, exchanges_of(recipe, starts), how, dtype) for dtype in (np.float64, np.float32)]
        for step in range(8):
            rows = [slice(30 * each + 15 * (step % 2), 30 * each + 15 * (step % 2) + 15) for each in range(2)]
            model.train_on_batch(x[rows[trainer]], y[rows[trainer]])
            for each in simulations:
                each.step([(x[own], y[own]) for own in rows])
            expected, other = ([*each.weights[stage], *each.residuals(stage, trainer)] for each in simulations)
            nearly_equal(other, expected)  # otherwise the selection depends on rounding and the test needs other data
            nearly_equal([*model.weights, *residuals_of(model)], expected)
        model.close()


def residuals_of(model):
    """The residuals of this rank's variables, in the variables' order."""
    planned, found = model.optimizer.exchange.planned, {}
    for each in planned.buckets:
        found |= each.bucket.unpack(each.aggregator.residual(each.state))
    return [found[name].numpy() for name in planned.plan.order]


def nearly_equal(found, expected):
    """Compares arrays to 1e-6 of the largest element of all of them."""
    largest = max(np.abs(each).max() for each in expected)
    for own, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.reshape(own, wanted.shape), wanted, rtol=0, atol=1e-6 * largest)


@case(ranks=(4,), quick=thorough)
def trainers_keep_the_same_weights():
    """A NaN in one ends the step in all; a saved model can be loaded by as many stages as there are ranks."""
    x, y = data(64)
    made = parts(4)
    recipe = hvd.recipes.updates(hvd.recipes.topk(0.1), ahead=True)
    with grid_of(2, 2) as grid:
        trainer = grid.trainer_of(hvd.rank())
        mine = slice(32 * trainer, 32 * (trainer + 1))
        model = Stages(made, 2, sparsity=0.5, grid=grid)
        with raises(ValueError, "mean over trainers"):
            model.compile(keras.optimizers.SGD(0.05, global_clipnorm=1.0), "mse")
        descent = keras.optimizers.SGD(0.05)
        model.compile(hvd.DistributedOptimizer(descent, aggregator=recipe, process_set=grid.process_set), "mse")
        losses = model.fit(x[mine], y[mine], batch_size=16, epochs=4, shuffle=False, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        told = on_every_rank([each.numpy().tolist() for each in model.weights])
        assert told[:2] == told[2:]
        before = [each.numpy() for each in model.weights]
        spoiled = y[mine].copy()
        spoiled[3] = np.nan if trainer == 1 else spoiled[3]
        culprit = f"on rank {2 + grid.stage_of(hvd.rank())}"
        with raises(tf.errors.InvalidArgumentError, "holds a NaN or an infinity", culprit):
            model.fit(x[mine], spoiled, batch_size=32, shuffle=False, verbose=0)
        for own, was in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(own, was)
        model.close()
        pipeline.save(model, folder := shared_folder())
        on_every_rank("all have saved")
        other = Stages(made, grid=Grid(1, 4))
        other.compile(keras.optimizers.SGD(0.05), "mse")
        pipeline.load(other, folder)
        for own, was in zip(weights_of_all(other, range(4)), weights_of_all(model, range(2)), strict=True):
            np.testing.assert_array_equal(own, was)
        iterations = int(other.optimizer.iterations), int(model.optimizer.iterations)
        assert iterations[0] == iterations[1]
        other.close()

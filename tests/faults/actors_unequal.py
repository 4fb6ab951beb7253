"""Ranks with different numbers of batches: one ended `fit`, and the other got an error about a process that had ended.

Here the ranks are told which of them has no more batches, and the same processes then train on.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

RECIPES = {
    "mean": lambda: None,
    "hitopk": lambda: hvd.recipes.hitopk(0.1),
    "diloco": lambda: hvd.recipes.diloco(4),
    "recommended": lambda: hvd.recipes.recommended(density=0.1),
}
SIZE = 8


def _samples(batches):
    x = np.random.default_rng(batches).normal(size=(SIZE * batches, 4)).astype("f4")
    return x, x[:, :1]


def _generated(batches, dtype=tf.float32):
    """A dataset whose number of batches is not known before it has ended."""
    x, y = _samples(batches)

    def generate():
        for begin in range(0, len(x), SIZE):
            yield x[begin : begin + SIZE], y[begin : begin + SIZE]

    signature = (tf.TensorSpec((None, 4), dtype), tf.TensorSpec((None, 1), dtype))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def _model(recipe="mean", scaled=False, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), aggregator=RECIPES[recipe]())
    model.compile(hvd.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse", **options)
    return model


def _assert_told(fit, *texts):
    """Asserts that `fit` is the same error on every rank, after which they can go on."""
    try:
        fit()
    except ValueError as error:
        told = str(error)
    except Exception as error:
        raise AssertionError(f"not the error that was expected, but {type(error).__name__}: {error}"[:500]) from None
    else:
        hvd.shutdown()  # or the other rank would wait for ever
        raise AssertionError("this rank was told nothing")
    for text in texts:
        assert text in told, told
    assert len(set(hvd.allgather_object(told))) == 1
    assert "\n" not in told and "the same number of batches" in told, told


def _trains_on(model):
    model.fit(*_samples(3), batch_size=SIZE, verbose=0)
    first, second = hvd.allgather_object(model.get_weights()[0].tolist())
    assert first == second


def control_equal_numbers():
    for recipe in RECIPES:
        hvd.init(local_size=1)
        model = _model(recipe)
        model.fit(_generated(3), epochs=2, verbose=0, validation_data=_generated(hvd.rank() + 1))
        _trains_on(model)
        assert model.optimizer.iterations == 9
        hvd.shutdown()


def arrays_of_different_lengths():
    hvd.init()
    model, data = _model(), _samples(6 - 2 * hvd.rank())
    _assert_told(lambda: model.fit(*data, batch_size=SIZE, verbose=0), "Rank 1 has 4 batches", "rank 0 has 6")
    assert model.optimizer.iterations == 0
    _trains_on(model)
    hvd.shutdown()


def a_generator_ends_first():
    for recipe in RECIPES:
        hvd.init(local_size=1)
        model, data = _model(recipe), _generated(6 - 2 * hvd.rank())
        _assert_told(
            lambda model=model, data=data: model.fit(data, epochs=2, verbose=0, validation_data=data),
            "Rank 1 takes no more steps after 4",
            "rank 0 does",
        )
        assert model.optimizer.iterations == 4
        hvd.shutdown()


def a_generator_ends_first_inside_a_node():
    hvd.init()
    model, data = _model(run_eagerly=True), _generated(4 + 2 * hvd.rank())
    _assert_told(lambda: model.fit(data, verbose=0), "Rank 0 takes no more steps after 4", "rank 1 does")
    _trains_on(model)
    hvd.shutdown()


def a_rank_runs_out_of_data_that_it_promised():
    hvd.init()
    model, data = _model(steps_per_execution=2), _generated(6 - 2 * hvd.rank())
    _assert_told(lambda: model.fit(data, steps_per_epoch=6, verbose=0), "Rank 1 takes no more steps after 4")
    hvd.shutdown()


def a_generator_ends_first_under_loss_scaling():
    hvd.init(local_size=1)
    model, data = _model("hitopk", scaled=True), _generated(6 - 2 * hvd.rank())
    _assert_told(lambda: model.fit(data, verbose=0), "Rank 1 takes no more steps after 4")
    hvd.shutdown()


def a_generator_of_float64_ends_first():
    hvd.init()
    keras.config.set_floatx("float64")
    try:
        model, data = _model(), _generated(6 - 2 * hvd.rank(), tf.float64)
        _assert_told(lambda: model.fit(data, verbose=0), "Rank 1 takes no more steps after 4")
    finally:
        keras.config.set_floatx("float32")
    hvd.shutdown()


def a_rank_stops_by_itself():
    hvd.init(local_size=1)
    model = _model("hitopk")
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(model, "stop_training", hvd.rank() == 1))
    _assert_told(
        lambda: model.fit(*_samples(4), batch_size=SIZE, epochs=3, verbose=0, callbacks=[stop]),
        "Rank 1 takes no more steps after 4",
        "MetricAverageCallback",
    )
    hvd.shutdown()

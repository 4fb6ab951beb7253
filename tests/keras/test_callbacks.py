import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hvd_sparse as hvd
from hvd_sparse.keras.callbacks.rates import compare
from tests import threads

X, Y = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3), np.ones((16, 2), "f4")


def compiled(optimizer=None, aggregator=None, layers=(), **options):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    optimizer = optimizer or keras.optimizers.SGD(0.5, momentum=0.5)
    model.compile(hvd.DistributedOptimizer(optimizer, aggregator=aggregator), "mse", **options)
    return model


def fit(model, *callbacks, x=X, y=Y, **options):
    return model.fit(x, y, batch_size=4, verbose=0, callbacks=list(callbacks), shuffle=False, **options).history


def test_every_callback_tells_a_schedule_the_epoch(tmp_path):
    recipe = hvd.recipes.schedule([(0, hvd.recipes.topk(0.5)), (1, hvd.recipes.dense())])
    for callback in (
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.5, 1),
        hvd.callbacks.LearningRateScheduleCallback(0.5, 1.0),
        hvd.callbacks.TelemetryCallback(),
        hvd.callbacks.CheckpointCallback(tmp_path),
    ):
        model = compiled(aggregator=recipe)
        fit(model, callback, epochs=1)
        assert any(np.any(kept) for kept in model.optimizer.exchange.residual_sum().residuals.values())
        fit(model, callback, initial_epoch=1, epochs=2)
        assert not any(np.any(kept) for kept in model.optimizer.exchange.residual_sum().residuals.values())


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))


def test_rate_follows_a_function_of_the_epoch_batch_by_batch():
    rates = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(8.0, lambda epoch: 1 + epoch, staircase=False, end_epoch=2)
    logs = fit(compiled(), schedule, rates, epochs=3)
    assert rates.seen == [8, 10, 12, 14, 16, 18, 20, 22, 22, 22, 22, 22]
    assert logs["lr"] == [14, 22, 22]


def test_rate_is_a_staircase_or_a_power():
    rates = Rates()
    fit(compiled(), hvd.callbacks.LearningRateScheduleCallback(8.0, 0.5, start_epoch=1), rates, epochs=3)
    assert rates.seen == [0.5] * 4 + [8.0] * 4 + [4.0] * 4


def test_warm_up_on_one_rank_keeps_the_rate(capsys):
    rates = Rates()
    fit(compiled(), hvd.callbacks.LearningRateWarmupCallback(0.25, 2, verbose=1), rates, epochs=3)
    assert rates.seen == [0.25] * 12
    assert capsys.readouterr().out.count("Epoch 2: finished gradual learning rate warmup to 0.25.") == 1


def test_batches_that_fit_does_not_know_must_be_told():
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    callback = hvd.callbacks.LearningRateWarmupCallback(0.25, 2)
    model = compiled()
    with pytest.raises(ValueError, match="pass steps_per_epoch"):
        model.fit(endless.take(-1).filter(lambda x, y: True), callbacks=[callback], verbose=0)


def test_a_rate_that_is_a_schedule_cannot_be_set():
    model = compiled(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)))
    with pytest.raises(TypeError, match="not settable"):
        fit(model, hvd.callbacks.LearningRateScheduleCallback(0.5, 0.5))


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.RMSprop])
@pytest.mark.parametrize("scaled", [False, True])
def test_momentum_correction_is_horovods(make, scaled):
    """Velocity after a change of the learning rate: (momentum * new / old) * velocity - new * gradient."""
    options = {"rho": 0.0, "epsilon": 0.0} if make is keras.optimizers.RMSprop else {}
    optimizer = hvd.DistributedOptimizer(make(0.5, momentum=0.5, **options))
    optimizer = hvd.LossScaleOptimizer(optimizer) if scaled else optimizer
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    inner = optimizer.inner_optimizer if scaled else optimizer
    (velocity,) = inner.momentums if make is keras.optimizers.SGD else inner._momentums
    velocity.assign([[3.0]])
    callback = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.25)
    callback.set_model(model)
    callback.on_epoch_begin(1)
    callback.on_train_batch_begin(0)
    np.testing.assert_array_equal(velocity, [[1.5]])
    callback.on_train_batch_begin(0)  # the rate does not change here
    np.testing.assert_array_equal(velocity, [[1.5]])


def test_momentum_correction_can_be_left_out():
    model = compiled()
    fit(model)
    before = [velocity.numpy() for velocity in model.optimizer.momentums]
    callback = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.25, momentum_correction=False)
    callback.set_model(model)
    callback.on_epoch_begin(1)
    callback.on_train_batch_begin(0)
    for velocity, value in zip(model.optimizer.momentums, before, strict=True):
        np.testing.assert_array_equal(velocity, value)
    assert float(model.optimizer.learning_rate) == 0.25


def test_metrics_on_one_rank_are_as_they_were():
    model = compiled(metrics=["mae"])
    logs = {"loss": 0.1, "mae": 3}
    callback = hvd.callbacks.MetricAverageCallback()
    callback.set_model(model)
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 0.1, "mae": 3.0}
    callback.on_epoch_end(0, None)


def test_telemetry_counts_what_was_sent():
    model = compiled(aggregator=hvd.recipes.topk(0.25))
    callback = hvd.callbacks.TelemetryCallback(every=2)
    fit(model, callback, epochs=2)
    assert [record["step"] for record in callback.records] == [2, 4, 6, 8]
    record = callback.records[-1]
    assert (record["recipe"], record["parts"]) == ("topk", "Compressed/ErrorFeedback/TopK")
    assert (record["bytes_inside"], record["bytes_across"]) == (0, 0)
    assert (record["total_bytes_inside"], record["total_bytes_across"]) == (0, 0)
    assert record["density"] == 2 / 8
    assert record["compression_ms"] > 0
    kept = model.optimizer.exchange.residual_sum().residuals
    norm = math.sqrt(sum(float(np.sum(residual**2)) for residual in kept.values()))
    assert record["residual_norm"] == pytest.approx(norm, rel=1e-6)


def test_a_step_waits_for_the_selection_of_its_only_bucket():
    """Eagerly, as in a graph the starting clock may be read after the selection, since nothing waits for it."""
    callback = hvd.callbacks.TelemetryCallback(every=1)
    fit(compiled(aggregator=hvd.recipes.topk(0.25), run_eagerly=True), callback)
    assert len(callback.records) == 4
    for record in callback.records:
        assert record["exposed_communication_ms"] >= record["compression_ms"] > 0


def test_the_norm_is_that_of_the_own_gradient():
    telemetry = hvd.Telemetry(norms_every=2)
    variable, table = keras.Variable(np.zeros(3, "f4")), keras.Variable(np.zeros((2, 1), "f4"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), telemetry=telemetry)
    slices = tf.IndexedSlices(tf.constant([[8.0], [4.0]]), tf.constant([1, 1]), tf.constant([2, 1]))
    assert optimizer.exchange.read_telemetry() == {}
    for expected in (0.0, 13.0, 13.0):
        optimizer.apply([tf.constant([3.0, 4.0, 0.0]), slices], [variable, table])
        assert optimizer.exchange.read_telemetry()["gradient_norm"] == expected
        slices = tf.IndexedSlices(tf.constant([[12.0]]), tf.constant([1]), tf.constant([2, 1]))
    assert optimizer.exchange.read_telemetry()["recipe"] == "mean"
    assert optimizer.exchange.read_telemetry()["density"] == 1.0


def test_thresholds_that_were_overruled_are_counted():
    """Ten of forty elements are sent; steps 1, 2 and 4 take a new threshold; in step 3 all residuals are below it."""
    variable = keras.Variable(np.zeros(40, "f4"))
    recipe = hvd.recipes.dct(sparsity=0.75, life=10)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), aggregator=recipe, telemetry=hvd.Telemetry())
    steps = (1.0, 0, 10), (0.0, 0, 10), (0.0, 0, 10), (0.0, 1, 3), (1.0, 1, 10), (100.0, 1, 40)
    for scale, clamped, sent in steps:
        optimizer.apply([tf.constant(scale * np.arange(1, 41), tf.float32)], [variable])
        figures = optimizer.exchange.read_telemetry()
        assert figures["clamped"] == clamped and figures["density"] == sent / 40


def test_telemetry_follows_a_schedule():
    recipe = hvd.recipes.schedule([(0, hvd.recipes.hitopk(0.25)), (1, hvd.recipes.dense())])
    callback = hvd.callbacks.TelemetryCallback(every=4)
    fit(compiled(aggregator=recipe), callback, epochs=2)
    first, second = callback.records
    assert first["recipe"] == "schedule: hitopk"
    assert first["parts"] == "Hierarchical/Compressed/ErrorFeedback/MSTopK"
    assert first["compression_ms"] > 0 and first["density"] == 0.25
    assert (second["recipe"], second["parts"]) == ("schedule: dense", "AllReduce")
    assert second["compression_ms"] == 0 == second["residual_norm"] and second["density"] == 1.0


def test_steps_are_counted_from_before_a_restart(tmp_path):
    callbacks = hvd.callbacks.CheckpointCallback(tmp_path), hvd.callbacks.TelemetryCallback(every=4)
    fit(compiled(), *callbacks, epochs=1)
    again = hvd.callbacks.TelemetryCallback(every=4)
    fit(compiled(), callbacks[0], again, epochs=2)
    assert [record["step"] for callback in (callbacks[1], again) for record in callback.records] == [4, 8]


def test_telemetry_changes_no_bit():
    def weights(*callbacks):
        keras.utils.set_random_seed(0)
        model = compiled(aggregator=hvd.recipes.hitopk(0.25))
        fit(model, *callbacks, epochs=2)
        return model.get_weights()

    for plain, measured in zip(weights(), weights(hvd.callbacks.TelemetryCallback(every=1)), strict=True):
        np.testing.assert_array_equal(plain, measured)


def test_telemetry_reaches_tensorboard(tmp_path):
    callback = hvd.callbacks.TelemetryCallback(tmp_path, every=2)
    fit(compiled(aggregator=hvd.recipes.topk(0.25)), callback)
    events = EventAccumulator(str(tmp_path / "rank0"))
    events.Reload()
    scalars = {name for name in events.Tags()["tensors"] if name.startswith("exchange/")}
    assert scalars == {f"exchange/{name}" for name in callback.records[0] if name != "step"}
    written = events.Tensors("exchange/density")
    assert [event.step for event in written] == [2, 4]


def test_telemetry_must_be_asked_for_before_the_first_step():
    model = compiled()
    fit(model)
    with pytest.raises(RuntimeError, match="Telemetry must be set before the first exchange"):
        fit(model, hvd.callbacks.TelemetryCallback())


def test_telemetry_needs_a_distributed_optimizer():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs a distributed optimizer"):
        fit(model, hvd.callbacks.TelemetryCallback())


def test_callbacks_of_the_exchange_say_what_is_for_models_that_are_averaged(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.averaging.ModelAveraging(keras.optimizers.SGD(0.1)), "mse")
    for callback, instead in (
        (hvd.callbacks.CheckpointCallback(tmp_path / "saved"), "MeanOfModelsCallback.*ModelCheckpoint"),
        (hvd.callbacks.TelemetryCallback(), r"pass telemetry=hvd\.averaging\.Telemetry\(\)"),
    ):
        with pytest.raises(
            ValueError, match=f"With hvd.averaging.ModelAveraging {type(callback).__name__} .*{instead}"
        ):
            fit(model, callback)
    assert not (tmp_path / "saved").exists() and int(model.optimizer.iterations) == 0


def test_norms_are_taken_every_so_many_steps():
    with pytest.raises(ValueError, match="norms_every of at least 1"):
        hvd.Telemetry(norms_every=0)


def stopped_and_not(tmp_path, **options):
    """Weights and states after four epochs without a stop, and after two, a restart and two more."""

    def start(epochs, directory):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        model = compiled(keras.optimizers.Adam(0.01), layers=[keras.layers.Dropout(0.5)], **options)
        callback = hvd.callbacks.CheckpointCallback(directory)
        history = fit(model, callback, epochs=epochs)
        return model, history

    start(2, tmp_path / "stopped")
    resumed, history = start(4, tmp_path / "stopped")
    assert len(history["loss"]) == 2
    whole, _ = start(4, tmp_path / "whole")
    return resumed, whole


def everything(model):
    exchange = model.optimizer.exchange
    return [
        *map(np.array, model.variables),
        *map(np.array, model.optimizer.variables),
        *exchange.rank_state().values.values(),
    ]


@pytest.mark.parametrize(
    "aggregator",
    [
        hvd.recipes.hitopk(0.25),
        pytest.param(None, marks=pytest.mark.thorough),
        pytest.param(
            hvd.recipes.schedule([(0, hvd.recipes.topk(0.25)), (3, hvd.recipes.dense())]), marks=pytest.mark.thorough
        ),
    ],
)
def test_a_stopped_run_ends_with_the_bits_of_one_that_was_not(tmp_path, aggregator):
    resumed, whole = stopped_and_not(tmp_path, aggregator=aggregator)
    for first, second in zip(everything(resumed), everything(whole), strict=True):
        np.testing.assert_array_equal(first, second)


def test_old_checkpoints_go_and_the_newest_whole_one_counts(tmp_path):
    model = compiled()
    fit(model, hvd.callbacks.CheckpointCallback(tmp_path, keep=2), epochs=5)
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert folders == ["epoch-0003", "epoch-0004"]
    (tmp_path / "epoch-0004" / "whole.json").unlink()
    again = compiled()
    fit(again, hvd.callbacks.CheckpointCallback(tmp_path), epochs=5)
    assert again.optimizer.iterations == 4 * 4 + 4


def test_damaged_weights_are_passed_over(tmp_path):
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, keep=2), epochs=3)
    weights = tmp_path / "epoch-0002" / "model.weights.h5"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    again = compiled()
    fit(again, hvd.callbacks.CheckpointCallback(tmp_path), epochs=3)
    assert again.optimizer.iterations == 2 * 4 + 4
    assert json.loads((tmp_path / "epoch-0002" / "whole.json").read_text())["epoch"] == 2


def test_every_so_many_epochs(tmp_path):
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, every=2, keep=9), epochs=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0001", "epoch-0003"]
    with pytest.raises(ValueError, match="every and keep of at least 1"):
        hvd.callbacks.CheckpointCallback(tmp_path, every=0)


def test_a_model_that_is_not_built_cannot_be_restored(tmp_path):
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path))
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    with pytest.raises(ValueError, match="give it an input shape"):
        fit(model, hvd.callbacks.CheckpointCallback(tmp_path))


# ---- what all ranks must have alike ----


def compared(reaction, *seen):
    """Compares these learning rates, one of each rank."""
    return threads.run(len(seen), 1, lambda grid: compare(grid.world, seen[grid.world.rank], reaction))


def test_different_rates_are_one_error_on_all_ranks():
    compared("error", 0.5, 0.5, 0.5)
    with pytest.raises(threads.RanksFailed) as failed:
        compared("error", 0.5, 0.5, 0.25)
    texts = {str(error) for error in failed.value.errors}
    assert len(texts) == 1 and "rank 0: 0.5, rank 1: 0.5, rank 2: 0.25" in texts.pop()


def test_different_rates_may_be_a_warning():
    with pytest.warns(UserWarning, match="rank 1: 0.25.*drift apart") as warned:
        compared("warning", 0.5, 0.25)
    assert len(warned) == 1


@pytest.mark.parametrize(
    "make",
    [
        hvd.callbacks.BroadcastGlobalVariablesCallback,
        hvd.callbacks.MetricAverageCallback,
        lambda **options: hvd.callbacks.LearningRateScheduleCallback(0.5, 1.0, **options),
        lambda **options: hvd.callbacks.LearningRateWarmupCallback(0.5, **options),
    ],
)
def test_what_follows_different_rates_is_an_error_or_a_warning(make):
    assert (make().different_rates, make(different_rates="warning").different_rates) == ("error", "warning")
    with pytest.raises(ValueError, match="'error' or 'warning', got 'ignore'"):
        make(different_rates="ignore")


def test_metrics_of_any_nest_keep_their_shapes():
    logs = {"loss": 0.5, "f1": np.float32([0.25, 0.75]), "more": {"counts": np.array([[1, 2]]), "also": [tf.ones([2])]}}
    callback = hvd.callbacks.MetricAverageCallback()
    callback.set_model(compiled())
    callback.on_epoch_end(0, logs)
    assert logs["loss"] == 0.5 and isinstance(logs["loss"], float)
    np.testing.assert_array_equal(logs["f1"], [0.25, 0.75])
    np.testing.assert_array_equal(logs["more"]["counts"], [[1.0, 2.0]])
    np.testing.assert_array_equal(logs["more"]["also"][0], [1.0, 1.0])
    assert logs["f1"].dtype == np.float32

"""The first ten things that a Horovod user writes; only the import line differs from a script for Horovod."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from tests.parallel.cases import case, thorough
from tests.parallel.training import L, assert_replicas_equal, on_every_rank, own_data, shared_folder

RANKS = (2,)
BOTH = (2, 4)  # for fast cases


def build(seed=None):
    """A model with different weights on each rank, as without a seed."""
    keras.utils.set_random_seed(hvd.rank() if seed is None else seed)
    return keras.Sequential([keras.Input((6,)), L.Dense(8, "tanh"), L.Dense(2)])


@case(ranks=RANKS)
def broadcast_in_a_tape_loop():
    model, optimizer = build(), keras.optimizers.Adam(0.01 * hvd.size())
    x, y = own_data()
    first = [np.array(variable) for variable in model.variables]

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True) - labels))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return loss

    losses = [float(training_step(x, y, batch == 0)) for batch in range(20)]
    assert_replicas_equal(model.variables, optimizer.variables)
    assert int(optimizer.iterations) == 20 and losses[-1] < losses[1]

    # All get rank 0's values also before any step and outside a function.
    other = build()
    hvd.broadcast_variables(other.variables, root_rank=0)
    roots = on_every_rank([value.tobytes().hex() for value in first])[0]
    assert [np.array(variable).tobytes().hex() for variable in other.variables] == roots


@case(ranks=BOTH)
def allreduce_of_a_metric():
    mean = (hvd.size() - 1) / 2
    assert float(hvd.allreduce(hvd.rank(), name="number", op=hvd.Sum)) == mean * hvd.size()
    assert float(hvd.allreduce(float(hvd.rank()), name="loss")) == mean
    np.testing.assert_array_equal(hvd.allreduce([float(hvd.rank()), 1.0], name="score"), [mean, 1.0])
    np.testing.assert_array_equal(hvd.allreduce(np.full(3, hvd.rank(), "f4"), name="array"), np.full(3, mean))
    metric = keras.metrics.Mean()
    metric.update_state([float(hvd.rank())] * (hvd.rank() + 1))  # the number of samples differs between ranks
    total, count = (hvd.allreduce(each, op=hvd.Sum) for each in (metric.total, metric.count))
    ranks = np.arange(hvd.size())
    assert float(total) == float((ranks * (ranks + 1)).sum()) and float(count) == float((ranks + 1).sum())


@case(ranks=BOTH)
def object_broadcast():
    own = {"epoch": hvd.rank(), "best": 0.25 * hvd.rank(), "names": ["a", "b"][: hvd.rank() + 1], "none": None}
    got = hvd.broadcast_object(own, root_rank=0, name="state")
    assert got == {"epoch": 0, "best": 0.0, "names": ["a"], "none": None}
    last = hvd.size() - 1
    assert hvd.broadcast_object(own, root_rank=last)["epoch"] == last
    assert [each["epoch"] for each in hvd.allgather_object(own, name="all")] == list(range(hvd.size()))


@case(ranks=RANKS)
def load_model_on_one_rank_and_go_on():
    """Rank 0 loads a saved model, the others build one; the callback's broadcast gives all the same values."""
    folder = shared_folder()

    def compiled():
        model = build()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), "mse")
        return model

    x, y = own_data()
    model = compiled()
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[broadcast])
    saved = [np.array(variable) for variable in [*model.variables, *model.optimizer.variables]]
    if hvd.rank() == 0:
        model.save(folder / "model.keras")

    new = hvd.load_model(folder / "model.keras") if hvd.rank() == 0 else compiled()
    starts = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            starts.append(int(self.model.optimizer.iterations))

    if hvd.rank() == 0:
        for variable, value in zip([*new.variables, *new.optimizer.variables], saved, strict=True):
            np.testing.assert_array_equal(variable, value)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Note()]
    new.fit(x, y, batch_size=8, initial_epoch=2, epochs=4, verbose=0, callbacks=callbacks)
    assert_replicas_equal(new.variables, new.optimizer.variables)
    assert int(new.optimizer.iterations) == 16 and starts[-1] == 16  # 8 steps before and 8 after loading


@case(ranks=RANKS)
def warm_up():
    rates = []

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    model, scaled_lr = build(), 0.01 * hvd.size()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(scaled_lr)), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=0),
        Note(),
    ]
    model.fit(*own_data(), batch_size=8, epochs=5, verbose=0, callbacks=callbacks)
    assert rates == sorted(rates) and 0.01 < rates[0] < scaled_lr
    np.testing.assert_allclose(rates[2:], scaled_lr, rtol=1e-6)
    assert_replicas_equal(model.variables)


@case(ranks=RANKS)
def early_stopping():
    """All ranks stop after the same epoch, as they see the same averaged loss, although their own losses differ."""
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    x, y = own_data()
    own = 10.0 * hvd.rank()  # this rank's own validation loss does not improve
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
    ]
    history = model.fit(x, y, batch_size=8, epochs=60, verbose=0, callbacks=callbacks, validation_data=(x, -y + own))
    epochs = on_every_rank(len(history.epoch))
    assert len(set(epochs)) == 1 and epochs[0] < 60
    losses = on_every_rank(history.history["val_loss"])
    assert all(each == losses[0] for each in losses)
    assert_replicas_equal(model.trainable_variables)


@case(ranks=RANKS)
def model_checkpoint_of_rank_0():
    folder = shared_folder()
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(folder / "checkpoint-{epoch}.keras"))
    x, y = own_data()
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    on_every_rank("written")
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-1.keras", "checkpoint-2.keras"]
    # It can be loaded without distribution, and training can be resumed with it.
    plain = keras.models.load_model(folder / "checkpoint-2.keras")
    np.testing.assert_array_equal(plain.predict(x, verbose=0), model.predict(x, verbose=0))
    again = hvd.load_model(folder / "checkpoint-2.keras")
    again.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert_replicas_equal(again.variables, again.optimizer.variables)
    assert int(again.optimizer.iterations) == 12


@case(ranks=RANKS, quick=thorough)
def mixed_precision():
    """`fit` under mixed_float16: an overflow on one rank skips the step on all, and replicas stay equal."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = build()
    finally:
        keras.mixed_precision.set_global_policy("float32")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    x, y = own_data()
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(x, y, batch_size=8, epochs=8, verbose=0, callbacks=[broadcast])
    assert np.isfinite(history.history["loss"]).all() and history.history["loss"][-1] < history.history["loss"][0]
    assert_replicas_equal(model.variables, model.optimizer.variables)
    before = [np.array(variable) for variable in model.trainable_variables]
    if hvd.rank() == hvd.size() - 1:
        x = x * np.float32(1e30)
    model.fit(x, y, batch_size=32, epochs=1, verbose=0)
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert_replicas_equal(model.variables, model.optimizer.variables)


@case(
    ranks=RANKS,
    over=lambda ranks: [{"averaged": averaged} for averaged in (False, True)],
    quick=lambda ranks, averaged: averaged,
)
def accumulation(averaged):
    """`backward_passes_per_step=2`: one update per two batches, by their sum unless the user asks for the mean."""
    model = build(seed=0)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01), backward_passes_per_step=2, average_aggregated_gradients=averaged
    )
    model.compile(optimizer, "mse")
    reference = build(seed=0)
    x, y = own_data(16)
    model.fit(x, y, batch_size=8, shuffle=False, epochs=1, verbose=0)

    gradients = []
    for part in (slice(0, 8), slice(8, 16)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(reference(x[part]) - y[part]))
        gradients.append(tape.gradient(loss, [each.value for each in reference.trainable_variables]))
    for variable, new, *both in zip(reference.trainable_variables, model.trainable_variables, *gradients, strict=True):
        total = np.mean(on_every_rank(np.sum(both, axis=0).tolist()), axis=0) / (2 if averaged else 1)
        np.testing.assert_allclose(new, np.array(variable) - 0.01 * total, rtol=1e-4, atol=1e-6)
    assert_replicas_equal(model.variables)


@case(ranks=RANKS)
def uneven_data():
    """Ranks with different numbers of batches agree on the minimum before training, and weight a metric by samples."""
    count = 16 + 8 * hvd.rank()
    x, y = own_data(count)
    model = build()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    steps = int(hvd.allreduce(count // 8, op=hvd.Min, name="steps"))
    assert steps == 2
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)
    model.fit(
        data,
        steps_per_epoch=steps,
        epochs=3,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )
    assert int(model.optimizer.iterations) == 6
    assert_replicas_equal(model.variables)
    errors = np.square(model.predict(x, verbose=0) - y).sum()
    total, samples = hvd.allreduce([float(errors), float(count)], op=hvd.Sum, name="errors")
    everyone = on_every_rank([float(errors), count])
    np.testing.assert_allclose(float(total) / float(samples), np.divide(*np.sum(everyone, axis=0)), rtol=1e-6)
    # Different numbers of predictions can be gathered too.
    gathered = hvd.allgather(model.predict(x, verbose=0), name="predictions")
    assert gathered.shape[0] == sum(each for _, each in everyone)

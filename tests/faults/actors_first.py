"""Two ranks of one host, as in anybody's first command; metrics, rates and stages that differ between the ranks."""

import keras
import numpy as np
from keras import layers

import hvd_sparse as hvd
from tests.parallel.training import raises, shared_folder

ROWS = 32


def _data(rank):
    draw = np.random.default_rng(rank)
    return draw.standard_normal((ROWS, 8)).astype("f4"), draw.standard_normal((ROWS, 2)).astype("f4")


def _trained(optimizer, x, y, batch, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(12, "tanh"), layers.Dense(2)])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, **options)
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


def _joined():
    """The batches of both ranks, joined: 8 rows of each."""
    return [np.concatenate([part.reshape(4, 8, -1) for part in both], 1).reshape(2 * ROWS, -1) for both in _pairs()]


def _pairs():
    return zip(_data(0), _data(1), strict=True)


def _on_one_node(recipe):
    """How far a training with the recipe ends from plain Keras's on the joined batches."""
    hvd.init()  # as in a user's script: the nodes are the hosts
    try:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.02), aggregator=recipe)
        found = _trained(optimizer, *_data(hvd.rank()), 8)
    finally:
        hvd.init(local_size=hvd.size())
    return np.max(np.abs(found - _trained(keras.optimizers.Adam(0.02), *_joined(), 16)))


def a_recipe_of_gradients_sends_everything_on_one_node():
    assert _on_one_node(hvd.recipes.hitopk(0.01)) < 1e-5


def a_recipe_of_updates_sends_everything_on_one_node():
    assert _on_one_node(hvd.recipes.recommended(0.01)) < 1e-5


def control_dense_is_plain_keras_on_one_node():
    assert _on_one_node(hvd.recipes.dense()) < 1e-5


def _with_metric(metric):
    x, y = _data(hvd.rank())
    labels = keras.utils.to_categorical(np.argmax(y, -1), 2)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(2, activation="softmax")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "categorical_crossentropy", metrics=[metric])
    logs = {}
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, told: logs.update(told))
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    mean = hvd.callbacks.MetricAverageCallback()
    try:
        model.fit(x, labels, verbose=0, callbacks=[first, note, mean])
    except TypeError as error:
        raise AssertionError("a metric with several values ends the training") from error
    own = np.asarray(logs["metric"], "f4")
    return own, np.asarray(model.history.history["metric"][-1])


def a_metric_of_several_values_is_averaged_element_by_element():
    own, mean = _with_metric(keras.metrics.F1Score(average=None, name="metric"))
    everybody = hvd.allgather_object(own.tolist())
    np.testing.assert_allclose(mean, np.mean(everybody, 0), rtol=1e-6)
    assert mean.shape == (2,) and everybody[0] != everybody[1]


def control_a_metric_of_one_value_is_averaged():
    own, mean = _with_metric(keras.metrics.CategoricalAccuracy(name="metric"))
    np.testing.assert_allclose(mean, np.mean(hvd.allgather_object(float(own))), rtol=1e-6)


def _stages_come_back(**named):
    """Saves two stages of layers of equal shapes, and loads them into new ones."""
    own = {name: f"{value}_{hvd.rank()}" for name, value in named.items()}

    def made():
        keras.backend.clear_session()
        parts = [lambda: keras.Sequential([keras.Input((6,)), layers.Dense(6, **own)]) for _ in range(2)]
        model = hvd.pipeline.Stages(parts)
        model.compile(keras.optimizers.Adam(), "mse")
        for number, variable in enumerate([*model.weights, *model.optimizer.variables[2:]]):
            variable.assign(np.full(variable.shape, 10 * hvd.rank() + number, "f4"))
        return model

    model = made()
    hvd.pipeline.save(model, folder := shared_folder())
    hvd.allgather_object("all have saved")
    other = made()
    for variable in (*other.weights, *other.optimizer.variables[2:]):
        variable.assign(np.zeros(variable.shape, "f4"))
    hvd.pipeline.load(other, folder)
    for found, wanted in zip(
        (*other.weights, *other.optimizer.variables), (*model.weights, *model.optimizer.variables), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
    other.close()
    model.close()


def stages_whose_layers_have_no_names_get_their_own_weights_back():
    _stages_come_back()


def control_stages_whose_layers_have_names_get_their_own_weights_back():
    _stages_come_back(name="layer")


def _with_reduced_rates(*callbacks):
    """Rank 0 makes no progress, and rank 1 does; the rate is reduced where there is none."""
    keras.utils.set_random_seed(5)
    x, y = _data(hvd.rank())
    model = keras.Sequential([keras.Input((8,)), layers.Dense(2, kernel_initializer="zeros")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    reducing = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.1)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y * 20.0 * hvd.rank(), batch_size=8, epochs=5, verbose=0, callbacks=[first, *callbacks, reducing])
    return model.get_weights()


def learning_rates_that_differ_are_an_error_on_all_ranks():
    with raises(ValueError, "different learning rates", "rank 0: 0.001", "rank 1: 0.01", "MetricAverageCallback"):
        _with_reduced_rates()


def control_learning_rates_that_follow_averaged_metrics_are_the_same():
    weights = hvd.allgather_object(
        [each.tolist() for each in _with_reduced_rates(hvd.callbacks.MetricAverageCallback())]
    )
    assert weights[0] == weights[1]

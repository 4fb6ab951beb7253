"""SyncBatchNormalization on P ranks, compared with Keras's layer in one process that has all batches."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from tests.parallel.cases import case, thorough
from tests.parallel.training import L, a_gpu, assert_replicas_equal, distributed

FORMS = [
    {"form": "vectors", "run": "graph"},
    {"form": "images", "run": "graph"},
    {"form": "channels_first", "run": "eager"},
    {"form": "masked", "run": "graph"},
    {"form": "unequal", "run": "eager"},
    {"form": "empty", "run": "graph"},
    {"form": "far", "run": "graph"},
    {"form": "half", "run": "graph"},
]
UNEVEN = ("images", "masked", "unequal", "empty")  # forms in which it matters which rank has which samples


def _batches(form):
    """Each rank's inputs and masks, and the axis of the features."""
    generator = np.random.default_rng(5)
    shape = {"images": (4, 3, 5, 6), "channels_first": (4, 6, 3), "masked": (4, 5, 6)}.get(form, (4, 6))
    axis = 1 if form == "channels_first" else -1
    inputs, masks = [], []
    for rank in range(hvd.size()):
        rows = {"unequal": rank + 2, "empty": 8 * (rank == 0)}.get(form, shape[0])
        values = generator.normal(rank, 1 + rank, (rows, *shape[1:])) + (1e4 if form == "far" else 0)
        inputs.append(values.astype("f2" if form == "half" else "f4"))
        masks.append(generator.random((rows, *shape[1:-1])) < 0.3 + 0.2 * rank if form == "masked" else None)
    return inputs, masks, axis


def _passed(layer, inputs, mask, weights):
    """The outputs, and the gradients of a weighted sum of them."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True, mask=mask)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32) * weights)
    return outputs, tape.gradient(loss, [inputs, layer.gamma.value, layer.beta.value])


@case(ranks=(2, 3), over=lambda ranks: FORMS if ranks == 2 else [form for form in FORMS if form["form"] in UNEVEN])
def statistics_and_gradients_are_those_of_one_process(form, run):
    inputs, masks, axis = _batches(form)
    policy = "mixed_float16" if form == "half" else "float32"
    generator = np.random.default_rng(6)
    weights = [generator.normal(size=each.shape).astype("f4") for each in inputs]
    sync = hvd.SyncBatchNormalization(axis=axis, momentum=0.7, dtype=policy)
    whole = keras.layers.BatchNormalization(axis=axis, momentum=0.7, dtype=policy)
    joined = [None if any(part is None for part in parts) else np.concatenate(parts) for parts in (inputs, masks)]
    start = [np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6), np.zeros(6), np.ones(6)]
    for layer in (sync, whole):
        layer.build(joined[0].shape)
        layer.set_weights(start)
    me = hvd.rank()
    passed = tf.function(_passed) if run == "graph" else _passed
    mask = None if masks[me] is None else tf.constant(masks[me])
    outputs, gradients = passed(sync, tf.constant(inputs[me]), mask, tf.constant(weights[me]))
    expected, by_whole = _passed(whole, tf.constant(joined[0]), joined[1], np.concatenate(weights))
    begin = sum(len(each) for each in inputs[:me])
    mine = slice(begin, begin + len(inputs[me]))
    loose = {"far": 1e-2, "half": 2e-3}.get(form, 2e-5)

    def equal(actual, wanted):
        np.testing.assert_allclose(np.asarray(actual, "f8"), np.asarray(wanted, "f8"), rtol=loose, atol=loose)

    equal(outputs, expected[mine])
    equal(gradients[0], by_whole[0][mine])
    for own, wanted in zip(gradients[1:], by_whole[1:], strict=True):
        equal(hvd.allreduce(own, op=hvd.Sum), wanted)
    for own, wanted in zip(sync.get_weights()[2:], whole.get_weights()[2:], strict=True):
        np.testing.assert_allclose(own, wanted, rtol=loose, atol=1e-6)
    assert_replicas_equal(sync.variables)
    np.testing.assert_array_equal(sync(joined[0]), _with_weights_of(sync, whole)(joined[0]))


def _with_weights_of(layer, other):
    other.set_weights(layer.get_weights())
    return other


def _network(norm):
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6,)),
            norm(),
            L.Dense(8, "relu"),
            norm(scale=False),
            L.Dense(8, "tanh"),
            norm(momentum=0.5),
            L.Dense(2),
        ]
    )


def _data():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(hvd.size() * 16, 6)).astype("f4")
    return x, np.tanh(x @ np.linspace(-1, 1, 12).reshape(6, 2)).astype("f4")


def _of_this_rank(values, each=4):
    """This rank's samples out of global batches of `each` times P samples."""
    parts = values.reshape(-1, hvd.size(), each, *values.shape[1:])
    return parts[:, hvd.rank()].reshape(-1, *values.shape[1:])


@case(ranks=(2, 3), over=lambda ranks: [{"xla": ranks == 3}], quick=thorough)
def a_training_is_that_of_one_process(xla):
    """Also if ranks have made and traced other layers before; XLA is not used, and a warning says so."""
    for _ in range(hvd.rank()):
        extra = _network(hvd.SyncBatchNormalization)
        tf.function(lambda values, model=extra: model(values, training=True)).get_concrete_function(tf.zeros([4, 6]))
    x, y = _data()
    model, whole = _network(hvd.SyncBatchNormalization), _network(L.BatchNormalization)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    whole.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", jit_compile=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if xla:
            with a_gpu():
                model.compile(distributed(optimizer, "dense"), "mse")
        else:
            model.compile(distributed(optimizer, "dense"), "mse")
        options = {"epochs": 3, "verbose": 0, "shuffle": False}
        mine = _of_this_rank(x), _of_this_rank(y)
        model.fit(*mine, batch_size=4, validation_data=mine, **options)
    whole.fit(x, y, batch_size=4 * hvd.size(), **options)
    assert any("cannot compile the collectives" in str(warning.message) for warning in told) == xla
    for own, wanted in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-5)
    assert_replicas_equal(model.variables, model.optimizer.variables)
    np.testing.assert_allclose(model.predict(x, verbose=0), whole.predict(x, verbose=0), rtol=1e-3, atol=1e-4)

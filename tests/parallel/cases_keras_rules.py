"""Gradients around the exchange: clipping, local variables, embedding rows, missing gradients and constant ones."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from tests.parallel.cases import case
from tests.parallel.training import EVERYTHING, L, assert_replicas_equal, distributed, raises


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"clipping": name, "sparse": sparse}
        for name in ("clipnorm", "global_clipnorm", "clipvalue")
        for sparse in (False, True)
    ],
)
def clipping_follows_the_recipe(clipping, sparse):
    """Dense recipes clip the mean; sparse recipes clip each rank's own gradient, at threshold / sqrt(P)."""
    size = hvd.size()
    all_gradients = np.random.default_rng(0).normal(size=(size, 2, 8)).astype("f4") * 8
    variables = [keras.Variable(np.zeros(8, "f4")) for _ in range(2)]
    optimizer = distributed(keras.optimizers.SGD(1.0, **{clipping: 1.0}), EVERYTHING if sparse else hvd.recipes.dense())
    optimizer.apply([tf.constant(gradient) for gradient in all_gradients[hvd.rank()]], variables)

    def clipped(pair, threshold):
        if clipping == "clipvalue":
            return np.clip(pair, -threshold, threshold)
        norms = np.linalg.norm(pair, axis=1, keepdims=True)
        if clipping == "global_clipnorm":
            norms = np.linalg.norm(pair)
        return pair * np.minimum(1.0, threshold / norms)

    if sparse:
        expected = np.mean([clipped(pair, size**-0.5) for pair in all_gradients], axis=0)
    else:
        expected = clipped(all_gradients.mean(axis=0), 1.0)
    np.testing.assert_allclose([-np.array(variable) for variable in variables], expected, rtol=1e-6, atol=1e-7)
    assert_replicas_equal(variables)


@case(ranks=(2,))
def a_global_norm_does_not_mix_shared_and_local_gradients():
    shared, local = keras.Variable(np.zeros(2, "f4")), keras.Variable(np.zeros(2, "f4"))
    optimizer = distributed(keras.optimizers.SGD(1.0, global_clipnorm=1.0), hvd.recipes.dense())
    optimizer.register_local_var(local)
    optimizer.apply([tf.constant([3.0, 4.0]), tf.constant([0.0, 1.0 + 9 * hvd.rank()])], [shared, local])
    assert_replicas_equal([shared])
    np.testing.assert_allclose(shared, [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(local, [0.0, -[0.5, 1.0][hvd.rank()]], rtol=1e-6)


@case(ranks=(2,), over=lambda ranks: [{"scale": scale} for scale in (True, False)])
def local_variables_keep_their_own_gradient(scale):
    local_layer = L.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), L.Dense(1, use_bias=False, kernel_initializer="ones"), local_layer])
    optimizer = distributed(
        keras.optimizers.SGD(1.0), EVERYTHING, local_layers=[local_layer], scale_local_gradients=scale
    )
    own = tf.constant([[2.0 + 2 * hvd.rank()]])
    optimizer.apply([own, own], model.trainable_variables)
    np.testing.assert_array_equal(model.layers[0].kernel, [[1.0 - 3.0]])
    np.testing.assert_array_equal(local_layer.kernel, -own / (2 if scale else 1))


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"recipe": recipe, "as_dense": as_dense} for recipe in ("dense", "all") for as_dense in (True, False)
    ],
)
def rows_of_embeddings_are_averaged_exactly(recipe, as_dense):
    """Ranks touch different rows, some of them twice, and different numbers of rows."""
    rank, size = hvd.rank(), hvd.size()
    table, rest = keras.Variable(np.zeros((6, 3), "f4"), name="table"), keras.Variable(np.zeros(2, "f4"), name="rest")
    recipe = hvd.recipes.dense() if recipe == "dense" else EVERYTHING
    optimizer = distributed(keras.optimizers.SGD(1.0), recipe, sparse_as_dense=as_dense)

    def own(rank):
        indices = np.array([rank, 5, rank, *range(rank)])
        return indices, np.arange(len(indices) * 3).reshape(-1, 3).astype("f4")

    indices, values = own(rank)
    slices = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([6, 3]))
    for _ in range(2):
        optimizer.apply([slices, tf.constant([1.0, 2.0])], [table, rest])
    expected = np.zeros((6, 3))
    for other in range(size):
        np.add.at(expected, *own(other))
    np.testing.assert_array_equal(-np.array(table), 2 * expected / size)
    np.testing.assert_array_equal(rest, [-2.0, -4.0])


@case(ranks=(2,))
def a_rank_may_touch_no_row():
    table = keras.Variable(np.zeros((4, 2), "f4"), name="table")
    optimizer = distributed(keras.optimizers.SGD(1.0))
    count = hvd.rank()
    slices = tf.IndexedSlices(tf.ones([count, 2]), tf.range(count), tf.constant([4, 2]))
    optimizer.apply([slices], [table])
    np.testing.assert_array_equal(table, [[-0.5, -0.5], [0, 0], [0, 0], [0, 0]])


@case(ranks=(2,))
def variables_without_gradient_stay_without():
    used, unused = keras.Variable([1.0], name="used"), keras.Variable([1.0], name="unused")
    optimizer = distributed(keras.optimizers.SGD(1.0))
    optimizer.apply([tf.ones([1]), None], [used, unused])
    with raises(ValueError, "unused had no gradient and now has one"):
        optimizer.apply([tf.ones([1]), tf.ones([1])], [used, unused])
    np.testing.assert_array_equal([used, unused], [[0.0], [1.0]])


@case(ranks=(2,), over=lambda ranks: [{"recipe": recipe} for recipe in ("dense", "topk", "hitopk")])
def gradients_that_are_constants_are_exchanged_by_each_step(recipe):
    """TensorFlow folds constant expressions while it optimises a graph, possibly on one rank only."""
    variable = keras.Variable(np.zeros(4, "f4"))
    optimizer = distributed(keras.optimizers.SGD(1.0), recipe)

    @tf.function
    def step(batch):
        optimizer.apply([tf.constant([1.0, 0.0, 0.0, 0.0])], [variable])
        return tf.reduce_sum(batch)

    for size in (3, 3 + hvd.rank(), 3 + hvd.rank()):
        step(tf.zeros([size]))
    np.testing.assert_array_equal(variable, [-3.0, 0.0, 0.0, 0.0])

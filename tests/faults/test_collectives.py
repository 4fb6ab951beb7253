"""Collectives of objects that users commonly have, on one rank."""

import keras
import tensorflow as tf

import hvd_sparse as hvd


def test_variables_of_a_lone_rank():
    hvd.init()
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    hvd.broadcast_variables(model.variables, root_rank=0)


def test_a_number_of_a_lone_rank():
    hvd.init()
    assert float(hvd.allreduce(2.5)) == 2.5


def test_a_list_of_variables_of_a_lone_rank():
    hvd.init()
    total = hvd.allreduce([keras.Variable([1.0, 2.0]), keras.Variable([3.0, 4.0])])
    assert total.numpy().tolist() == [[1, 2], [3, 4]]


def test_a_lone_rank_starts_in_a_graph():
    with tf.Graph().as_default():
        hvd.init()
    assert hvd.size() == 1

"""Indices that do not fit int32, and impossible stream shapes, are refused and not mistaken for others."""

import ast
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

try:
    from hvd_sparse.collectives import streams
    from hvd_sparse.exchange import rows
except ImportError:  # in commits whose package is flat
    from hvd_sparse import rows, streams

BEYOND = 2**32 + 1  # becomes 1 if its upper half is dropped


@pytest.mark.parametrize("indices", [np.array([BEYOND]), tf.constant([BEYOND], tf.int64)], ids=["array", "tensor"])
def test_a_sparse_sum_refuses_what_int32_cannot_hold(indices):
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(BEYOND)):
        hvd.ops.sparse_sum([1.0], indices, 4)


def test_a_sparse_sum_takes_int64():
    total = hvd.ops.sparse_sum([1.0, 2.0], tf.constant([1, 3], tf.int64), 4)
    np.testing.assert_array_equal(total, [0, 1, 0, 2])


def test_rows_that_int32_cannot_hold_are_not_added_to_others():
    merged = rows.merge(tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, BEYOND], tf.int64), tf.constant([4, 3])))
    np.testing.assert_array_equal(merged.indices, [1, -1])


@pytest.mark.parametrize("row", [2**31, BEYOND, -(2**31) - 1, -BEYOND])
def test_rows_beyond_int32_are_marked_on_either_side(row):
    merged = rows.merge(tf.IndexedSlices(tf.ones([2, 3]), tf.constant([3, row], tf.int64), tf.constant([4, 3])))
    assert set(merged.indices.numpy()) == {-1, 3}


@pytest.mark.parametrize("indices", [[0, BEYOND], [0, 4], [-1, 0]], ids=["beyond int32", "beyond", "negative"])
def test_an_exchange_refuses_rows_that_the_variable_does_not_have(indices):
    hvd.init()
    variable = tf.Variable(tf.zeros([4, 3]))
    gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant(indices, tf.int64), tf.constant([4, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected row numbers in \[0, 4\)"):
        hvd.GradientExchange()([gradient], [variable])


@pytest.mark.parametrize("width", [-1, 0])
def test_a_stream_has_a_width(width):
    with pytest.raises(ValueError, match=f"width of at least 1, got size 4 and width {width}"):
        streams.reduce(tf.zeros([0], tf.int32), 4, width, tf.float32)


def test_no_example_sends_pickled_objects():
    examples = pathlib.Path(__file__).parents[2] / "examples"
    sends = {"broadcast_object", "broadcast_object_fn", "allgather_object"}
    for path in examples.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in sends:
                assert ast.unparse(node.value) == "hvd", f"{path} sends objects by Horovod's own {node.attr}"

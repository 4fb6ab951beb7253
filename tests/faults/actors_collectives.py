"""Bugs in collectives of objects that users commonly have; on two ranks."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

EACH = np.arange(4, dtype=np.float32).reshape(2, 2)


def _model(units=3, before=0):
    """A built model with a different seed on each rank; `before` other objects are made first and change its names."""
    for _ in range(before):
        keras.layers.Dense(1)
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.Input([4]), keras.layers.Dense(units), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _of_rank_0(variables):
    """Rank 0's values, sent in another way than the one under test."""
    values = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    sent = [hvd.broadcast(tf.constant(value.astype(np.float64)), 0).numpy() for value in values]
    return [each.astype(value.dtype) for each, value in zip(sent, values, strict=True)]


def _require_same(variables, expected):
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value, err_msg=variable.path)


def variables_of_a_model():
    model = _model()
    expected = _of_rank_0(model.variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    _require_same(model.variables, expected)


def variables_of_an_optimizer():
    model = _model()
    model.fit(np.full([8, 4], 1.0 + hvd.rank()), np.ones([8, 1]), epochs=1, verbose=0)
    expected = _of_rank_0(model.optimizer.variables)
    hvd.broadcast_variables(model.optimizer.variables, root_rank=0)
    _require_same(model.optimizer.variables, expected)


def variables_of_other_names():
    """A rank that has created other objects before has other names for the same variables."""
    model = _model(before=hvd.rank() * 5)
    expected = _of_rank_0(model.variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    _require_same(model.variables, expected)


def variables_of_other_shapes():
    model = _model(units=3 + hvd.rank())
    try:
        hvd.broadcast_variables(model.variables, root_rank=0)
    except ValueError as error:
        told = str(error)
    else:
        raise AssertionError("one rank has other shapes")
    for part in ("at position 0", "rank 0 has", "shape [4, 3]", "rank 1 has", "shape [4, 4]", "kernel"):
        assert part in told, told


def variables_of_another_number():
    variables = [keras.Variable(np.ones([2])) for _ in range(2 + hvd.rank())]
    try:
        hvd.broadcast_variables(variables, root_rank=0)
    except ValueError as error:
        assert "at position 2" in str(error) and "rank 0 has nothing" in str(error), str(error)
    else:
        raise AssertionError("one rank has one variable more")


def variables_of_dtypes_that_horovod_does_not_know():
    for dtype in ("bfloat16", "uint32", "uint64", "complex64", "bool", "int8"):
        values = [np.arange(3) + own for own in range(2)]
        own, first = (tf.cast(values[number], dtype) for number in (hvd.rank(), 0))
        variable = tf.Variable(own)
        hvd.broadcast_variables([variable], root_rank=0)
        assert np.array_equal(variable.numpy(), first.numpy()), dtype


def allreduce_of_what_is_no_tensor():
    share = hvd.rank() + 1  # 1 and 2: their mean is 1.5, their sum 3
    assert float(hvd.allreduce(float(share))) == 1.5
    assert int(hvd.allreduce(share, op=hvd.Sum)) == 3
    assert hvd.allreduce([share, share * 2.0]).numpy().tolist() == [1.5, 3.0]
    np.testing.assert_array_equal(hvd.allreduce(EACH * share), EACH * 1.5)
    assert hvd.allreduce(np.float64(share)).dtype == tf.float64
    np.testing.assert_array_equal(hvd.allreduce(keras.Variable(EACH * share)), EACH * 1.5)
    assert float(hvd.allreduce(float(share), "loss")) == 1.5, "the name is second in horovod.tensorflow.keras"


def collectives_of_what_is_no_tensor_in_a_function():
    rank = hvd.rank()

    @tf.function
    def gather():
        gathered = hvd.allgather([rank, rank + 1])
        sent = hvd.broadcast(10.0 * rank, root_rank=1)
        swapped = hvd.alltoall(np.array([rank, rank + 5]))
        return gathered, sent, swapped, hvd.allreduce(float(rank), op=hvd.Max)

    gathered, sent, swapped, largest = gather()
    assert gathered.numpy().tolist() == [0, 1, 1, 2]
    assert float(sent) == 10.0 and float(largest) == 1.0
    assert swapped.numpy().tolist() == ([0, 1] if rank == 0 else [5, 6])

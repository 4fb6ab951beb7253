"""Slots: which variables of Keras's optimizers accumulate past steps."""

import keras
import pytest
import tensorflow as tf

from hvd_sparse.optimizers import slots


@pytest.mark.parametrize(
    "optimizer, count",
    [
        (keras.optimizers.SGD(0.1, momentum=0.9), 2),
        (keras.optimizers.SGD(0.1), 0),
        (keras.optimizers.RMSprop(0.1, momentum=0.9), 2),
        (keras.optimizers.Adam(0.1), 0),
        (keras.optimizers.Adafactor(0.1), 0),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_velocities_are_those_of_sgd_and_rmsprop_once_they_are_built(optimizer, count):
    optimizer = type(optimizer).from_config(optimizer.get_config())
    assert slots.velocities(optimizer) == []
    optimizer.build([tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])])
    assert len(slots.velocities(optimizer)) == count


class Unknown(keras.optimizers.Optimizer):
    """An optimizer that the table of kinds does not have."""


def test_an_optimizer_that_nobody_knows_has_none():
    optimizer = Unknown(0.1)
    optimizer.build([tf.Variable([1.0])])
    assert slots.velocities(optimizer) == [] and slots.momenta(optimizer) == {}

"""The hook into Keras; these tests show whether it works with a version of Keras."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
import lars
from lars.layerwise import LayerwiseOptimizer

TESTED_VERSIONS = ("3.15",)


def test_this_version_of_keras_is_one_that_was_tested():
    assert keras.__version__.startswith(TESTED_VERSIONS)


def test_what_is_overridden_is_there_with_these_parameters():
    method = keras.optimizers.Optimizer._backend_update_step
    assert list(inspect.signature(method).parameters) == ["self", "grads", "trainable_variables", "learning_rate"]


def test_nothing_else_that_is_private_is_overridden():
    own = {name for base in (LayerwiseOptimizer, lars.LARS, lars.LAMB) for name in vars(base)}
    theirs = set(dir(keras.optimizers.SGD)) - set(dir(object))
    private = {name for name in own & theirs if name.startswith("_") and not name.endswith("__")}
    assert private - {"_abc_impl"} == {"_backend_update_step"}


def test_all_variables_come_in_one_call():
    calls = []

    class Noting(lars.LARS):
        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            calls.append(len(grads))
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    Noting().apply([tf.ones([1])] * 3, [keras.Variable([1.0]) for _ in range(3)])
    assert calls == [3]


@pytest.mark.parametrize("make", [lars.LARS, lars.LAMB])
def test_one_variable_at_a_time_is_the_same(make):
    """Keras's public `update_step`, for users who call it directly."""
    results = []
    for together in (True, False):
        variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0, 4.0])]
        gradients = [tf.constant([1.0, -1.0]), tf.constant([0.5, 0.25])]
        optimizer = make(0.5)
        optimizer.build(variables)
        if together:
            optimizer.apply(gradients, variables)
        else:
            for gradient, variable in zip(gradients, variables, strict=True):
                optimizer.update_step(gradient, variable, optimizer.learning_rate)
        results.append([variable.numpy() for variable in variables])
    np.testing.assert_array_equal(*results)


def test_hvd_sparse_finds_the_velocities():
    """For the callbacks' momentum correction: it treats LARS as SGD, whose velocities contain past rates too."""
    from hvd_sparse.optimizers import slots

    hvd.init()
    optimizer = hvd.DistributedOptimizer(lars.LARS(0.5))
    variable = keras.Variable([3.0, 4.0])
    optimizer.apply([tf.constant([1.0, 0.0])], [variable])
    (velocity,) = slots.velocities(optimizer)
    np.testing.assert_allclose(velocity, [3.0, 4.0] - variable.numpy(), atol=1e-6)

"""`optimizer.set_weights` while the exchange keeps the slots: what the optimizer has, or all that a file would have."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.transport.communicator import Grid
from tests import simulation, threads
from tests.keras.nodes import OPTIMIZERS, F
from tests.keras.test_local_updates import distributed, sending
from tests.keras.test_momentum import RATE, SHAPES, gradients, weights


@pytest.mark.parametrize("name", ["Adam", "LAMB"])
def test_giving_an_optimizer_the_variables_that_it_has_changes_nothing(name):
    """The exchange keeps its slots, which are not among them."""

    def last(again):
        def one_rank(grid):
            optimizer = distributed(OPTIMIZERS[name][0](), sending(), grid)
            variables = [keras.Variable(value, name=each) for each, value in zip(SHAPES, weights(), strict=True)]
            for step in range(6):
                if again and step == 3:
                    optimizer.set_weights([each.numpy() for each in optimizer.variables])
                optimizer.apply([tf.constant(each) for each in gradients(grid.world.rank, step)], variables)
            return [variable.numpy() for variable in variables]

        return threads.run(2, 1, one_rank)[0]

    for ours, expected in zip(last(True), last(False), strict=True):
        simulation.same_bits(ours, expected)


def test_values_that_fit_no_list_of_variables_are_refused():
    optimizer = distributed(keras.optimizers.Adam(RATE), sending(), Grid.lone())
    optimizer.build([keras.Variable(value, name=each) for each, value in zip(SHAPES, weights(), strict=True)])
    own = [each.numpy() for each in optimizer.variables]
    with pytest.raises(
        ValueError, match=f"Expected the values of {len(own)} variables.* or of {len(own) + 2 * len(SHAPES)}"
    ):
        optimizer.set_weights([*own, np.zeros(3, F)])
    with pytest.raises(ValueError, match="Expected a value of shape"):
        optimizer.set_weights([*own[:-1], np.zeros([7], F)])

"""The end of an exchange."""

import time

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.aggregators import transaction
from hvd_sparse.transport.communicator import LoneCommunicator


def test_in_a_graph_nothing_is_written_before_all_ranks_agree():
    """Operations of a graph run as early as possible: one that waits for nothing would have written by then."""
    variable = tf.Variable(0.0)

    def told_late() -> np.int32:
        time.sleep(0.2)
        return np.int32(1)

    def culprit():
        return tf.ensure_shape(tf.numpy_function(told_late, [], tf.int32), [])

    @tf.function
    def ended():
        exchange = transaction.Exchange(tf.zeros([1]), culprit, None, (transaction.Update(variable, 1.0),), {})
        return transaction.commit([exchange], ["it"], LoneCommunicator(), "test")

    with pytest.raises(tf.errors.InvalidArgumentError, match="it on rank 0. Nothing was written"):
        ended()
    assert float(variable) == 0.0

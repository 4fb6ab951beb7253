"""How a job with sharded servers ends if a rank ends with an error, as its user sees it."""

from __future__ import annotations

from tests.parallel import launch

_SCRIPT = """
import keras, numpy as np
import hvd_sparse as hvd
hvd.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(hvd.servers.ShardedServers(keras.optimizers.SGD(0.01)), "mse")
x, y = np.ones((8, 4), "f4"), np.ones((8, 2), "f4")
model.fit(x, y, verbose=0)
hvd.allgather_object("all have begun")
if hvd.rank() == 1:
    raise ValueError("bad luck on rank 1")
model.fit(x, y, epochs=1_000_000, verbose=0)
"""


def test_a_rank_that_ends_by_an_error_ends_the_job():
    """It does not continue to serve others, unlike a rank that has finished training."""
    ended = launch.horovodrun(2, ["-c", _SCRIPT], limit=300)
    assert ended.status != 0
    assert "bad luck on rank 1" in ended.output

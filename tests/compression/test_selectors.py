"""The random window of MSTopK: its position follows from the seed, the vector and the step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.selectors import MSTopK, rounding_seed
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Grid
from tests.simulation import same_bits

SIZE, KEPT, SEED = 2**15, 1024, 3


def test_each_vector_and_step_has_a_window_of_its_own_that_a_resumed_run_finds_again():
    """A seed that does not advance, or that vectors share, would send the same window again and again."""
    vector = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    part = MSTopK(KEPT / SIZE, samplings=3, seed=SEED)
    seen = set()
    for number in (0, 1, 2):
        state = part.create(Spec(SIZE, Grid.lone(), number=number))
        for step in range(3):
            selection = part.compress(tf.constant(vector[np.newaxis]), state)
            for variable, value in selection.updates:
                variable.assign(value)
            _, indices = ops.mstopk(tf.constant(vector), KEPT, samplings=3, seed=SEED + (number << 32) + step)
            same_bits(selection.slices.indices.numpy(), indices.numpy())
            seen.add(indices.numpy().tobytes())
    assert len(seen) == 9


@pytest.mark.parametrize("base, wanted", [(5, 7), (2**63 + 5, 7 - 2**63), (2**64 - 1, 1), (2**64 + 3, 5)])
def test_seeds_of_rounding_go_round_at_64_bits(base, wanted):
    assert int(rounding_seed(base, Spec(10, Grid.lone()), tf.constant(2, tf.int64))) == wanted

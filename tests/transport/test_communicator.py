"""Groups of ranks and their collectives."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.transport.communicator import Grid, LoneCommunicator
from tests import threads


def test_a_lone_rank_is_the_first_of_its_group_whatever_its_number_in_the_world():
    lone = LoneCommunicator("cross", 3)
    assert (lone.rank, lone.size, list(lone.ranks)) == (0, 1, [3])
    assert lone.allreduce(tf.constant([2.0]), "sum", "x").numpy() == [2.0]


def test_rows_keep_their_shape_on_the_way_to_other_ranks():
    def one_rank(grid):
        rows = tf.fill([3, 2], float(grid.world.rank))
        got, counts = grid.world.alltoall_ragged(rows, tf.constant([1, 2]), "rows")
        return got.numpy().tolist(), counts.numpy().tolist()

    assert threads.run(2, 1, one_rank) == [
        ([[0.0, 0.0], [1.0, 1.0]], [1, 1]),
        ([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]], [2, 2]),
    ]


def test_without_others_a_rank_is_alone_in_all_groups():
    assert [(each.rank, each.size) for each in Grid.lone()] == [(0, 1)] * 3

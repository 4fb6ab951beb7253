"""Properties that every transport must have, tested on ranks as threads."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.averaging.blocks import Blocks
from tests import threads
from tests.averaging import simulation
from tests.averaging.members import MEMBERS, Member
from tests.simulation import same_bits

ROUNDS = (0, 1, 7)
CASES = [
    pytest.param(member, ranks, rotate, id=f"{name}-{ranks}-{rotate}")
    for name, member in MEMBERS.items()
    for ranks, rotate in zip(member.ranks, (True, False, True, True), strict=False)
]


def rounds(member: Member, own: np.ndarray, rotate: bool) -> list[list]:
    """A transport's results for vectors [P, d] in each of `ROUNDS`, by rank."""

    def one_rank(grid):
        channel = member.transport.open(own.shape[1], grid.world, rotate, "law")
        made = [channel.average(tf.constant(own[grid.world.rank]), tf.constant(number, tf.int64)) for number in ROUNDS]
        channel.close()
        return made

    return threads.run(len(own), 1, one_rank)


@pytest.mark.parametrize("member, ranks, rotate", CASES)
def test_laws(member, ranks, rotate):
    size = 23
    own = simulation.vectors(ranks, size)
    exact = simulation.averaged(own, 0, np.zeros((2, ranks, ranks), bool), rotate).vectors
    by_rank = rounds(member, own, rotate)
    for rank, made in enumerate(by_rank):
        for number, averaged in zip(ROUNDS, made, strict=True):
            _is_well_formed(averaged, rank, ranks, number)
            new, arrived, expected = averaged.vector.numpy(), averaged.arrived.numpy(), averaged.expected.numpy()
            if not member.loses:
                np.testing.assert_array_equal(arrived, expected)
                same_bits(new, exact[rank])
            _is_in_the_hull(new, own)
            block = Blocks(size, ranks).block_of(rank, number, rotate)
            if not arrived[0].any():  # the owner of a block then has only its own vector
                length = Blocks(size, ranks).length
                here = slice(block * length, (block + 1) * length)
                same_bits(new[here], own[rank][here])


def _is_well_formed(averaged, rank: int, ranks: int, number: int) -> None:
    for pieces in (averaged.expected, averaged.arrived):
        assert pieces.dtype == tf.int64 and pieces.shape == (2, ranks)
        assert not pieces.numpy()[:, rank].any()
    assert (averaged.arrived.numpy() <= averaged.expected.numpy()).all()
    assert averaged.vector.dtype == tf.float32 and int(averaged.round) == number


def _is_in_the_hull(new: np.ndarray, own: np.ndarray) -> None:
    """Asserts that each element is a mean of the ranks' elements, up to the rounding of a sum."""
    slack = len(own) * np.abs(own).max(axis=0) * np.finfo(np.float32).eps
    assert (new >= own.min(axis=0) - slack).all() and (new <= own.max(axis=0) + slack).all()


@pytest.mark.parametrize("name", MEMBERS)
def test_a_lone_rank_keeps_its_vector_in_a_graph_too(name):
    (grid,) = threads.grids(1, 1)
    own = simulation.vectors(1, 9)[0]
    channel = MEMBERS[name].transport.open(9, grid.world, True, "graph")
    held = tf.Variable(own)

    @tf.function
    def step(round):
        return channel.average(held.read_value(), round).vector

    for number in range(2):
        same_bits(step(tf.constant(number, tf.int64)).numpy(), own)
    channel.close()


@pytest.mark.parametrize("name", MEMBERS)
def test_a_rank_whose_vector_is_not_finite_is_told_of_there_at_least(name):
    def one_rank(grid):
        channel = MEMBERS[name].transport.open(9, grid.world, True, "law")
        told = [int(channel.culprit(tf.constant(code))) for code in (0, 2 if grid.world.rank == 1 else 0)]
        channel.close()
        return told

    told = threads.run(2, 1, one_rank)
    assert told[1] == [0, 2] and told[0] in ([0, 0], [0, 2])


@pytest.mark.parametrize("name", MEMBERS)
def test_it_describes_itself(name):
    assert MEMBERS[name].transport.account()["part"] == type(MEMBERS[name].transport).__name__

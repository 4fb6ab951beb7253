"""Averaging over collectives, equal to simple NumPy bit for bit; and its losses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.averaging import Lossy, Reliable, theory
from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.lossy import lost
from hvd_sparse.averaging.transports import Transport
from tests import threads
from tests.averaging import simulation
from tests.simulation import same_bits

SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**63 - 1)
ROUNDS = st.integers(0, 2**40)


def one_round(transport: Transport, own: np.ndarray, round: int, rotate: bool) -> list:
    """The results for vectors [P, d], by rank."""

    def one_rank(grid):
        channel = transport.open(own.shape[1], grid.world, rotate, "average")
        return channel.average(tf.constant(own[grid.world.rank]), tf.constant(round, tf.int64))

    return threads.run(len(own), 1, one_rank)


@given(st.integers(1, 8), SIZES, SEEDS, ROUNDS, st.sampled_from([0.0, 0.2, 0.7, 1.0]), st.booleans())
def test_it_is_that_of_numpy_to_the_bit(ranks, size, seed, round, probability, rotate):
    own = simulation.vectors(ranks, size, seed % 2**32)
    made = one_round(Lossy(probability, seed), own, round, rotate)
    expected = simulation.averaged(own, round, simulation.drawn(probability, seed, round, ranks), rotate)
    for rank, averaged in enumerate(made):
        same_bits(averaged.vector.numpy(), expected.vectors[rank])
        np.testing.assert_array_equal(averaged.arrived, expected.arrived[:, :, rank])


@pytest.mark.parametrize("ranks, size", [(ranks, size) for ranks in range(1, 9) for size in (5, 16)])
def test_without_loss_it_is_exact_and_with_all_lost_it_is_local(ranks, size):
    tf.constant(0.0)  # from now on TensorFlow would return this scalar for -0.0
    own = simulation.vectors(ranks, size)
    rotate = bool(ranks % 2)
    exact = one_round(Reliable(), own, 3, rotate)
    for mean, averaged in zip(exact, one_round(Lossy(0.0, 9), own, 3, rotate), strict=True):
        same_bits(averaged.vector.numpy(), mean.vector.numpy())
        same_bits(mean.vector.numpy(), exact[0].vector.numpy())
        np.testing.assert_array_equal(averaged.arrived, averaged.expected)
    for kept, before in zip(one_round(Lossy(1.0), own, 3, rotate), own, strict=True):
        same_bits(kept.vector.numpy(), before)


@given(st.integers(1, 8), SIZES, ROUNDS, st.booleans())
def test_blocks_and_owners(ranks, size, round, rotate):
    blocks = Blocks(size, ranks)
    vector = np.arange(1.0, size + 1.0, dtype=np.float32)
    cut = blocks.cut(tf.constant(vector))
    assert cut.shape == (ranks, blocks.length) and blocks.padded - size < max(ranks, blocks.length) + ranks
    same_bits(blocks.join(cut).numpy(), vector)
    number = tf.constant(round, tf.int64)
    owned = blocks.by_owner(cut, number, rotate)
    same_bits(blocks.by_block(owned, number, rotate).numpy(), cut.numpy())
    for rank in range(ranks):
        block = blocks.block_of(rank, round, rotate)
        assert blocks.owner_of(block, round, rotate) == rank
        same_bits(owned[rank].numpy(), cut[block].numpy())


def test_draws_are_reproducible_and_differ_by_seed_round_and_place():
    drawn = [lost(0.3, seed, tf.constant(round, tf.int64), 8).numpy() for seed in (0, 1) for round in (0, 1)]
    again = lost(0.3, 1, tf.constant(1, tf.int64), 8).numpy()
    np.testing.assert_array_equal(drawn[-1], again)
    assert len({each.tobytes() for each in drawn}) == 4
    assert not np.array_equal(again[0], again[1]) and not np.array_equal(again[0], again[0].T)
    assert not again[:, np.arange(8), np.arange(8)].any()


def test_messages_are_lost_as_often_as_they_should_be():
    # Fewer than one seed in 15,000 lies beyond four standard errors.
    for probability in (0.01, 0.2):
        drawn = np.stack([lost(probability, 5, tf.constant(round, tf.int64), 16).numpy() for round in range(25)])
        count = 25 * 2 * 16 * 15
        error = np.sqrt(probability * (1 - probability) / count)
        assert abs(drawn.sum() / count - probability) < 4 * error


@given(st.integers(2, 6), SEEDS, ROUNDS, st.sampled_from([0.2, 0.7]), st.booleans())
def test_its_blocks_are_those_that_the_matrix_tells(ranks, seed, round, probability, rotate):
    own = simulation.vectors(ranks, ranks, seed % 2**32)
    losses = simulation.drawn(probability, seed, round, ranks)
    owners = Blocks(ranks, ranks).owner_of(np.arange(ranks), round % ranks, rotate)
    matrices = theory.mixing_matrices(np.broadcast_to(losses, (ranks, *losses.shape)), owners)
    new = np.stack([averaged.vector.numpy() for averaged in one_round(Lossy(probability, seed), own, round, rotate)])
    told = np.einsum("bji,jb->ib", matrices, own.astype(np.float64))
    np.testing.assert_allclose(new, told, rtol=1e-5, atol=1e-5 * np.abs(own).max())


@pytest.mark.parametrize(
    "made, told",
    [
        (lambda: Lossy(-0.1), r"probability of loss in \[0, 1\], got -0.1"),
        (lambda: Lossy(1.1), r"probability of loss in \[0, 1\], got 1.1"),
        (lambda: Lossy(0.1, -1), r"seed in \[0, 2\^63\), got -1"),
    ],
)
def test_what_cannot_be_is_refused(made, told):
    with pytest.raises(ValueError, match=told):
        made()

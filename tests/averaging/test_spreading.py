"""Spreading of losses: the transform, the expected effect of a lost segment, and rounds over real sockets."""

from __future__ import annotations

import ctypes

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from hvd_sparse.averaging import Datagrams
from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.returning import take_over
from tests import threads
from tests.averaging import simulation, spreading
from tests.averaging.group import KEY, LONG, mean_of
from tests.averaging.relay import Habits
from tests.averaging.test_returning import living
from tests.ops import native
from tests.simulation import same_bits

UNIT = 2.0**-24  # half the distance from 1 to the next float32


def call(name: str, block: np.ndarray, segment: int, seed: int, in_place: bool = False) -> np.ndarray:
    """Calls `hvds_spread` or `hvds_gather_up`."""
    given = block.copy()
    made = given if in_place else np.full_like(block, np.nan)
    sizes = (ctypes.c_int64(len(block)), ctypes.c_int64(segment))
    getattr(native.library(), name)(native.pointer(given), native.pointer(made), *sizes, ctypes.c_uint64(seed))
    return made


def normal(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(length).astype(np.float32)


@hypothesis.given(
    length=strategies.integers(1, 3000),
    segment=strategies.integers(1, 400),
    seed=strategies.integers(0, 2**64 - 1),
    in_place=strategies.booleans(),
)
def test_it_is_that_of_numpy_to_the_bit_on_every_instruction_set(length, segment, seed, in_place, examples):
    block = simulation.vectors(1, length, seed % 1000)[0]
    there = spreading.spread(block, segment, seed)
    back = spreading.gather_up(there, segment, seed)
    for name in native.isas():
        with native.isa(native.ISAS[name]):
            same_bits(call("hvds_spread", block, segment, seed, in_place), there)
            same_bits(call("hvds_gather_up", there, segment, seed, in_place), back)


@hypothesis.given(
    whole=strategies.integers(2, 90), segment=strategies.integers(1, 30), seed=strategies.integers(0, 2**32)
)
def test_a_lost_segment_takes_a_little_of_many_elements_and_no_more_energy_than_it_has(whole, segment, seed, examples):
    block = normal(whole * segment, seed)
    rows = spreading.rows_of(len(block), segment)
    columns = len(block) // rows
    there = call("hvds_spread", block, segment, seed)
    lost = there.copy()
    number = seed % (rows * columns // segment)
    here = slice(number * segment, (number + 1) * segment)
    lost[here] = 0.0
    error = call("hvds_gather_up", lost, segment, seed).astype(np.float64) - block
    scale = np.abs(block).max()
    energy = np.sum(np.square(there[here], dtype=np.float64)) / rows
    np.testing.assert_allclose(np.sum(error**2), energy, rtol=1e-4, atol=1e-10 * scale**2)
    spread = np.abs(error[: rows * columns].reshape(rows, columns))
    hit = np.zeros(columns)
    hit[np.arange(here.start, here.stop) % columns] = np.abs(there[here]) / rows
    np.testing.assert_allclose(spread, np.broadcast_to(hit, spread.shape), atol=1e-5 * scale)


def test_over_the_draws_of_signs_an_element_loses_the_share_of_segments_that_was_lost():
    """Its mean error is its own difference from the mean times that share, and the rest has no direction."""
    segment, rows, draws = 4, 64, 3000
    own, mean = normal(rows * segment, 1), normal(rows * segment, 2)
    error = np.zeros((draws, len(own)))
    for seed in range(draws):
        came = call("hvds_spread", mean, segment, 7919 * seed)
        kept = call("hvds_spread", own, segment, 7919 * seed)
        came[5 * segment : 9 * segment] = kept[5 * segment : 9 * segment]
        error[seed] = call("hvds_gather_up", came, segment, 7919 * seed).astype(np.float64) - mean
    found, sure = error.mean(axis=0), error.std(axis=0) / np.sqrt(draws)
    expected = 4 / rows * (own.astype(np.float64) - mean)
    assert (np.abs(found - expected) < 5 * sure).all()


def spread_round(group, own: np.ndarray, made: dict) -> int:
    """Compares a round with NumPy, from what owners and receivers recorded; returns the number of lost segments."""
    count, lost = len(own), 0
    blocks = Blocks(group.size, count)
    recorded = {rank: group.channels[rank].recorded() for rank in made}
    for rank, averaged in made.items():
        round, segment = int(averaged.round), recorded[rank].segment
        seed = spreading.seed_of(KEY, round)
        there = np.stack([spreading.each_block(spreading.spread, each, blocks, segment, seed) for each in own])
        new = there[rank].copy()
        for block in range(count):
            owner = blocks.owner_of(block, round, True)
            end = min((block + 1) * blocks.length, group.size)
            for number, start in enumerate(range(block * blocks.length, end, segment)):
                here = slice(start, min(start + segment, end))
                if recorded[rank].came[block, number]:
                    new[here] = mean_of(there[:, here], int(recorded[owner].contributors[number]))
        same_bits(averaged.vector.numpy(), spreading.each_block(spreading.gather_up, new, blocks, segment, seed))
        lost += int((averaged.expected - averaged.arrived).numpy().sum())
    return lost


@pytest.mark.parametrize("drops", [0.05, pytest.param(0.2, marks=pytest.mark.thorough)])
def test_what_is_averaged_is_the_transform_of_what_arrived(ranks, drops):  # noqa: F811
    group = ranks(3, 20_001, Habits(drops=drops, seed=4), spread=1)
    own = simulation.vectors(3, 20_001)
    assert sum(spread_round(group, own, group.average(own, round)) for round in (0, 1, 5)) > 0


def test_without_loss_it_is_the_mean_to_rounding():
    """An element's error is at most 2 (log2 n + P) half units of the mean norm of its column, which has n elements."""
    size, count = 30_000, 3
    own = simulation.vectors(count, size)
    transport = Datagrams("127.0.0.1", slack=LONG, least=LONG, patience=LONG, spread=True)

    def one_rank(grid):
        channel = transport.open(size, grid.world, True, "spread")
        made = channel.average(tf.constant(own[grid.world.rank]), tf.constant(1, tf.int64)).vector.numpy()
        segment = channel.recorded().segment
        channel.close()
        return made, segment

    made = threads.run(count, 1, one_rank)
    exact = own.astype(np.float64).mean(axis=0)
    blocks, segment = Blocks(size, count), made[0][1]
    rows = spreading.rows_of(blocks.length, segment)
    assert rows == 16
    for new, _ in made:
        same_bits(new, made[0][0])
        off = np.abs(new - exact).reshape(count, blocks.length)
        columns = own.astype(np.float64).reshape(count, count, rows, -1)
        norms = np.sqrt(np.sum(columns**2, axis=2)).mean(axis=0)
        bound = 2 * (np.log2(rows) + count) * UNIT * np.repeat(norms[:, None], rows, axis=1)
        assert (off.reshape(bound.shape) <= bound).all()


def test_who_comes_back_takes_over_all_but_a_little(ranks):  # noqa: F811
    group = ranks(3, 20_001, Habits(drops=0.1, seed=6), patience=0.3, spread=1)
    own = np.random.default_rng(3).integers(-1000, 1000, 20_001).astype(np.float32)
    with living(group, own, 2):
        vector, _ = take_over(group.channels[2])
        error = np.linalg.norm(vector - own) / np.linalg.norm(own)
        assert error < 0.03  # 0.001 in expectation, at most
        group.channels[2].close()

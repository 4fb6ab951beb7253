"""The bytes of collectives, compared with the index sets, SparCML 5.3 and the cost model."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.collectives import streams
from hvd_sparse.compression.base import Coded
from hvd_sparse.compression.quantizers import QSGD, OneBit, TwoBits, Where
from hvd_sparse.costs import collectives as collective_costs
from hvd_sparse.costs.collectives import Load
from tests.collectives.vectors import ALL, counted, index_sets, slices_of


def words_of(rows, size, width=1, isize=4):
    """Bytes of a message with this number of rows."""
    if rows > size * width * isize // (4 + width * isize):
        return 8 + -(-size * width * isize // 8) * 8
    return 8 + -(-4 * rows // 8) * 8 + -(-rows * width * isize // 8) * 8


def pieces_of(indices, size, ranks):
    """The number of these rows in each piece, and the sizes of the pieces."""
    edges = [part * size // ranks for part in range(ranks + 1)]
    return np.histogram(indices, edges)[0] if len(indices) else np.zeros(ranks, int), np.diff(edges)


def union(sets):
    return functools.reduce(np.union1d, sets)


def implied(name, sets, size, rank):
    """Bytes that a rank sends, computed from the index sets alone."""
    ranks = len(sets)
    pieces = [pieces_of(indices, size, ranks) for indices in sets]
    total, extents = pieces_of(union(sets), size, ranks)
    split = sum(words_of(pieces[rank][0][part], extents[part]) for part in range(ranks) if part != rank)
    if name == "allgather":
        return (ranks - 1) * words_of(len(sets[rank]), size)
    if name == "split_allgather":
        return split + (ranks - 1) * words_of(total[rank], extents[rank])
    if name == "dynamic" and min(map(len, sets)) >= size // 2:  # as many as are sent dense: an all-reduce
        return implied("dense_ring", sets, size, rank)
    if name == "dynamic":
        return split + (ranks - 1) * 4 * extents[rank]
    if name == "dense_ring":
        return 4 * sum(size - extents[(rank + skipped) % ranks] for skipped in (0, 1))
    if name == "sparse_ring":
        return implied_of_ring(sets, size, rank, total, extents)
    return implied_of_doubling(sets, size, rank)


def implied_of_ring(sets, size, rank, total, extents):
    ranks, sent = len(sets), 0
    for step in range(ranks - 1):
        part = (rank - step - 1) % ranks
        members = [sets[(part + 1 + other) % ranks] for other in range(step + 1)]
        sent += words_of(pieces_of(union(members), size, ranks)[0][part], extents[part])
        part = (rank - step) % ranks
        sent += words_of(total[part], extents[part])
    return sent


def implied_of_doubling(sets, size, rank):
    ranks = len(sets)
    rounds = int(math.log2(ranks))
    surplus = ranks - 2**rounds
    if rank < 2 * surplus and rank % 2:
        return words_of(len(sets[rank]), size)
    groups = [union(sets[2 * number : 2 * number + 2]) for number in range(surplus)] + sets[2 * surplus :]
    number = rank // 2 if rank < 2 * surplus else rank - surplus
    sent = words_of(len(union(sets)), size) if rank < 2 * surplus else 0
    for distance in range(rounds):
        first = number >> distance << distance
        sent += words_of(len(union(groups[first : first + 2**distance])), size)
    return sent


def handed_on(name, quantizer):
    """An all-gather of contributions, as a function of slices and a communicator."""

    def call(slices, communicator):
        if name == "allgather_sum":
            return collectives.allgather_sum(slices, communicator)
        if name == "allgather_counted":
            return collectives.allgather_counted(slices, tf.constant(False), communicator)
        coded = Coded(*quantizer.encode(slices.values, 0, Where(slices.indices)), quantizer)
        if name == "allgather_coded":
            return collectives.allgather_coded(slices, coded, communicator)
        return collectives.allgather_coded_counted(slices, coded, tf.constant(False), communicator)

    return call


class TestTrafficOfContributions:
    @pytest.mark.parametrize("ranks", [2, 3, 6])
    @pytest.mark.parametrize("quantizer", [QSGD(4, bucket=16), OneBit("global"), TwoBits()], ids=str)
    def test_steps_and_bytes_are_those_that_are_told(self, ranks, quantizer):
        """In one all-gather each, and exact to the byte."""
        equal = [slices_of(range(rank, rank + 45), [1003], seed=rank) for rank in range(ranks)]
        uneven = [slices_of(range(17 * rank), [1003], seed=rank) for rank in range(ranks)]
        codes = -(-quantizer.code_bytes(45) // 4) * 4 + 4 * quantizer.scale_count(45)
        told = {"allgather_sum": 8 * 45, "allgather_coded": 4 * 45 + codes}
        for name, size in told.items():
            for counter in counted(handed_on(name, quantizer), equal):
                assert (counter.steps, counter.sent, counter.calls) == (ranks - 1, (ranks - 1) * size, 1)
        for rank, counter in enumerate(counted(handed_on("allgather_counted", quantizer), uneven)):
            assert (counter.steps, counter.sent) == (ranks - 1, (ranks - 1) * (8 + 8 * 17 * rank))
        for rank, counter in enumerate(counted(handed_on("allgather_coded_counted", quantizer), uneven)):
            count = 17 * rank
            codes = -(-quantizer.code_bytes(count) // 4) * 4 + 4 * quantizer.scale_count(count)
            assert (counter.steps, counter.sent) == (ranks - 1, (ranks - 1) * (16 + 4 * count + codes))


COUNTED = [name for name in ALL if "auto" not in name]


class TestTraffic:
    @pytest.mark.parametrize("name", COUNTED)
    @pytest.mark.parametrize("ranks", range(2, 10))
    def test_steps_are_the_exchanges_counted(self, name, ranks):
        sets = index_sets("overlapping", ranks, 1003, 0.1)
        for counter in counted(ALL[name], [slices_of(indices, [1003]) for indices in sets]):
            assert counter.steps == collective_costs.steps(name, ranks)
            assert counter.agreeing == 1

    @pytest.mark.parametrize("name", COUNTED)
    @pytest.mark.parametrize(
        "ranks", [2, 3, 6, 8, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (4, 5, 7, 9))]
    )
    @pytest.mark.parametrize(
        "kind, density", [("overlapping", 0.05), ("disjoint", 0.1), ("identical", 0.1), ("any", 0.8)]
    )
    def test_bytes_are_what_the_index_sets_imply(self, name, ranks, kind, density):
        """Exact to the byte, including headers and padding."""
        size = 20011
        sets = index_sets(kind, ranks, size, density)
        counters = counted(ALL[name], [slices_of(indices, [size]) for indices in sets])
        assert [counter.sent for counter in counters] == [implied(name, sets, size, rank) for rank in range(ranks)]

    @pytest.mark.parametrize("ranks", [2, 4, 8])
    @pytest.mark.parametrize("kind", ["overlapping", "disjoint", "identical"])
    def test_bytes_are_within_the_bounds_of_section_5_3(self, ranks, kind):
        """In units of k index-value pairs; headers and padding are at most 16 bytes per message."""
        size, k = 160000, 2000
        sets = index_sets(kind, ranks, size, k / size)
        bounds = {
            "recursive_doubling": (math.log2(ranks), ranks - 1),
            "split_allgather": (2 * (ranks - 1) / ranks, ranks),
        }
        for name, (lower, upper) in bounds.items():
            counters = counted(ALL[name], [slices_of(indices, [size]) for indices in sets])
            mean = np.mean([counter.sent for counter in counters]) / (8 * k)
            slack = 16 * 2 * ranks / (8 * k)
            uneven = 0.05 if name == "split_allgather" else 0.0  # pieces do not have exactly k / P rows
            assert lower * (1 - uneven) <= mean <= upper * (1 + uneven) + slack
        dense = (ranks - 1) / ranks * 4 * size
        mean = np.mean([counter.sent for counter in counted(ALL["dynamic"], [slices_of(s, [size]) for s in sets])])
        assert dense * (1 - 1e-6) <= mean <= dense + 8 * k + 16 * 2 * ranks

    @pytest.mark.parametrize("ranks", range(2, 10))
    def test_dynamic_sends_no_more_than_a_dense_ring_when_everything_fills_in(self, ranks):
        inputs = [slices_of(range(20011), [20011], seed=rank) for rank in range(ranks)]
        sent = {name: sum(counter.sent for counter in counted(ALL[name], inputs)) for name in ("dynamic", "dense_ring")}
        assert sent["dynamic"] <= 1.01 * sent["dense_ring"]

    @pytest.mark.parametrize("name", COUNTED)
    @pytest.mark.parametrize("ranks", [2, 5, 8])
    @pytest.mark.parametrize("density", [0.01, 0.1, 0.9])
    def test_the_cost_model_expects_what_is_sent(self, name, ranks, density):
        size = 40009
        sets = index_sets("overlapping", ranks, size, density)
        counters = counted(ALL[name], [slices_of(indices, [size]) for indices in sets])
        sent = [counter.sent for counter in counters]
        load = Load(ranks, size, 1, 4, len(sets[0]), size, streams.delta(size, 1, tf.float32))
        busiest = max(sent) if name == "recursive_doubling" else np.mean(sent)
        assert math.isclose(collective_costs.sent(name, load), busiest, rel_tol=0.05)

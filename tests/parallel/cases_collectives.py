"""SparCML's collectives under Horovod: in eager code, in graphs, in the background, and with invalid input."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import collectives
from hvd_sparse.compression.quantizers import QSGD
from tests.collectives.vectors import ALL, dense_of, expected_of, slices_like, slices_of
from tests.parallel.cases import case, thorough
from tests.parallel.training import raises

SIZE = 5003


def everyones(round=0, density=0.05, row=()):
    """The contributions of all ranks, the same on every rank; that of the last rank is empty."""
    drawn = np.random.default_rng(round)
    count = int(SIZE * density)
    sets = [drawn.choice(SIZE, count if rank < hvd.size() - 1 else 0, replace=False) for rank in range(hvd.size())]
    return [slices_of(indices, [SIZE, *row], seed=rank) for rank, indices in enumerate(sets)]


def agrees(got, inputs, op="sum"):
    shape = list(tf.get_static_value(inputs[0].dense_shape))
    np.testing.assert_array_equal(dense_of(got, shape, op), expected_of(inputs, shape, op))


GROUPS = {"world": list(ALL), "node": ["recursive_doubling", "split_allgather", "dynamic"]}


@case(ranks=(4,), over=lambda ranks: [{"group": group} for group in GROUPS], quick=thorough)
def results_are_dense_results(group):
    """Tests Horovod and, among the ranks of a host, shared memory; eagerly and in a graph."""
    communicator = getattr(hvd.topology, group)()
    for number, name in enumerate(GROUPS[group]):
        collective = ALL[name]
        for op, row in (("sum", ()), ("max", (3,))):
            inputs = everyones(number, row=row)
            own = inputs[communicator.rank]
            told = f"{name}.{op}".replace(" ", "")
            agrees(collective(own, communicator, op=op, name=told), inputs, op)
            if op == "max":  # its graph differs from that of "sum" in one attribute only
                continue
            traced = in_graph(own, collective, communicator, op, f"graph.{told}")
            for _ in range(2):
                agrees(traced(own.values), inputs, op)


def in_graph(own, collective, communicator, op, name):
    """A collective as a function of the values."""

    @tf.function
    def call(values):
        return collective(slices_like(own, values), communicator, op=op, name=name)

    return call


@case(ranks=(4,))
def pieces_may_be_of_any_length():
    for communicator in (hvd.topology.world(), hvd.topology.node()):
        rank, ranks = communicator.rank, communicator.size
        for dtype in (tf.int32, tf.float32, tf.bfloat16, tf.uint8):
            splits = tf.constant([(rank + other) % 3 for other in range(ranks)])
            rows = tf.fill([int(tf.reduce_sum(splits)), 2], tf.cast(rank, dtype))
            run = functools.partial(communicator.alltoall_ragged, rows, splits, "ragged")
            for call in (run, tf.function(run)):
                received, lengths = call()
                np.testing.assert_array_equal(lengths, [(rank + other) % 3 for other in range(ranks)])
                expected = np.repeat(np.arange(ranks), lengths)[:, np.newaxis] * np.ones([1, 2])
                np.testing.assert_array_equal(tf.cast(received, tf.float32), expected)
        received = communicator.exchange(tf.fill([rank + 1], rank), (rank + 1) % ranks, (rank - 1) % ranks, "round")
        np.testing.assert_array_equal(received, np.full((rank - 1) % ranks + 1, (rank - 1) % ranks))
        assert communicator.exchange(tf.zeros([3]), None, None, "nobody").shape == [0]


@case(ranks=(4,))
def many_are_in_flight_in_any_order():
    world, calls = hvd.topology.world(), list(range(12))
    inputs = [everyones(call, 0.01) for call in calls]
    plain = list(ALL.values())[:6]
    order = np.random.default_rng(world.rank).permutation(calls)
    handles = {
        call: collectives.start(plain[call % 6], inputs[call][world.rank], world, name=f"flight.{call}")
        for call in order
    }
    for call in calls:
        agrees(handles[call].wait(), inputs[call])
        assert handles[call].ready()


@case(ranks=(4,), quick=thorough)
def low_precision_is_the_same_on_all_ranks_in_a_graph():
    world, quantizer = hvd.topology.world(), QSGD(4, bucket=128)
    inputs = everyones(density=0.5)
    own = inputs[world.rank]

    @tf.function
    def step(values, error, seed):
        return collectives.dynamic_quantized(slices_like(own, values), world, quantizer, error, seed, name="coded")

    error = tf.zeros([collectives.own_rows(SIZE, world)])
    came_out = np.zeros(SIZE)
    for seed in range(3):
        total, error, fault = step(own.values, error, tf.constant(seed, tf.int64))
        assert int(fault) == 0
        assert len(set(world.gather_descriptions(int(tf.reduce_sum(tf.bitcast(total, tf.int32))), "digest"))) == 1
        came_out += total.numpy()
    kept = world.allgather(error, "kept").numpy()
    np.testing.assert_allclose(came_out + kept, 3 * expected_of(inputs, [SIZE], "sum"), atol=1e-4)


@case(ranks=(4,), quick=thorough)
def bad_slices_of_one_rank_are_one_error_on_all():
    world = hvd.topology.world()
    last, odd = world.size - 1, world.rank == world.size - 1
    good = slices_of([1, 2], [10])
    wide = tf.IndexedSlices(tf.cast(good.values, tf.bfloat16), good.indices, good.dense_shape)
    outside = slices_of([1, 10], [10])
    for name in ("recursive_doubling", "dynamic"):
        collective = ALL[name]
        with raises(ValueError, f"rank {last}: expected values of float16", "got bfloat16"):
            collective(wide if odd else good, world, name=name)
        with raises(ValueError, f"rank {last}: expected indices in [0, 10), got 10 at position 1"):
            collective(outside if odd else good, world, name=name)
        with raises(ValueError, f"rank {last} has shape = [11], rank 0 has [10]"):
            collective(slices_of([1], [11]) if odd else good, world, name=name)
        graph = tf.function(
            lambda collective=collective, name=name: collective(wide if odd else good, world, name=name)
        )
        with raises(ValueError, f"rank {last}: expected values of float16"):
            graph()
    indices = tf.constant([1, 10 if odd else 2])

    @tf.function
    def known_when_it_runs(indices):
        slices = tf.IndexedSlices(tf.ones([2]), indices, tf.constant([10]))
        return collectives.split_allgather(slices, world, name="late").values

    with raises(tf.errors.InvalidArgumentError, "expected indices in [0, 10)", f"on rank] [{last}]"):
        known_when_it_runs(indices)
    np.testing.assert_array_equal(known_when_it_runs(tf.constant([1, 2])), [world.size] * 2)

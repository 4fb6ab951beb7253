"""Invalid input and lost ranks: every rank gets one clear error, none hangs, and no state is damaged."""

from __future__ import annotations

import os
import socket

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.spec import Spec
from hvd_sparse.transport import nodes, process_sets
from tests.members import AGGREGATORS
from tests.parallel.cases import Launch, case, thorough
from tests.parallel.run import meet, number_of
from tests.parallel.training import raises
from tests.simulation import Shape, integers, same_bits

WIRED = ("topk", "hitopk")  # in the first, all ranks select; in the second, nodes do
SIZE, DENSITY = 1000, 0.02


def all_alive(step="alive"):
    """Asserts that all ranks are still in step: none waits in a different collective."""
    world = hvd.topology.world()
    assert int(world.allreduce(tf.constant(1), "sum", step)) == world.size


def own(random_seed):
    """This rank's vector, and those of all ranks."""
    random = np.random.default_rng(random_seed)
    vectors = [integers(random, SIZE, hvd.size()).astype(np.float32) for _ in range(hvd.size())]
    return vectors[hvd.rank()], vectors


# ---- arguments ----


@case(ranks=(2,), over=lambda ranks: [{"density": density} for density in (0.0, -0.01, 1.5, float("nan"), "0.01")])
def a_density_that_is_no_share(density):
    for recipe in ("topk", "mstopk", "hitopk"):
        with raises(ValueError, "density in (0, 1]", f"got {density!r}", "share of the gradient"):
            getattr(hvd.recipes, recipe)(density)
    all_alive()


@case(ranks=(2,))
def k_above_the_size():
    for select in (hvd.ops.topk, hvd.ops.mstopk):
        with raises(tf.errors.InvalidArgumentError, "k in [0, 10]", "got 11"):
            select(tf.ones([10]), 11)
        with raises(tf.errors.InvalidArgumentError, "k in [0, 10]", "got 11"):
            tf.function(select)(tf.ones([10]), tf.constant(11) + hvd.rank() - hvd.rank())
    all_alive()


@case(ranks=(4,), over=lambda ranks: [{"local_size": n} for n in (3, 8, 0, -1)])
def a_local_size_that_does_not_divide(local_size):
    with raises(ValueError, f"local_size = {local_size}", "does not divide", "localhost: 4", "choose a divisor"):
        hvd.init(local_size=local_size)
    assert hvd.topology.node().size == 4, "the grid is as it was"
    hvd.init(local_size=2)
    all_alive()


@case(ranks=(4,), over=lambda ranks: [{"text": text} for text in ("3", "two", "2.0", "-2")])
def a_local_size_in_the_environment_that_cannot_be(text):
    os.environ[nodes.LOCAL_SIZE_VARIABLE] = text
    try:
        with raises(ValueError, "does not divide", "HVD_SPARSE_LOCAL_SIZE"):
            hvd.init()
    finally:
        del os.environ[nodes.LOCAL_SIZE_VARIABLE]
    all_alive()


@case(ranks=(4,))
def local_sizes_that_differ():
    asked = {1: 1, 2: None}.get(hvd.rank(), 2)
    with raises(ValueError, "disagree on local_size", "rank 0: 2, rank 1: 1, rank 2: None", "same hvd.init(local_size"):
        hvd.init(local_size=asked)
    all_alive()


# ---- ranks that disagree ----


@case(ranks=(4,), over=lambda ranks: [{"recipe": recipe} for recipe in AGGREGATORS])
def ranks_that_disagree_on_the_vector(recipe):
    hvd.init(local_size=2)
    aggregator, last = AGGREGATORS[recipe].make(DENSITY, "float32"), hvd.size() - 1
    odd = hvd.rank() == last
    with raises(ValueError, "disagree", f"rank {last} has size = 1001, rank 0 has 1000", "Every rank must"):
        aggregator.init(SIZE + odd)
    with raises(ValueError, f'rank {last} has dtype = "float16"'):
        aggregator.init(Spec(SIZE, hvd.topology.grid(), tf.float16 if odd else tf.float32))
    all_alive()


@case(ranks=(4,))
def ranks_that_disagree_on_the_recipe():
    hvd.init(local_size=2)
    last = hvd.size() - 1
    chosen = hvd.recipes.hitopk(0.02) if hvd.rank() == last else hvd.recipes.hitopk(0.01)
    with raises(ValueError, "disagree on the recipe", f"rank {last} has recipe", "0.02", "0.01", "Every rank must"):
        chosen.init(SIZE)
    chosen = hvd.recipes.dense() if hvd.rank() == last else hvd.recipes.torus2d()
    with raises(ValueError, f"rank {last} has recipe", "Hierarchical", "AllReduce"):
        chosen.init(SIZE)
    all_alive()


# ---- gradients that are not finite ----


@case(ranks=(4,), over=lambda ranks: [{"recipe": recipe} for recipe in AGGREGATORS])
def a_gradient_that_is_not_finite_on_one_rank(recipe):
    """All ranks get the error, and later exchanges are as if it had not happened."""
    hvd.init(local_size=2)
    member = AGGREGATORS[recipe]
    aggregator = member.make(DENSITY, "float32")
    state = aggregator.init(SIZE)
    simulated = member.simulate(Shape(hvd.size(), 2), SIZE, DENSITY, "float32", "float32")
    exchange = tf.function(lambda vector: aggregator.aggregate(vector, state))
    for step, poison in enumerate((np.nan, np.inf, -np.inf)):
        mine, vectors = own(step)
        same_bits(exchange(tf.constant(mine)).numpy(), simulated.step(vectors))
        guilty = (step + 1) % hvd.size()
        if hvd.rank() == guilty:
            mine[step] = poison
        with raises(tf.errors.InvalidArgumentError, f"rank {guilty}", "Nothing was written", "last checkpoint"):
            exchange(tf.constant(mine))
        same_bits(aggregator.residual(state).numpy(), simulated.residual[hvd.rank()])


@case(ranks=(4,), over=lambda ranks: [{"recipe": recipe} for recipe in WIRED])
def a_value_that_the_wire_cannot_carry(recipe):
    hvd.init(local_size=2)
    aggregator = AGGREGATORS[recipe].make(DENSITY, "float16")
    state = aggregator.init(SIZE)
    with raises(tf.errors.InvalidArgumentError, "Nothing was written"):
        aggregator.aggregate(tf.fill([SIZE], 1e6 * (hvd.rank() == 3)), state)
    assert not aggregator.residual(state).numpy().any()
    all_alive()


# ---- start-up, and lost ranks: each case has its own launch ----


@case(ranks=(3,), launch=Launch(hosts="localhost:2,127.0.0.1:1"), quick=thorough)
def nodes_of_unequal_size():
    with raises(ValueError, "unequal size", "localhost: 2, 127.0.0.1: 1", "same number of ranks on every host"):
        hvd.init()
    assert not hvd.is_initialized()
    with raises(ValueError, "local_size = 2 does not divide", "localhost: 2, 127.0.0.1: 1"):
        hvd.init(local_size=2)
    hvd.init(local_size=1)
    all_alive()


@case(ranks=(4,), launch=Launch(hosts="localhost:2,127.0.0.1:2"), quick=thorough)
def hosts_are_nodes():
    hvd.init()
    first = hvd.rank() // 2 * 2
    assert hvd.topology.node().ranks == (first, first + 1)
    assert hvd.topology.cross().ranks == (hvd.rank() % 2, hvd.rank() % 2 + 2)
    assert not process_sets.is_dynamic(), "the nodes are known before Horovod starts"
    aggregator = hvd.recipes.hitopk(DENSITY)
    state = aggregator.init(SIZE)
    mine, vectors = own(0)
    simulated = AGGREGATORS["hitopk"].simulate(Shape(4, 2), SIZE, DENSITY, "float32", "float32")
    same_bits(aggregator.aggregate(tf.constant(mine), state).numpy(), simulated.step(vectors))
    hvd.init(local_size=1)  # needs no more process sets
    assert hvd.topology.node().size == 1 and hvd.topology.cross().size == 4
    all_alive()


@case(ranks=(4,), launch=Launch(hosts="localhost:4"), quick=thorough)
def another_grid_than_horovod_was_started_for():
    hvd.init()
    with raises(RuntimeError, "started without a node", "hvd_sparse.shutdown()", "HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.init(local_size=2)
    assert hvd.topology.node().size == 4, "the grid is as it was"
    all_alive()


@case(ranks=(4,), launch=Launch(names="loopback"), quick=thorough)
def a_host_name_that_resolves_to_loopback():
    with raises(ValueError, f"{socket.gethostname()} -> 127.0.1.1", "/etc/hosts on every host", "network address"):
        hvd.init()
    assert not hvd.is_initialized()


@case(ranks=(4,), launch=Launch(names="network"), quick=thorough)
def host_names_that_resolve_to_the_network():
    hvd.init()
    assert hvd.topology.node().size == hvd.topology.cross().size == 2
    aggregator = hvd.recipes.hitopk(DENSITY)
    state = aggregator.init(SIZE)
    mine, vectors = own(0)
    mean = aggregator.aggregate(tf.constant(mine), state).numpy()
    simulated = AGGREGATORS["hitopk"].simulate(Shape(4, 2), SIZE, DENSITY, "float32", "float32")
    same_bits(mean, simulated.step(vectors))


def exchange_until_a_rank_dies(local_size):
    hvd.init(local_size=local_size)
    aggregator = hvd.recipes.hitopk(DENSITY)
    state = aggregator.init(SIZE)
    for step in range(1000):
        if step == 5:  # all ranks have left the previous step, whose collectives would fail with a broken connection
            meet("fifth", range(hvd.size()) if number_of()[0] == 1 else [])
        if number_of()[0] == 1 and step == 5:
            os._exit(9)
        aggregator.aggregate(tf.constant(own(step)[0]), state)


@case(ranks=(3,), launch=Launch(dies=(1,), ended=(0, 2)))
def a_rank_that_dies_is_an_error_on_the_others():
    with raises(tf.errors.OpError, "Horovod has been shut down"):
        exchange_until_a_rank_dies(local_size=1)

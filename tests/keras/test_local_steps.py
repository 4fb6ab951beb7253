"""Nodes that take local steps between two exchanges, compared with a training in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.aggregators import Compressed, Hierarchical, LocalSteps, Outer
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.updates import LocalUpdates
from tests import simulation, threads
from tests.gpu import reference
from tests.keras.nodes import OPTIMIZERS, F, Slots
from tests.keras.test_ahead import slopes, stepped
from tests.keras.test_local_updates import distributed
from tests.keras.test_momentum import SIZE, packed, unpacked, weights
from tests.keras.test_momentum_files import assert_it_goes_on_to_the_bit
from tests.simulation import Shape

STEPS, EVERY = 20, 4


class Nodes:
    """All nodes' weights and optimizers, their accumulated updates, and error feedback on each rank's shard."""

    def __init__(self, shape, density, decay, outer, gathers, make):
        self.shape, self.density, self.decay, self.outer, self.gathers = shape, density, F(decay), outer, gathers
        self.ends = simulation.shard_ends(SIZE, shape.local_size)
        self.slots = [make() for _ in range(shape.nodes)]
        self.gathered, self.residual = (np.zeros([shape.nodes, SIZE], F) for _ in range(2))
        self.velocity, self.number = np.zeros(SIZE, F), 0

    def ahead(self):
        """How far each node is ahead of the shared weights, times the number of ranks per node."""
        return self.gathered if self.gathers else self.residual

    def step(self, vectors, weights):
        """The amount subtracted from all ranks' weights; each node has its own weights, flat."""
        self.number += 1
        total, local = np.zeros(SIZE, F), self.shape.local_size
        meets = self.number % EVERY == 0
        for node in range(self.shape.nodes):
            gradient = reference.accumulate(vectors[node * local : (node + 1) * local], None) / F(local)
            update = F(local) * self.slots[node].update(gradient, self.number, weights[node])
            for begin, end in self.ends:
                if begin == end:
                    continue
                own = slice(begin, end)
                moves = self.gathered[node, own] + update[own]
                if not meets:
                    self.ahead()[node, own] += update[own]
                else:
                    self.gathered[node, own] = 0
                    kept = self.residual[node, own] * self.decay
                    summed = reference.accumulate([moves], kept)
                    indices = simulation.exact(summed, simulation.kept(self.density, summed.size), 0)
                    values, self.residual[node, own] = reference.feedback([moves], kept, indices, F)
                    total[own][indices] += values
        mean = total / F(self.shape.ranks)
        if not meets:
            return np.zeros(SIZE, F)
        self.velocity = F(self.outer.momentum) * self.velocity + mean
        moved = mean + F(self.outer.momentum) * self.velocity if self.outer.nesterov else self.velocity
        return F(self.outer.rate) * (moved if self.outer.momentum else mean)


RANKS = Compressed(ErrorFeedback(TopK(0.1)))
OUTER = Outer(0.7, 0.9, nesterov=True)
# Density, decay, outer optimizer, whether updates accumulate beside the residual, and the recipe.
WAYS = {
    "diloco": (1.0, 1.0, OUTER, True, lambda: hvd.recipes.diloco(EVERY)),
    "sparse": (
        0.1,
        0.95,
        Outer(),
        True,
        lambda: LocalSteps(
            Hierarchical(Compressed(LocalUpdates(ErrorFeedback(TopK(0.1), 0.95), ahead=True, gathers=True))), EVERY
        ),
    ),
    "heavy ball": (
        0.1,
        1.0,
        Outer(0.5, 0.5),
        True,
        lambda: LocalSteps(
            Hierarchical(Compressed(LocalUpdates(ErrorFeedback(TopK(0.1)), ahead=True, gathers=True))),
            EVERY,
            Outer(0.5, 0.5),
        ),
    ),
    "kept": (0.1, 1.0, Outer(), False, lambda: hvd.recipes.updates(Hierarchical(RANKS), ahead=True, every=EVERY)),
}


QUICK = [(name, 4, 2) for name in ("AdamW", "LARS")]
THOROUGH = [
    *((name, 4, 2) for name in ("momentum", "LAMB")),
    *((name, 3, 1) for name in ("AdamW", "momentum", "LARS", "LAMB")),
    *((name, 8, 4) for name in ("AdamW", "LARS")),  # one that is element-wise, and one with whole layers
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name, ranks, local_size", [*QUICK, *(pytest.param(*case, marks=pytest.mark.thorough) for case in THOROUGH)]
)
def test_every_step_is_that_of_numpy(way, name, ranks, local_size):
    density, decay, outer, gathers, recipe = WAYS[way]
    make, step, begins, weight_decay = OPTIMIZERS[name]

    def one_rank(grid):
        optimizer = distributed(make(), recipe(), grid, name="local")
        found = stepped(optimizer, grid, STEPS)
        (state,) = optimizer.exchange.states
        assert not state.trainable_variables  # the user's gradient tape must not watch them
        return found, optimizer.exchange.aggregator.residual(state).numpy()

    ran = threads.run(ranks, local_size, one_rank)
    simulated = Nodes(Shape(ranks, local_size), density, decay, outer, gathers, lambda: Slots(SIZE, step, **begins))
    expected = weights()
    for number in range(STEPS):
        vectors = []
        for rank in range(ranks):
            ahead = unpacked(simulated.ahead()[rank // local_size] / F(local_size))
            at = [weight - offset for weight, offset in zip(expected, ahead, strict=True)]
            vectors.append(packed([a * weight + b for (a, b), weight in zip(slopes(rank, number), at, strict=True)]))
        own = [packed(expected) - ahead / F(local_size) for ahead in simulated.ahead()]
        for weight, lowered in zip(expected, unpacked(simulated.step(vectors, own)), strict=True):
            weight -= weight * F(weight_decay) * F(0.05)
            weight -= lowered
        for found, _ in ran:
            for own, other in zip(found[number], expected, strict=True):
                np.testing.assert_allclose(own, other, rtol=0, atol=2e-6 * np.abs(other).max())
    total = np.sum([left for _, left in ran], axis=0)
    kept = np.sum(simulated.residual + simulated.gathered, axis=0)
    np.testing.assert_allclose(total, kept, rtol=0, atol=1e-5)


def test_between_exchanges_nothing_leaves_a_node():
    def one_rank(grid):
        recipe = hvd.recipes.sparseloco(3, 4, 16, decay=1.0)
        optimizer = distributed(keras.optimizers.Adam(0.1), recipe, grid, name="counted", telemetry=hvd.Telemetry())
        variable = keras.Variable(np.ones(64, "f4"), name="v")
        optimizer.build([variable])
        found = []
        for step in range(6):
            with hvd.looking_ahead(optimizer):
                gradient = tf.constant(np.random.default_rng([grid.world.rank, step]).standard_normal(64), tf.float32)
            before = variable.numpy()
            optimizer.apply([gradient], [variable])
            figures = optimizer.exchange.read_telemetry()
            found.append((bool((variable.numpy() != before).any()), float(figures["bytes_across"]) > 16))
        return found

    met = [(False, False), (False, False), (True, True)] * 2
    assert threads.run(4, 2, one_rank) == [met] * 4


def test_a_nan_between_exchanges_stops_all_and_spoils_nothing():
    def one_rank(grid):
        optimizer = distributed(keras.optimizers.Adam(0.1), hvd.recipes.diloco(5), grid, name="stopped")
        variable = keras.Variable(np.ones(8, "f4"), name="v")
        optimizer.apply([tf.range(8.0)], [variable])
        before = [each.numpy() for state in optimizer.exchange.states for each in state.variables]
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 2"):
            optimizer.apply([tf.fill([8], np.nan if grid.world.rank == 2 else 1.0)], [variable])
        after = [each.numpy() for state in optimizer.exchange.states for each in state.variables]
        return all((one == other).all() for one, other in zip(before, after, strict=True))

    assert threads.run(4, 2, one_rank) == [True] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: hvd.recipes.diloco(3),
        lambda: hvd.recipes.sparseloco(3, 2, 4),
        lambda: hvd.recipes.updates(hvd.recipes.hitopk(0.1), ahead=True, every=3),
    ],
)
def test_a_stopped_run_goes_on_to_the_bit(make, tmp_path):
    """Also in the middle of a round: an epoch has two steps."""
    assert_it_goes_on_to_the_bit(make(), tmp_path, 2, 5)


def gathering(**options):
    return Compressed(LocalUpdates(ErrorFeedback(TopK(0.1)), **options))


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: LocalSteps(gathering(ahead=True, gathers=True), 0), "every 1 or more steps, got every=0"),
        (lambda: LocalSteps(gathering(), 2), "Updates can wait only if nodes go on with their own weights"),
        (lambda: LocalSteps(Compressed(ErrorFeedback(TopK(0.1))), 2), "Updates can wait only if"),
        (lambda: LocalSteps(hvd.recipes.dense(), 2), "AllReduce exchanges in every step"),
        (lambda: gathering(gathers=True), "pass ahead=True"),
        (lambda: hvd.recipes.updates(hvd.recipes.hitopk(0.1), every=2), "Updates can wait only if"),
        (lambda: hvd.recipes.updates(hvd.recipes.hitopk(0.1), ahead=True, every=0), "got every=0"),
        (lambda: Outer(0.0), "a rate above 0"),
        (lambda: Outer(1.0, 1.0), r"a momentum in \[0, 1\)"),
        (lambda: ErrorFeedback(TopK(0.1), 1.5), r"a decay in \[0, 1\], got 1.5"),
        (lambda: Hierarchical(hvd.recipes.diloco(3)), "cannot work inside Hierarchical"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises((TypeError, ValueError), match=told):
        make()

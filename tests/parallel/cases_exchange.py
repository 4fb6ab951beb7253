"""Exchanges by Horovod against their simulations, on every grid shape; and the guarantees of communicators."""

from __future__ import annotations

import functools
import hashlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.spec import Spec
from tests import members, simulation
from tests.aggregators import test_uneven as uneven
from tests.members import AGGREGATORS
from tests.parallel.cases import case, thorough
from tests.parallel.training import raises
from tests.simulation import DTYPES, Shape, same_bits

STEPS = 20  # of a schedule
DENSITY = 0.02
SIZES = (7, 4099)
LARGE = 65537
NARROW = (("float16", "bfloat16"),)
RECIPES = ["dense", "torus2d", "mean", "topk", "mstopk", "hitopk", "dropping", "dct", "sparcml", "sparcml_buckets"]
RECIPES += ["momentum_corrected-warmup"]
STAGES = ["hitopk", "torus2d", "topk", "dense", "mstopk"]
EPOCHS = [0] * 5 + [1] * 2 + [2] * 5 + [3] + [4] * 5 + [0] * 2


def divisors(ranks):
    return [n for n in range(1, ranks + 1) if ranks % n == 0]


def every_shape(ranks):
    """All shapes for up to four ranks; for more, only those with several nodes of several ranks, which are new."""
    shapes = [2] if ranks == 6 else divisors(ranks)
    return [{"local_size": n} for n in shapes]


def two_of_two(ranks, local_size):
    """The shape used in the quick tier."""
    return (ranks, local_size) == (4, 2)


class Line(NamedTuple):
    """A vector that is exchanged in every step, and how it is filled."""

    recipe: str
    size: int
    fill: str = "floats"
    dtype: str = "float32"
    wire: str = "float32"

    def make(self):
        if self.recipe == "schedule":
            return members.switching(STAGES, DENSITY, self.wire)
        return AGGREGATORS[self.recipe].make(DENSITY, self.wire)

    def simulate(self, shape):
        if self.recipe == "schedule":
            return members.simulate_switching(STAGES, shape, self.size, DENSITY, self.dtype, self.wire)
        return AGGREGATORS[self.recipe].simulate(shape, self.size, DENSITY, self.dtype, self.wire)

    def check(self, mean, simulated, vectors):
        """Compares bit for bit; only sums of floats in Horovod's order of addition may differ by rounding."""
        expected = simulated.step(vectors)
        if self.fill == "integers" or AGGREGATORS[self.recipe].sparse:
            return same_bits(mean, expected)
        difference = np.abs(mean.astype(np.float64) - expected.astype(np.float64))
        assert (difference <= simulated.tolerance(vectors)).all(), f"off by up to {difference.max()}"


@functools.lru_cache(maxsize=64)
def drawn(fill, size, dtype, step):
    """The vectors of all ranks in one step, the same on every rank."""
    random = np.random.default_rng([size, step])
    ranks = hvd.size()
    return [getattr(simulation, fill)(random, size, ranks).astype(DTYPES[dtype]) for _ in range(ranks)]


def compare(lines, local_size, in_graph=True, steps=8):
    """Exchanges all lines in each step, and compares every mean and every residual."""
    hvd.init(local_size=local_size)
    rank, grid = hvd.rank(), hvd.topology.grid()
    recipes = [line.make() for line in lines]
    names = [".".join(map(str, line)) for line in lines]
    states = [
        recipe.init(Spec(line.size, grid, tf.as_dtype(line.dtype), name=name))
        for recipe, line, name in zip(recipes, lines, names, strict=True)
    ]
    simulations = [line.simulate(Shape(hvd.size(), local_size)) for line in lines]

    def exchange(vectors):
        each = zip(recipes, vectors, states, strict=True)
        return [recipe.aggregate(vector, state) for recipe, vector, state in each]

    run = tf.function(exchange) if in_graph else exchange
    digest = hashlib.sha256()
    for step in range(steps):
        vectors = [drawn(line.fill, line.size, line.dtype, step) for line in lines]
        for recipe, state, simulated in zip(recipes, states, simulations, strict=True):
            recipe.set_epoch(state, EPOCHS[step])
            if isinstance(simulated, simulation.Stages):
                simulated.stage = EPOCHS[step]
        means = [mean.numpy() for mean in run([tf.constant(each[rank]) for each in vectors])]
        everything = zip(lines, recipes, states, simulations, vectors, means, strict=True)
        for line, recipe, state, simulated, each, mean in everything:
            try:
                line.check(mean, simulated, each)
                same_bits(recipe.residual(state).numpy(), simulated.residual[rank])
            except AssertionError as error:
                raise AssertionError(f"{line} in step {step}: {error}") from error
            digest.update(mean.tobytes())
    assert len(set(grid.world.gather_descriptions(digest.hexdigest(), "digest"))) == 1, "the replicas differ"


@case(
    ranks=(1, 4, 6),
    over=lambda ranks: [{"local_size": {1: 1, 4: 2, 6: 2}[ranks]}],
    quick=two_of_two,
)
def results_and_residuals_are_those_of_the_simulations(local_size):
    lines = [Line(name, size) for name in RECIPES for size in SIZES]
    lines += [Line(name, size, "integers") for name in ("dense", "torus2d") for size in SIZES]
    compare(lines, local_size)


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2}], quick=thorough)
def results_and_residuals_are_those_of_the_simulations_for_one_element_and_many(local_size):
    lines = [Line(name, 1) for name in RECIPES]
    lines += [Line(name, 1, "integers") for name in ("dense", "torus2d")]
    compare([*lines, *(Line(name, LARGE) for name in ("torus2d", "mean", "hitopk"))], local_size)


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2}], quick=thorough)
def results_and_residuals_are_those_of_the_simulations_in_eager_code(local_size):
    lines = [Line(name, size) for name in RECIPES for size in (7, 1000)]
    compare([*lines, Line("schedule", 1000, "integers")], local_size, in_graph=False)


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2, "dtype": d, "wire": w} for d, w in NARROW], quick=thorough)
def results_and_residuals_are_those_of_the_simulations_in_narrow_dtypes(local_size, dtype, wire):
    compare([Line(name, size, "floats", dtype, wire) for name in RECIPES for size in (7, 1000)], local_size)


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2}], quick=thorough)
def a_schedule_of_recipes_is_its_simulation(local_size):
    compare([Line("schedule", 7, "integers"), Line("schedule", 1000, "integers", "float16")], local_size, steps=STEPS)


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2}], quick=thorough)
def what_went_in_is_what_came_out_and_what_is_kept(local_size):
    """Tests every recipe, and a schedule that changes recipes; exact for integers that are divisible by P.

    Rounding errors of codes are kept as well, so that only float32's own rounding is lost.
    """
    hvd.init(local_size=local_size)
    sends_gradients = [name for name in (*RECIPES, "warmup") if not AGGREGATORS[name].momentum]
    recipes = {name: AGGREGATORS[name].make(DENSITY, "float32") for name in sends_gradients}
    recipes["schedule"] = members.switching(STAGES, DENSITY, "float32")
    size = 4099
    states = {name: recipe.init(Spec(size, hvd.topology.grid(), name=name)) for name, recipe in recipes.items()}

    @tf.function
    def exchange(vector):
        return {name: recipe.aggregate(vector, states[name]) for name, recipe in recipes.items()}

    came_out = dict.fromkeys(recipes, 0.0)
    for step in range(STEPS):
        recipes["schedule"].set_epoch(states["schedule"], EPOCHS[step])
        means = exchange(tf.constant(drawn("integers", size, "float32", step)[hvd.rank()]))
        came_out = {name: came_out[name] + hvd.size() * means[name].numpy() for name in recipes}
    vectors = np.array([drawn("integers", size, "float32", step) for step in range(STEPS)])
    largest = np.abs(vectors).sum(axis=(0, 1)).max()  # no sum, scale or error in between is larger
    for name, recipe in recipes.items():
        kept = hvd.topology.world().allreduce(recipe.residual(states[name]), "sum", f"kept.{name}").numpy()
        exact = name == "schedule" or AGGREGATORS[name].exact
        bound = 0.0 if exact else 8 * STEPS * hvd.size() * 2.0**-24 * largest
        np.testing.assert_allclose(came_out[name] + kept, vectors.sum(axis=(0, 1)), rtol=0, atol=bound, err_msg=name)


@case(ranks=(4,), over=lambda ranks: [{"local_size": 2, "kind": kind} for kind in uneven.KINDS])
def ranks_that_send_different_numbers_get_the_same_means(local_size, kind):
    """Also if one rank has nothing to send, and that rank reports a value that is not finite."""
    hvd.init(local_size=local_size)
    recipe = uneven.KINDS[kind](ErrorFeedback(uneven.Uneven()))
    state = recipe.init(Spec(uneven.SIZE, hvd.topology.grid(), name=f"uneven.{kind}"))
    run = tf.function(lambda vector: recipe.aggregate(vector, state), autograph=False)
    for step, expected in enumerate(uneven.simulated(hvd.size(), local_size, kind)):
        mean = run(tf.constant(uneven.drawn(hvd.rank(), step)))
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-6)
    before = recipe.residual(state).numpy()
    with raises(tf.errors.InvalidArgumentError, "rank 0"):
        run(tf.constant(uneven.drawn(hvd.rank(), 0) / np.float32(hvd.rank())))
    same_bits(recipe.residual(state).numpy(), before)


@case(over=every_shape, quick=two_of_two)
def the_grid_has_the_shape_that_was_asked_for(local_size):
    hvd.init(local_size=local_size)
    grid, rank = hvd.topology.grid(), hvd.rank()
    first = rank - rank % local_size
    assert grid.world.ranks == tuple(range(hvd.size()))
    assert grid.node.ranks == tuple(range(first, first + local_size))
    assert grid.cross.ranks == tuple(range(rank % local_size, hvd.size(), local_size))
    assert all(communicator.world_rank == rank for communicator in grid)
    assert hvd.local_rank() == rank and hvd.local_size() == hvd.size(), "Horovod's own numbers are the host's"


@case(over=every_shape, quick=two_of_two)
def collectives_of_a_group_reach_its_members_only(local_size):
    hvd.init(local_size=local_size)
    for communicator in hvd.topology.grid():
        ranks, own = communicator.ranks, float(communicator.world_rank)
        for op, reduce in {"sum": np.sum, "min": np.min, "max": np.max}.items():
            np.testing.assert_array_equal(communicator.allreduce(tf.fill([3], own), op, op), [reduce(ranks)] * 3)
        ragged = tf.fill([communicator.rank, 2], own)
        expected = [[rank] * 2 for position, rank in enumerate(ranks) for _ in range(position)]
        gathered = communicator.allgather(ragged, "ragged").numpy()
        np.testing.assert_array_equal(gathered, np.reshape(expected, [-1, 2]))
        splits = [position % 3 for position in range(communicator.size)]
        sent = np.repeat(np.arange(communicator.size) + 100 * own, splits)
        received = communicator.alltoall(tf.constant(sent), splits, "splits").numpy()
        mine = splits[communicator.rank]
        np.testing.assert_array_equal(received, np.repeat(100.0 * np.array(ranks) + communicator.rank, mine))
        last = communicator.size - 1
        assert float(communicator.broadcast(tf.constant(own), last, "last")) == ranks[last]
        assert communicator.gather_descriptions({"rank": own}, "told") == [{"rank": float(rank)} for rank in ranks]


@case(ranks=(1, 3, 4), over=lambda ranks: [{"dtype": dtype} for dtype in DTYPES])
def collectives_carry_every_dtype_and_nothing(dtype):
    hvd.init(local_size=1)
    world = hvd.topology.world()
    ones = tf.ones([5], tf.as_dtype(dtype))
    np.testing.assert_array_equal(world.allreduce(ones, "sum", "ones").numpy(), world.size * ones.numpy())
    np.testing.assert_array_equal(world.allgather(ones, "gather").numpy(), np.ones(5 * world.size))
    np.testing.assert_array_equal(
        world.alltoall(tf.repeat(ones, world.size), [5] * world.size, "all"), np.ones(5 * world.size)
    )
    assert world.allgather(ones[:0], "empty").shape == [0]
    assert world.alltoall(ones[:0], [0] * world.size, "none").shape == [0]


@case(ranks=(1, 3, 4), over=lambda ranks: [{"dtype": dtype} for dtype in ("float32", "float16", "bfloat16")])
def dense_gradients_apart_are_those_end_to_end(dtype):
    """Graphs exchange large gradients separately, eager code a whole bucket together; the means are the same."""
    ranks, rank = hvd.size(), hvd.rank()
    shapes = [(), (3, 2), (1000, 600), (7, 11)]
    variables = [tf.Variable(tf.zeros(shape, dtype), name=f"v{number}") for number, shape in enumerate(shapes)]
    every = [[(np.ones(shape) * ranks * (1 + each + n)) for n, shape in enumerate(shapes)] for each in range(ranks)]
    own = [tf.constant(gradient, dtype) for gradient in every[rank]]
    exchange = hvd.GradientExchange(bucket_bytes=2**23, first_bucket_bytes=2**23)
    graph = tf.function(lambda gradients: exchange(gradients, variables), autograph=False)
    eager, traced = exchange(own, variables), graph(own)
    for position, (end_to_end, apart) in enumerate(zip(eager, traced, strict=True)):
        expected = np.mean([gradients[position] for gradients in every], axis=0)
        np.testing.assert_array_equal(end_to_end.numpy().astype("f8"), expected)
        same_bits(apart.numpy(), end_to_end.numpy())
    bad = [gradient * (np.inf if rank == ranks - 1 and number == 2 else 1) for number, gradient in enumerate(own)]
    with raises(tf.errors.InvalidArgumentError, "v3:0 .. v0:0", f"rank {ranks - 1}"):
        graph(bad)
    for apart, end_to_end in zip(graph(own), eager, strict=True):
        same_bits(apart.numpy(), end_to_end.numpy())
    assert exchange.step == 3

"""Properties that every compressor, collective and aggregator in the tables of `members` must have."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.selection import kept_count
from hvd_sparse.exchange import telemetry, wire
from hvd_sparse.spec import Segment, Spec, describe, parts
from hvd_sparse.transport.communicator import Grid
from tests import members, simulation, threads
from tests.simulation import DTYPES

SIZES = (1, 7, 4099)
DENSITIES = (0.01, 0.25, 1.0)
NO_SHARES = (-0.1, 1.0001, 100, float("nan"))


def drawn(size, rows=1, dtype="float32", seed=0):
    """Normally distributed numbers, the same in each call."""
    return np.random.default_rng(seed).standard_normal((rows, size)).astype(DTYPES[dtype])


def restored(slices, size):
    """The dense float32 vector that a receiver makes of slices."""
    decoded = np.zeros(size, np.float32)
    np.add.at(decoded, slices.indices.numpy(), tf.cast(slices.values, tf.float32).numpy())
    return decoded


compressor = pytest.mark.parametrize("make", members.COMPRESSORS.values(), ids=members.COMPRESSORS)
by_density = pytest.mark.parametrize(
    "make", [members.COMPRESSORS[name] for name in members.BY_DENSITY], ids=members.BY_DENSITY
)
on_each_wire = pytest.mark.parametrize(
    "name, wire",
    [(name, wire) for name in members.COMPRESSORS for wire in (["float32"] if name in members.ROUNDED else DTYPES)],
)
collective = pytest.mark.parametrize("meet", members.COLLECTIVES.values(), ids=members.COLLECTIVES)
aggregator = pytest.mark.parametrize("name", members.AGGREGATORS)


class TestCompressor:
    @compressor
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("density", DENSITIES)
    def test_sends_k_distinct_elements_or_about_as_many(self, make, size, density):
        part = make(density, "float32")
        selection = part.compress(tf.constant(drawn(size)), part.create(members.alone(size)))
        indices = selection.slices.indices.numpy()
        assert indices.dtype == np.int32 and selection.slices.values.dtype == tf.float32
        assert len(indices) == len(set(indices))
        if part.counts_differ:
            k = kept_count(density, size)
            assert part.count(size) is None and k / 2 <= len(indices) <= 2 * k
        else:
            assert part.count(size) == len(indices)
        assert indices.min() >= 0 and indices.max() < size
        assert selection.slices.dense_shape.numpy() == [size]

    @by_density
    @pytest.mark.parametrize("size, density", [(7, 0.01), (4099, 0.25)])
    def test_sends_the_share_that_it_is_asked_for(self, make, size, density):
        part = make(density, "float32")
        assert part.count(size) == (None if part.counts_differ else kept_count(density, size))

    @on_each_wire
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("rows", [1, 3])
    def test_what_is_sent_and_what_is_kept_is_the_input(self, name, wire, dtype, rows):
        """At each place, the decoded value plus the residual equals the input bit for bit.

        Where values are coded, up to the rounding error of subtracting the coded value.
        """
        part, parts = members.COMPRESSORS[name](0.1, wire), drawn(1000, rows, dtype)
        selection = part.compress(tf.constant(parts), part.create(members.alone(1000)))
        assert selection.slices.values.dtype == tf.as_dtype(part.wire_dtype) == tf.as_dtype(wire)
        total = parts[0].astype(np.float32)
        for row in parts[1:]:
            total = total + row.astype(np.float32)
        rounding = 2.0**-23 * np.abs(total).max() if name in members.ROUNDED else 0.0
        difference = restored(selection.slices, 1000) + selection.residual.numpy() - total
        assert np.abs(difference).max() <= rounding

    @pytest.mark.parametrize("name", members.COMPRESSORS)
    @pytest.mark.parametrize("value", [0.0, -1.5])
    def test_sends_k_elements_of_a_constant(self, name, value):
        """Where ties are sent, 4 k elements instead, and no zeros."""
        part = members.COMPRESSORS[name](0.01, "float32")
        selection = part.compress(tf.fill([1, 1000], value), part.create(members.alone(1000)))
        count = 10 if name not in members.WITH_TIES else 40 if value else 0
        assert len(set(selection.slices.indices.numpy())) == count
        np.testing.assert_array_equal(selection.slices.values, np.full(count, value, np.float32))

    @compressor
    @pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
    def test_reports_the_first_part_that_is_not_finite(self, make, poison):
        part, parts = make(0.1, "float32"), drawn(1000, 4)
        parts[2, 500] = parts[3, 3] = poison
        assert int(part.compress(tf.constant(parts), part.create(members.alone(1000))).culprit) == 3

    @compressor
    def test_reports_a_sum_that_overflows(self, make):
        part = make(0.1, "float32")
        parts = tf.fill([2, 10], np.float32(3e38))
        assert int(part.compress(parts, part.create(members.alone(10))).culprit) == 3

    @compressor
    def test_writes_nothing_until_its_updates_are_assigned(self, make):
        part = make(0.1, "float32")
        state = part.create(members.alone(100))
        before = [variable.numpy() for variable in state.variables]
        selection = part.compress(tf.constant(drawn(100)), state)
        for variable, value in zip(state.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
        for variable, value in selection.updates:
            variable.assign(value)
            np.testing.assert_array_equal(variable.numpy(), value)

    @pytest.mark.parametrize("name", members.COMPRESSORS)
    def test_keeps_what_it_has_not_sent_for_the_next_step_or_drops_it(self, name):
        part = members.COMPRESSORS[name](0.05, "float32")
        state, total_in, total_out = part.create(members.alone(200)), np.zeros(200), np.zeros(200)
        for step in range(5):
            gradient = np.round(8 * drawn(200, seed=step))
            selection = part.compress(tf.constant(gradient), state)
            for variable, value in selection.updates:
                variable.assign(value)
            total_in, total_out = total_in + gradient[0], total_out + restored(selection.slices, 200)
        new_residual, waiting = part.residual(state), part.waiting(state)
        assert part.feeds_back == (new_residual is not None) == (waiting is not None)
        if part.feeds_back:
            rounding = 10 * 2.0**-23 * np.abs(total_in).max() if name in members.ROUNDED else 0.0
            assert np.abs(total_out + new_residual.numpy() - total_in).max() <= rounding
            np.testing.assert_array_equal(waiting, new_residual)

    @pytest.mark.parametrize("name", members.COMPRESSORS)
    def test_does_the_same_in_a_graph(self, name):
        wire = "float32" if name in members.ROUNDED else "bfloat16"
        part, parts = members.COMPRESSORS[name](0.1, wire), tf.constant(drawn(1000, 2))
        state = part.create(members.alone(1000))
        graph = tf.function(lambda rows: part.compress(rows, state)[:3])
        count = part.count(1000)
        shapes = graph.get_concrete_function(parts).structured_outputs
        assert shapes[0].values.shape == shapes[0].indices.shape == [count] and shapes[1].shape == [1000]
        traced, eager = graph(parts), part.compress(parts, state)[:3]
        for one, other in zip(
            *(tf.nest.flatten(each, expand_composites=True) for each in (traced, eager)), strict=True
        ):
            np.testing.assert_array_equal(one.numpy(), other.numpy())

    @pytest.mark.parametrize("name", members.BY_DENSITY)
    def test_follows_a_density_that_changes(self, name):
        """Immediately, except for held thresholds: the number they send then depends on the residual."""
        part = members.COMPRESSORS[name](lambda step: tf.where(step < 2, 0.5, 0.1), "float32")
        state = part.create(members.alone(100))
        assert part.count(100) is None
        counts = []
        for _ in range(4):
            selection = part.compress(tf.constant(drawn(100)), state)
            for variable, value in selection.updates:
                variable.assign(value)
            counts.append(len(selection.slices.indices))
        assert counts == [50, 50, 10, 10] or (name in members.WITH_TIES and counts[::2] == [50, 10])

    @by_density
    def test_refuses_a_density_that_is_no_share(self, make):
        with pytest.raises(ValueError, match=r"density in \(0, 1\]"):
            make(0.0, "float32")

    @compressor
    def test_refuses_a_wire_that_carries_no_gradient(self, make):
        with pytest.raises(ValueError, match="'float32', 'float16' or 'bfloat16'"):
            make(0.1, "int8")

    @pytest.mark.parametrize("density, wire", [*((each, "float32") for each in NO_SHARES), (0.1, "float64"), (0.1, "")])
    def test_refuses_what_no_member_takes(self, density, wire):
        """All compressors use the same two checks, so one is enough here."""
        with pytest.raises(ValueError, match="density in|'float32', 'float16' or 'bfloat16'"):
            members.COMPRESSORS["TopK"](density, wire)

    @pytest.mark.parametrize("name", members.COMPRESSORS)
    def test_its_values_take_another_wire_or_it_says_why_not(self, name):
        part = members.COMPRESSORS[name](0.1, "float32")
        if any(each.has_own_code for each in parts(part) if isinstance(each, Compressor)):
            with pytest.raises(ValueError, match="has its own encoding"):
                wire.with_wire_dtype(part, "float16")
        else:
            assert wire.with_wire_dtype(part, "float16").wire_dtype == "float16"

    @pytest.mark.parametrize("name", members.COMPRESSORS)
    def test_is_described_alike_when_it_is_timed(self, name):
        part = members.COMPRESSORS[name](0.1, "float32")
        assert describe(telemetry.timed(part)) == describe(part)

    @compressor
    def test_answers_by_yes_or_no(self, make):
        part = make(0.1, "float32")
        for answer in (part.feeds_back, part.holds, part.has_own_code, part.counts_differ):
            assert answer in (True, False)

    @compressor
    def test_describes_itself(self, make):
        assert describe(make(0.1, "float32")) == describe(make(0.1, "float32")) != describe(make(0.2, "float32"))


class TestCollective:
    @staticmethod
    def contributions(ranks, counts, size, wire):
        random = np.random.default_rng(0)
        return [
            tf.IndexedSlices(
                tf.constant(random.standard_normal(count).astype(DTYPES[wire])),
                tf.constant(random.choice(size, count, replace=False).astype(np.int32)),
                tf.constant([size]),
            )
            for count in counts[:ranks]
        ]

    @pytest.mark.parametrize("meet", members.OF_EQUAL_COUNTS.values(), ids=members.OF_EQUAL_COUNTS)
    @pytest.mark.parametrize("ranks", range(1, 10))
    @pytest.mark.parametrize("wire", DTYPES)
    def test_every_rank_gets_the_sum_in_rank_order(self, meet, ranks, wire):
        counts = [5] * ranks
        brought = self.contributions(ranks, counts, 12, wire)
        expected = np.zeros(12, np.float32)
        for slices in brought:
            expected += restored(slices, 12)
        for got in threads.run(ranks, ranks, lambda grid: meet(brought[grid.world.rank], grid.world)):
            total = ops.sparse_sum(got.values, got.indices, 12).numpy()
            assert total.tobytes() == expected.tobytes()

    @collective
    @pytest.mark.parametrize("wire", DTYPES)
    @pytest.mark.parametrize("counts", [[0, 0, 0], [3, 0, 1], [0, 4, 0], [1, 2, 11]])
    def test_ranks_may_bring_different_numbers_of_elements_and_none(self, meet, wire, counts):
        brought = self.contributions(3, counts, 12, wire)
        expected = np.zeros(12, np.float32)
        for slices in brought:
            expected += restored(slices, 12)
        results = threads.run(3, 3, lambda grid: meet(brought[grid.world.rank], grid.world, counts=counts))
        for got in results:
            assert got.values.dtype == tf.as_dtype(wire) and got.indices.dtype == tf.int32
            assert ops.sparse_sum(got.values, got.indices, 12).numpy().tobytes() == expected.tobytes()


class TestAggregator:
    @aggregator
    def test_takes_a_plain_size_and_works_without_horovod(self, name):
        member = members.AGGREGATORS[name]
        recipe = member.make(1.0, "float32")
        vector = tf.constant(drawn(10)[0] if member.exact else np.sign(drawn(10)[0]))
        np.testing.assert_array_equal(recipe.aggregate(vector, recipe.init(10)), vector)

    @aggregator
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_gives_a_mean_of_the_vectors_dtype_and_shape_in_graphs_too(self, name, dtype):
        recipe = members.AGGREGATORS[name].make(0.1, "float32")
        states = [recipe.init(Spec(100, Grid.lone(), tf.as_dtype(dtype))) for _ in range(2)]
        graph = tf.function(lambda vector: recipe.aggregate(vector, states[1]))
        for step in range(3):
            vector = tf.constant(drawn(100, dtype=dtype, seed=step)[0])
            eager, traced = recipe.aggregate(vector, states[0]), graph(vector)
            assert traced.dtype == eager.dtype == vector.dtype and traced.shape == [100]
            np.testing.assert_array_equal(traced.numpy(), eager.numpy())
            np.testing.assert_array_equal(recipe.residual(states[1]).numpy(), recipe.residual(states[0]).numpy())

    @aggregator
    def test_an_exchange_writes_nothing_by_itself(self, name):
        recipe = members.AGGREGATORS[name].make(0.1, "float32")
        state = recipe.init(100)
        assert not state.trainable_variables  # the user's gradient tape must not watch them
        before = [variable.numpy() for variable in state.variables]
        recipe.exchange(tf.constant(drawn(100)[0]), state)
        for variable, value in zip(state.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)

    @aggregator
    def test_tells_how_much_it_sent(self, name):
        member = members.AGGREGATORS[name]
        recipe = member.make(0.1, "float32")
        metrics = recipe.exchange(tf.constant(drawn(100)[0]), recipe.init(100)).metrics
        assert set(metrics) == {"bytes_inside", "bytes_across", "selected", "considered"}
        selected = kept_count(member.first(0.1), 100) if member.sparse else 100
        assert (int(metrics["selected"]), int(metrics["considered"])) == (selected, 100)
        assert recipe.sends_all == (not member.sparse)

    @aggregator
    @pytest.mark.parametrize("ranks, local_size", [(1, 1), (4, 2), pytest.param(6, 3, marks=pytest.mark.thorough)])
    def test_what_is_put_back_is_owed(self, name, ranks, local_size):
        member = members.AGGREGATORS[name]
        recipe, kept = member.make(0.1, "float32"), 24.0 * np.round(4 * drawn(100)[0])

        def one_rank(grid):
            state = recipe.init(Spec(100, grid))
            recipe.restore(state, tf.constant(kept))
            return recipe.residual(state).numpy()

        left = np.sum(threads.run(ranks, local_size, one_rank), axis=0)
        np.testing.assert_array_equal(left, kept if member.sparse else np.zeros(100))

    @pytest.mark.parametrize(
        "name, other, told",
        [
            *((name, {"size": 101}, "size") for name in members.AGGREGATORS),
            ("dense", {"dtype": tf.float16}, "dtype"),
            ("hitopk", {"segments": (Segment("kernel", (6, 10)), Segment("bias", (40,)))}, "segments"),
            ("dense", {"recipe": members.recipes.topk(0.123)}, "recipe"),
            ("hitopk", {"recipe": members.recipes.topk(0.123)}, "recipe"),
        ],
    )
    def test_ranks_that_disagree_are_all_told(self, name, other, told):
        def one_rank(grid):
            mine = dict(other) if grid.world.rank == 2 else {}
            recipe = mine.pop("recipe", members.AGGREGATORS[name].make(0.1, "float32"))
            with pytest.raises(ValueError) as raised:
                recipe.init(Spec(100, grid)._replace(**mine))
            return str(raised.value)

        for text in threads.run(4, 2, one_rank):
            assert f"rank 2 has {told} = " in text and "rank 0 has" in text and "Every rank must" in text

    @pytest.mark.parametrize(
        "name, change, told",
        [
            *((name, {"size": 0}, "1 to 2\\^31 - 1 elements, got size = 0") for name in members.AGGREGATORS),
            ("topk", {"size": 2**31}, "1 to 2\\^31 - 1 elements"),
            ("topk", {"dtype": tf.float64}, "float32, float16 or bfloat16, got float64"),
            ("topk", {"segments": (Segment("kernel", (99,)),)}, "cover all 100 elements, got 99"),
        ],
    )
    def test_refuses_a_vector_that_cannot_be(self, name, change, told):
        with pytest.raises(ValueError, match=told):
            members.AGGREGATORS[name].make(0.1, "float32").init(Spec(100, Grid.lone())._replace(**change))

    @aggregator
    def test_refuses_a_vector_of_another_size(self, name):
        recipe = members.AGGREGATORS[name].make(0.1, "float32")
        state = recipe.init(100)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="101"):
            recipe.aggregate(tf.zeros([101]), state)

    def test_every_named_recipe_has_a_row(self):
        elsewhere = {
            "schedule",
            "updates",
            "recommended",
            "diloco",
            "sparseloco",
        }  # tested in other suites, with epochs or an optimizer
        made = {name.partition("-")[0] for name in members.AGGREGATORS} | elsewhere
        assert made == {name for name in members.recipes.__all__ if callable(getattr(members.recipes, name))}

    def test_simulations_know_every_member(self):
        shape = simulation.Shape(4, 2)
        for member in members.AGGREGATORS.values():
            assert member.simulate(shape, 10, 0.5, "float32", "float32").residual.shape == (4, 10)

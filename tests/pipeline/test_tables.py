"""Tables with rows on all ranks: lookups, their gradients, what is sent, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import hvd_sparse as hvd
from hvd_sparse.pipeline import ShardedTables, Threshold, row_exchange
from hvd_sparse.pipeline.row_exchange import RowWire
from tests import threads

CASES = {
    "ranks": st.integers(1, 4),
    "rows": st.integers(1, 30),
    "width": st.integers(1, 20),
    "seed": st.integers(0, 2**16),
}


def looked_up(whole, wanted, gradients, wire):
    """Each rank's lookups, and the gradient of its shard; `wanted` and `gradients` have one entry per rank."""
    ranks = len(wanted)

    def one_rank(grid):
        rank = grid.world.rank
        held = -(-len(whole) // ranks)
        own = np.zeros((held, whole.shape[1]), "f4")
        own[: len(whole[rank::ranks])] = whole[rank::ranks]
        shard = tf.Variable(own)
        with tf.GradientTape() as tape:
            asking = row_exchange.ask(tf.constant(wanted[rank]), tf.constant(True), grid.world, "asked")
            rows = row_exchange.look_up(shard, asking, wire, grid.world, "tables")
            told = tf.reduce_sum(rows * gradients[rank])
        return rows.numpy(), tape.gradient(told, shard), threads.sent(grid)

    return threads.run(ranks, 1, one_rank)


def drawn(ranks, rows, width, seed):
    generator = np.random.default_rng(seed)
    whole = generator.normal(size=(rows, width)).astype("f4")
    wanted = [generator.integers(0, rows, generator.integers(0, 12)).astype("i4") for _ in range(ranks)]
    return whole, wanted, [generator.normal(size=(len(each), width)).astype("f4") for each in wanted]


def summed(whole, wanted, gradients, travelling=lambda gradient, row: gradient):
    """The gradient of the whole table: each rank's sums in the order of its samples, added up in rank order."""
    total, touched = np.zeros_like(whole), set()
    for numbers, gradient in zip(wanted, gradients, strict=True):
        own = np.zeros_like(whole)
        for number, each in zip(numbers, gradient, strict=True):
            own[number] += each
        for number in np.unique(numbers):
            total[number] += travelling(own[number], whole[number])
        touched |= set(numbers.tolist())
    return total, touched


@given(**CASES)
def test_rows_are_those_of_one_table_and_gradients_are_merged(ranks, rows, width, seed):
    whole, wanted, gradients = drawn(ranks, rows, width, seed)
    expected, touched = summed(whole, wanted, gradients)
    for rank, (got, sparse, _) in enumerate(looked_up(whole, wanted, gradients, RowWire(width, width, "float32"))):
        np.testing.assert_array_equal(got, whole[wanted[rank]])
        numbers = sparse.indices.numpy() * ranks + rank
        assert len(set(numbers.tolist())) == len(numbers) and set(numbers.tolist()) == {
            each for each in touched if each % ranks == rank
        }
        np.testing.assert_array_equal(sparse.values.numpy(), expected[numbers])


@given(**CASES, dtype=st.sampled_from(["float32", "float16", "bfloat16"]), share=st.floats(0, 1))
def test_of_each_row_the_largest_pass_in_the_wires_dtype(ranks, rows, width, seed, dtype, share):
    """As with a `Threshold` after the table, whose mask is also applied to gradients."""
    whole, wanted, gradients = drawn(ranks, rows, width, seed)
    kept = max(1, round(share * width))

    def rounded(values):
        return tf.cast(tf.cast(values, dtype), "float32").numpy()

    def masked(values, row):
        chosen = np.argsort(-np.abs(row), kind="stable")[:kept]
        return np.where(np.isin(np.arange(width), chosen), values, 0).astype("f4")

    expected, _ = summed(whole, wanted, gradients, lambda gradient, row: rounded(masked(gradient, row)))
    for rank, (got, sparse, _) in enumerate(looked_up(whole, wanted, gradients, RowWire(width, kept, dtype))):
        for number, row in zip(wanted[rank], got, strict=True):
            np.testing.assert_array_equal(row, rounded(masked(whole[number], whole[number])))
        numbers = sparse.indices.numpy() * ranks + rank
        np.testing.assert_array_equal(sparse.values.numpy(), expected[numbers])


def test_as_many_bytes_travel_as_are_told():
    whole, wanted, gradients = drawn(3, 30, 20, 1)
    for kept, dtype, row, gradient in ((20, "float32", 80, 80), (5, "float32", 20 + 3, 20), (5, "float16", 10 + 3, 10)):
        told = [set(numbers.tolist()) for numbers in wanted]
        for rank, (_, _, sent) in enumerate(looked_up(whole, wanted, gradients, RowWire(20, kept, dtype))):
            for other in {0, 1, 2} - {rank}:
                mine = sum(number % 3 == other for number in told[rank])
                theirs = sum(number % 3 == rank for number in told[other])
                assert sent[other] == 4 * (1 + mine) + theirs * row + mine * gradient


def test_a_wish_that_cannot_be_is_told_to_all_ranks():
    def one_rank(grid):
        numbers = tf.constant([0, 1], tf.int32)
        asking = row_exchange.ask(numbers, tf.constant(grid.world.rank != 1), grid.world, "asked")
        return asking.culprits.numpy().tolist()

    assert threads.run(3, 1, one_rank) == [[1]] * 3


# ---- the layer, on one rank ----


@pytest.fixture
def started():
    hvd.init(local_size=1)


def test_the_layer_is_keras_embeddings_and_a_threshold(started):
    sizes, features = (7, 1, 5), 6
    layer = ShardedTables(sizes, features, sparsity=0.5, seed=3)
    categories = np.array([[6, 0, 4], [0, 0, 0], [6, 0, 2]])
    got = layer(categories)
    tables = layer.read()
    assert [table.shape for table in tables] == [(size, features) for size in sizes]
    whole = np.concatenate(tables)
    assert whole.min() < -0.04 and 0.04 < whole.max() <= 0.05 and abs(whole.mean()) < 0.02
    embeddings = [keras.layers.Embedding(size, features) for size in sizes]
    for number, (embedding, table) in enumerate(zip(embeddings, tables, strict=True)):
        embedding.build()
        embedding.set_weights([table])
        np.testing.assert_array_equal(got[:, number], Threshold(0.5)(embedding(categories[:, number])))
    doubled = [2 * table for table in tables]
    layer.assign(doubled)
    assert all(map(np.array_equal, layer.read(), doubled))
    again = ShardedTables.from_config(layer.get_config())
    again(categories)
    assert all(map(np.array_equal, again.read(), tables))  # initial values follow from the seed
    with pytest.raises(ValueError, match=r"tables of the shapes \[\(7, 6\), \(1, 6\), \(5, 6\)\], got \[\(7, 6\)\]"):
        layer.assign(tables[:1])


def test_what_cannot_be_is_refused(started):
    for wrong in ({"sizes": []}, {"sizes": [3, 0]}, {"features": 0}, {"sparsity": 1.0}, {"wire_dtype": "int8"}):
        with pytest.raises(ValueError, match="^Expected "):
            ShardedTables(**{"sizes": [3], "features": 2, **wrong})
    layer = ShardedTables([3, 5], 2)
    with pytest.raises(ValueError, match=r"Expected categories \[batch, 2\], .* got shape \(1, 3\)"):
        layer(np.zeros((1, 3), "int32"))
    layer = ShardedTables([3, 5], 2)
    assert layer(np.zeros((0, 2), "int32")).shape == (0, 2, 2)
    for wrong in ([[3, 0]], [[0, -1]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"of sizes \[3, 5\]"):
            layer(np.array(wrong))


def test_a_shard_is_not_exchanged_as_if_all_had_the_same(started):
    layer = ShardedTables([3, 5], 2, name="tables")
    model = keras.Sequential([keras.Input((2,), dtype="int32"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match=r"of .*tables/shard to stay on their ranks, .* local_layers="):
        model.train_on_batch(np.zeros((1, 2), "int32"), np.zeros((1, 1)))
    with hvd.DistributedGradientTape(tf.GradientTape(), local_layers=layer) as tape:
        told = tf.reduce_sum(model(np.zeros((1, 2), "int32")))
    assert isinstance(tape.gradient(told, [layer.shard.value])[0], tf.IndexedSlices)

"""Embedding tables with rows on real ranks: trained as in one process; invalid categories are reported on all."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.pipeline import ShardedTables, Threshold
from tests.parallel.cases import case, thorough
from tests.parallel.training import assert_replicas_equal, on_every_rank, raises

L = keras.layers
SIZES, FEATURES = (11, 3, 40), 12
ROWS = 12  # of a batch over all ranks; divisible by 1, 2 and 3


def model_of(vectors_of, **options):
    """A model of looked-up vectors and one dense layer, with the same initial weights each time."""
    categories = keras.Input((len(SIZES),), dtype="int32")
    start = keras.initializers.GlorotUniform(seed=5)
    told = L.Dense(1, kernel_initializer=start, name="told")(L.Flatten()(vectors_of(categories)))
    return keras.Model(categories, told, **options)


def embedded(tables, sparsity):
    """The same tables, not sharded, in one process."""

    def vectors_of(categories):
        embeddings = [
            L.Embedding(size, FEATURES, keras.initializers.Constant(table), name=f"table_{number}")
            for number, (size, table) in enumerate(zip(SIZES, tables, strict=True))
        ]
        looked_up = [each(categories[:, number]) for number, each in enumerate(embeddings)]
        return Threshold(sparsity)(keras.ops.stack(looked_up, axis=1))

    return model_of(vectors_of)


def batches(steps=6):
    generator = np.random.default_rng(1)
    categories = generator.integers(0, SIZES, size=(steps * ROWS, len(SIZES))).astype("i4")
    return categories, np.sin(categories.sum(axis=1, keepdims=True)).astype("f4")


@case(
    ranks=(1, 2, 3),
    over=lambda ranks: [{"sparsity": 0.5 if ranks == 2 else 0.0}],
)
def sharded_tables_are_trained_as_whole_ones(sparsity):
    """`fit` with Adam: lookups are equal bit for bit, weights after six steps up to the order of sums."""
    tables = ShardedTables(SIZES, FEATURES, sparsity, name="tables")
    ours = model_of(tables)
    whole = embedded(tables.read(), sparsity)
    categories, targets = batches()
    steps = ROWS // hvd.size()
    own = np.concatenate([each[hvd.rank() * steps :][:steps] for each in np.split(np.arange(len(targets)), 6)])
    shown = categories[own[:steps]]
    looked_up = tf.function(tables)(shown).numpy()
    vectors = keras.Model(whole.input, whole.get_layer("told").input)
    assert looked_up.tobytes() == vectors(shown).numpy().tobytes()
    before = tables.read()
    adam = {"learning_rate": 0.01, "epsilon": 1e-3}
    ours.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(**adam), local_layers=[tables]), "mse")
    ours.fit(categories[own], targets[own], batch_size=steps, shuffle=False, verbose=0)
    trained(whole, keras.optimizers.Adam(**adam), categories, targets)
    assert_replicas_equal(ours.get_layer("told").weights)
    after = tables.read()
    assert all(np.abs(one - other).max() > 1e-3 for one, other in zip(before, after, strict=True))
    for number, table in enumerate(after):
        np.testing.assert_allclose(table, whole.get_layer(f"table_{number}").get_weights()[0], rtol=0, atol=1e-6)
    for one, other in zip(ours.get_layer("told").get_weights(), whole.get_layer("told").get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def trained(model, optimizer, categories, targets):
    """Trains on whole batches with dense gradients, as Keras's Adam squares repeated sparse rows one by one."""

    @tf.function
    def gradients(shown, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(shown, training=True) - wanted) ** 2)
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    optimizer.build(model.trainable_variables)
    for begin in range(0, len(targets), ROWS):
        rows = slice(begin, begin + ROWS)
        optimizer.apply(gradients(categories[rows], targets[rows]), model.trainable_variables)


@case(ranks=(3,), quick=thorough)
def a_category_that_no_table_has_is_told_by_all():
    """All ranks raise, the tables are unchanged, and the next step works; a rank may have no samples."""
    tables = ShardedTables(SIZES, FEATURES, name="tables")
    model = model_of(tables)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[tables]), "mse")
    categories, targets = (each[:4] for each in batches())
    before = tables.shard.numpy()
    wrong = categories.copy()
    wrong[2, 1] = SIZES[1] if hvd.rank() == 1 else 0
    with raises(tf.errors.InvalidArgumentError, "expected categories in [0, size)", "[11, 3, 40]", "[1]"):
        model.train_on_batch(wrong, targets)
    assert np.array_equal(tables.shard.numpy(), before)
    model.train_on_batch(categories, targets)
    assert not np.array_equal(tables.shard.numpy(), before)
    counts = [4 * int(rank != 1) for rank in range(hvd.size())]
    vectors = tf.function(tables, reduce_retracing=True)(categories[: counts[hvd.rank()]])
    assert on_every_rank(len(vectors)) == counts

"""Embedding tables that no rank holds whole: each rank asks the others for the rows that its samples look up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.optimizers.variables import SHARD
from hvd_sparse.pipeline import row_exchange
from hvd_sparse.pipeline.threshold import kept_of
from hvd_sparse.transport import topology

_BLOCK = 4096  # rows whose first values are drawn together
_DTYPES = ("float32", "float16", "bfloat16")


@keras.saving.register_keras_serializable(package="hvd_sparse")
class ShardedTables(keras.layers.Layer):
    """Embeddings of several fields, whose rows are spread over all ranks (the tables of DCT's recommender, 3.1, 3.3).

    The rows of all tables are numbered consecutively, and row i is on rank i mod P. In a step each rank asks for the
    different rows of its samples, gets them, and sends back their gradients, which are added up on both sides: a row's
    owner gets one gradient of each row that was looked up, the sum over the samples of all ranks. So the layer must be
    local, `hvd.DistributedOptimizer(..., local_layers=[tables])`, which turns that sum into the mean that other
    variables get; otherwise the first step raises an error.

    All ranks must call it equally often, training or not, and once in a model; a rank's batch may have any number of
    samples, including none. XLA cannot compile it: `jit_compile=False`.

    Args:
        sizes: number of rows of each table.
        features: d, the length of an embedding.
        sparsity: the share of an embedding that is not sent: the largest elements of each are passed, as in
            `Threshold(sparsity)`, and gradients only at their places; 0 sends all.
        wire_dtype: "float32", "float16" or "bfloat16": how elements are sent, in both directions.
        limit: initial values are uniform in [-limit, limit).
        seed: of the initial values, which do not depend on the number of ranks.
        **kwargs: those of `keras.layers.Layer`; the name must be the same on all ranks.

    Raises:
        ValueError: if an argument is invalid, or an input has another number of fields.
        tf.errors.InvalidArgumentError: on every rank, before rows are sent, if a rank has a category that is not in [0,
            size) of its table.

    Shapes:
        int32 or int64 [batch, fields] to float32 [batch, fields, d].

    Steps and bytes sent per rank: 3 (P - 1), and with u different rows that it looks up elsewhere, and v that others
    look up here, 4 (P - 1 + u) for their numbers, and (u + v) d values of the wire's dtype, those of u as gradients;
    with a sparsity (u + v) k values, and d / 8 bytes for the places of each of v.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        features: int,
        sparsity: float = 0.0,
        wire_dtype: str = "float32",
        limit: float = 0.05,
        seed: int = 0,
        **kwargs: Any,
    ):
        if not sizes or min(sizes) < 1 or features < 1 or sum(sizes) >= 2**31:
            raise ValueError(
                f"Expected tables of at least one row and one feature, of less than 2**31 rows together, got sizes "
                f"{list(sizes)} and {features} features."
            )
        if not 0 <= sparsity < 1 or wire_dtype not in _DTYPES:
            raise ValueError(
                f"Expected a sparsity in [0, 1) and a wire_dtype of {', '.join(_DTYPES)}, got {sparsity!r} and "
                f"{wire_dtype!r}."
            )
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.sizes, self.features, self.sparsity = tuple(map(int, sizes)), int(features), float(sparsity)
        self.wire_dtype, self.limit, self.seed = wire_dtype, float(limit), int(seed)
        self.supports_jit = False
        self._starts = np.cumsum([0, *self.sizes])

    def build(self, input_shape):
        if len(input_shape) != 2 or input_shape[1] != len(self.sizes):
            raise ValueError(
                f"Expected categories [batch, {len(self.sizes)}], one for each table, got shape {tuple(input_shape)}."
            )
        world = topology.world()
        held = -(-int(self._starts[-1]) // world.size)
        self.shard = self.add_weight((held, self.features), initializer="zeros", autocast=False, name="shard")
        for variable in (self.shard, self.shard.value):
            setattr(variable, SHARD, True)
        self._assign_own(self._first_rows, world.rank, world.size)
        super().build(input_shape)

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs):
        categories = tf.cast(inputs, tf.int64)
        inside = tf.reduce_all((categories >= 0) & (categories < tf.constant(self.sizes, tf.int64)))
        numbers = tf.where(inside, categories + tf.constant(self._starts[:-1], tf.int64), 0)
        wire = row_exchange.RowWire(self.features, kept_of(self.features, self.sparsity), self.wire_dtype)
        asking = row_exchange.ask(
            tf.reshape(tf.cast(numbers, tf.int32), [-1]), inside, topology.world(), f"{self.name}.asked"
        )
        with tf.control_dependencies([self._require_inside(asking.culprits)]):
            rows = row_exchange.look_up(self.shard.value, asking, wire, topology.world(), self.name)
        return tf.reshape(rows, [-1, len(self.sizes), self.features])

    def compute_output_shape(self, input_shape):
        return (input_shape[0], len(self.sizes), self.features)

    def get_config(self):
        names = ("sizes", "features", "sparsity", "wire_dtype", "limit", "seed")
        own = {name: getattr(self, name) for name in names}
        kept = {name: value for name, value in super().get_config().items() if name != "dtype"}
        return {**kept, **own, "sizes": list(self.sizes)}

    def read(self) -> list[np.ndarray]:
        """All whole tables, as float32 [size, d] each; a collective, for tables that fit into a rank's memory."""
        world = topology.world()
        shards = world.allgather(tf.convert_to_tensor(self.shard.value), f"{self.name}.read").numpy()
        whole = shards.reshape(world.size, -1, self.features).transpose(1, 0, 2).reshape(-1, self.features)
        return np.split(whole[: self._starts[-1]], self._starts[1:-1])

    def assign(self, tables: Sequence[np.ndarray]) -> None:
        """Assigns a rank's rows from whole tables; not a collective.

        Raises:
            ValueError: if they have other shapes.
        """
        shapes = [tuple(np.shape(table)) for table in tables]
        expected = [(size, self.features) for size in self.sizes]
        if shapes != expected:
            raise ValueError(f"Expected tables of the shapes {expected}, got {shapes}.")
        whole = np.concatenate(tables)
        world = topology.world()
        self._assign_own(lambda begin, end: whole[begin:end], world.rank, world.size)

    def _assign_own(self, rows_of: Any, rank: int, ranks: int) -> None:
        """Assigns the rank's rows block by block, so that the whole tables are never in memory."""
        own = np.zeros(self.shard.shape, np.float32)
        for begin in range(0, int(self._starts[-1]), _BLOCK):
            end = min(begin + _BLOCK, int(self._starts[-1]))
            numbers = np.arange(begin, end)
            mine = numbers % ranks == rank
            own[numbers[mine] // ranks] = np.asarray(rows_of(begin, end))[mine]
        self.shard.assign(own)

    def _first_rows(self, begin: int, end: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=[self.seed, begin]))
        return generator.uniform(-self.limit, self.limit, (end - begin, self.features))

    def _require_inside(self, culprits: tf.Tensor) -> tf.Operation:
        told = (
            f"{self.name}: expected categories in [0, size) of tables of sizes {list(self.sizes)}, and "
            "these ranks have others. Look for numbers in the input that no table has. Nothing was written."
        )
        return tf.debugging.Assert(tf.equal(tf.size(culprits), 0), [told, culprits])

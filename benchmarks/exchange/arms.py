"""What bench_exchange.py times: a function from a gradient to its mean over all ranks, ours and others'.

An arm is a function of the gradient [d] that returns the mean in consecutive pieces, selection, error feedback and
scatter included. Ours exchange buckets of 25 MiB, all at once. (For dense recipes the optimizer uses smaller buckets:
they can leave earlier in a backward pass, which is not timed here, but cost more calls, which would be.) The literal
rivals follow the papers, with TensorFlow's and Horovod's own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange import arm_recipes
from hvd_sparse import collectives, ops
from hvd_sparse.exchange import plan as buckets
from hvd_sparse.exchange import state
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.spec import own_shard, shards

SPARSE = (
    "topk",
    "mstopk",
    "hitopk",
    "blocks",
    "auto",
    "NaiveAG, literal",
)  # keep part of the gradient from round to round

Exchange = Callable[[tf.Tensor], list[Any]]


class Ours:
    """One of our recipes, by a name of arm_recipes.py.

    Attributes:
        decided: recipes it chose for its buckets, if it has a choice.
    """

    def __init__(self, name: str, size: int, density: float):
        aggregator = arm_recipes.recipe(name, density)
        self._sizes = [run.size for run in shards(size, -(-4 * size // buckets.BUCKET_BYTES))]
        segments = [buckets.Segment(f"piece{number}", (length,)) for number, length in enumerate(self._sizes)]
        self._names = tuple(segment.name for segment in segments)
        plan = buckets.Plan(tuple(buckets.Bucket(tf.float32, (segment,)) for segment in segments), (), self._names)
        grid = hvd.topology.grid()
        self._planned = PlannedExchange(aggregator, plan, grid, f"ours.{name}.{size}.{density}", None)
        self.decided = sorted({choice for choice in state.account(self._planned)["decided"] if choice is not None})
        self._run = tf.function(self._exchange, autograph=False, jit_compile=False)

    def __call__(self, gradient: tf.Tensor) -> list[Any]:
        """The mean in pieces."""
        return self._run(gradient)

    def _exchange(self, gradient: tf.Tensor) -> list[tf.Tensor]:
        pieces = tf.split(gradient, self._sizes) if len(self._sizes) > 1 else [gradient]
        means = self._planned.exchange(dict(zip(self._names, pieces, strict=True)))
        return [means[name] for name in self._names]


def horovod_allreduce() -> Exchange:
    """Plain Horovod."""
    return tf.function(lambda gradient: [horovod.allreduce(gradient, name="rival.allreduce")], jit_compile=False)


def horovod_fp16() -> Exchange:
    """Horovod with its compression to float16."""

    def exchange(gradient: tf.Tensor) -> list[Any]:
        return [horovod.allreduce(gradient, name="rival.fp16", compression=horovod.Compression.fp16)]

    return tf.function(exchange, jit_compile=False)


def literal_naive_allgather(size: int, density: float) -> Exchange:
    """NaiveAG (CommLib 3.2, Eq. 3) with error feedback: tf.math.top_k, values and indices gathered one by one."""
    residual = tf.Variable(tf.zeros([size]), trainable=False)
    k = max(1, round(size * density))

    def exchange(gradient: tf.Tensor) -> list[Any]:
        total = gradient + residual
        _, indices = tf.math.top_k(tf.abs(total), k)
        values = tf.gather(total, indices)
        new_residual = tf.tensor_scatter_nd_update(total, indices[:, tf.newaxis], tf.zeros([k]))
        with tf.control_dependencies([residual.assign(new_residual)]):
            all_values = horovod.allgather(values, name="rival.values")
            all_indices = horovod.allgather(indices, name="rival.indices")
        return [tf.scatter_nd(all_indices[:, tf.newaxis], all_values, [size]) / hvd.size()]

    return tf.function(exchange, jit_compile=False)


def literal_torus(size: int) -> Exchange:
    """2DTAR (CommLib 5.3): reduce-scatter in the node, all-reduce across nodes, all-gather in the node."""
    node: Any = hvd.topology.node()
    cross: Any = hvd.topology.cross()
    padded = -(-size // node.size) * node.size

    def exchange(gradient: tf.Tensor) -> list[Any]:
        whole = tf.pad(gradient, [[0, padded - size]])
        shard = whole
        if node.size > 1:
            shard = horovod.reducescatter(whole, op=horovod.Sum, name="rival.scatter", process_set=node.process_set)
        if cross.size > 1:
            shard = horovod.allreduce(shard, op=horovod.Sum, name="rival.across", process_set=cross.process_set)
        if node.size > 1:
            shard = horovod.allgather(shard, name="rival.gather", process_set=node.process_set)
        return [shard[:size] / hvd.size()]

    return tf.function(exchange, jit_compile=False)


def torch_allreduce(size: int, address: str, port: int) -> Exchange:
    """torch.distributed with Gloo."""
    import torch
    import torch.distributed as distributed

    if not distributed.is_initialized():
        torch.set_num_threads(1)
        where = f"tcp://{address}:{port}"
        distributed.init_process_group("gloo", init_method=where, rank=hvd.rank(), world_size=hvd.size())
    buffer = torch.empty(size)

    def exchange(gradient: tf.Tensor) -> list[Any]:
        buffer.copy_(torch.from_numpy(gradient.numpy()))
        distributed.all_reduce(buffer)
        buffer.div_(hvd.size())
        return [buffer.numpy()]

    return exchange


def mpi_allreduce(size: int) -> Exchange:
    """mpi4py."""
    from mpi4py import MPI

    out = np.empty(size, np.float32)

    def exchange(gradient: tf.Tensor) -> list[Any]:
        MPI.COMM_WORLD.Allreduce(gradient.numpy(), out)
        np.divide(out, hvd.size(), out)
        return [out]

    return exchange


class HitopkSteps:
    """The four steps of HiTopKComm (CommLib Algorithm 2, Fig. 8), one function each, to be timed one by one.

    Attributes:
        names: names of the steps, in order.
    """

    names = ("reduce-scatter", "selection", "across nodes", "all-gather and scatter")

    def __init__(self, size: int, density: float):
        self._size = size
        self._node, self._cross = hvd.topology.node(), hvd.topology.cross()
        self._own = own_shard(size, self._node)
        self._residual = tf.Variable(tf.zeros([self._own.size]), trainable=False)
        self._k = max(1, round(self._own.size * density))
        self._functions = [
            tf.function(step, jit_compile=False) for step in (self._scatter, self._select, self._across, self._gather)
        ]

    def run(self, gradient: tf.Tensor, timed: Callable[[Callable[[], Any]], Any]) -> tf.Tensor:
        """Runs the steps, each through `timed`, and returns the mean."""
        given: tuple = (gradient,)
        for function in self._functions:
            given = timed(lambda function=function, given=given: function(*given))
        return given[0]

    def _scatter(self, gradient):
        if self._node.size == 1:
            return (gradient[tf.newaxis],)
        sizes = [shard.size for shard in shards(self._size, self._node.size)]
        received = self._node.alltoall(gradient, sizes, "steps.scatter")
        return (tf.reshape(received, [self._node.size, self._own.size]),)

    def _select(self, rows):
        values, indices, new_residual, _ = ops.feedback_mstopk(rows, self._residual, self._k)
        self._residual.assign(new_residual)
        return values, indices

    def _across(self, values, indices):
        slices = collectives.allgather_sum(tf.IndexedSlices(values, indices), self._cross, "steps.across")
        return slices.values, slices.indices

    def _gather(self, values, indices):
        placed = tf.IndexedSlices(values, indices + self._own.offset)
        total = collectives.allgather_sum(placed, self._node, "steps.gather")
        return (ops.sparse_sum(total.values, total.indices, self._size, divisor=hvd.size()),)

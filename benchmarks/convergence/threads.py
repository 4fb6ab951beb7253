"""Ranks of the convergence study as threads of one process.

Every rank has a distributed Keras optimizer, its exchange and its recipe's state, all the library's own, and a step is
one compiled function. Two things differ from real ranks. A collective passes arrays in memory (tests/threads.py). And
the model's variables lie in one flat variable for each bucket of the exchange, which changes no bit for element-wise
optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence.tasks import NORMS_EVERY
from examples.training import arguments
from hvd_sparse.exchange import plan
from hvd_sparse.keras.consolidation import consolidate_slots
from hvd_sparse.transport.communicator import Communicator, Grid


class FlatModel:
    """A Keras model whose trainable weights are one vector for each bucket of an exchange.

    Args:
        model: built.
        sends_all: whether the recipe sends whole gradients, which determines the buckets.
    """

    def __init__(self, model: keras.Model, sends_all: bool):
        self.model = model
        shapes = {str(number): tuple(each.shape) for number, each in enumerate(model.trainable_variables)}
        zeros = {name: tf.zeros(shape) for name, shape in shapes.items()}
        self._buckets = plan.make_plan(zeros, shapes, plan.usual_bucket_bytes(zeros, shapes, sends_all)).buckets

    def packed(self) -> list[np.ndarray]:
        """The model's weights as vectors; the bucket that is exchanged first comes last, as gradients become ready."""
        values = {str(number): each.numpy() for number, each in enumerate(self.model.trainable_variables)}
        return [bucket.pack(values).numpy() for bucket in reversed(self._buckets)]

    def unpacked(self, vectors: Sequence[Any]) -> list[tf.Tensor]:
        """The values of the model's trainable variables, in their order."""
        values: dict[str, tf.Tensor] = {}
        for bucket, vector in zip(reversed(self._buckets), vectors, strict=True):
            values.update(bucket.unpack(tf.convert_to_tensor(vector)))
        return [values[str(number)] for number in range(len(values))]

    def assign(self, vectors: Sequence[Any]) -> None:
        """Assigns these weights to the model."""
        for variable, value in zip(self.model.trainable_variables, self.unpacked(vectors), strict=True):
            variable.assign(value)

    def gradients(self, vectors: Sequence[tf.Tensor], loss: Callable[[Any], tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of a loss, called with the values of the trainable variables; vectors as from `packed`."""
        values = self.unpacked(vectors)
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = loss(values)
        found = {str(number): each for number, each in enumerate(tape.gradient(result, values))}
        return [bucket.pack(found) for bucket in reversed(self._buckets)]


class InGraph(Communicator):
    """A thread's place in a group for compiled code too, in which a collective is a call of Python.

    Args:
        own: the thread's communicator.
    """

    def __init__(self, own: Communicator):
        super().__init__(own.name, own.ranks, own.rank)
        self._own = own

    def _allreduce(self, tensor, op, name):
        return _called(lambda given: self._own.allreduce(given, op, name), [tensor], tensor.dtype)

    def _allgather(self, tensor, name, lengths):
        return _called(lambda given: self._own.allgather(given, name, lengths), [tensor], tensor.dtype)

    def _alltoall(self, tensor, splits, name):
        return _called(lambda given: self._own.alltoall(given, splits, name), [tensor], tensor.dtype)

    def _alltoall_ragged(self, tensor, splits, name):
        dtypes = (tensor.dtype, tf.int32)
        return _called(lambda given, rows: self._own.alltoall_ragged(given, rows, name), [tensor, splits], dtypes)

    def _broadcast(self, tensor, root, name):
        return _called(lambda given: self._own.broadcast(given, root, name), [tensor], tensor.dtype)


def _called(collective: Callable[..., Any], tensors: Sequence[tf.Tensor], dtypes: Any) -> Any:
    """What a collective of a thread returns: a tensor or several, of these dtypes."""
    if tf.executing_eagerly():
        return collective(*tensors)
    return tf.numpy_function(lambda *given: collective(*map(tf.constant, given)), tensors, dtypes)


class Rank:
    """One rank: flat weights, and the distributed optimizer that moves them.

    Args:
        grid: its place among the threads.
        begin: the weights, as `FlatModel.packed` gives them.
        make_optimizer: makes a distributed one, not built, from telemetry.
    """

    def __init__(self, grid: Grid, begin: Sequence[np.ndarray], make_optimizer: Callable[[hvd.Telemetry], Any]):
        self.telemetry = hvd.Telemetry(norms_every=NORMS_EVERY)
        self.optimizer = make_optimizer(self.telemetry)
        in_graph = Grid(*map(InGraph, grid))
        self.optimizer.exchange.grid = lambda: in_graph
        self.weights = [keras.Variable(each, name=f"bucket{number}") for number, each in enumerate(begin)]
        self.optimizer.build(self.weights)

    def agree(self) -> None:
        """Exchanges zeros once, as a script does before its first step."""
        arguments.agree_on(self.optimizer, self.weights)

    def compile(self, gradient: Callable[..., Sequence[tf.Tensor]], signature: Sequence[tf.TensorSpec]) -> None:
        """Compiles the step function, after `agree`.

        Args:
            gradient: function of the weights and a batch.
            signature: signature of a batch.
        """

        def step(*batch):
            with hvd.looking_ahead(self.optimizer):
                gradients = gradient([each.value.read_value() for each in self.weights], *batch)
            self.optimizer.apply(list(gradients), self.weights)

        self._step = tf.function(step, autograph=False).get_concrete_function(*signature)

    def train(self, epoch: int, batches: Iterable[Sequence[tf.Tensor]]) -> None:
        """Takes a step for each batch."""
        self.optimizer.exchange.set_epoch(epoch)
        for batch in batches:
            self._step(*batch)

    def consolidate(self) -> None:
        """Does what hvd_sparse's callbacks do at the end of an epoch: consolidates the optimizer's slots.

        This affects the bits: Keras's Adam without a first moment computes m + (g - m), and so rounds by its slot.
        """
        consolidate_slots(self.optimizer)

"""The collectives of a group of ranks, whatever transport carries the bytes.

Everything above this file uses a `Communicator` and a `Grid`; `topology` makes them from Horovod, tests make them from
threads.
"""

from __future__ import annotations

import abc
import functools
import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.transport.eager import eagerly

REDUCTIONS = ("sum", "min", "max")  # the reductions that ranks can ask for
_lock = threading.Lock()


class Communicator(abc.ABC):
    """A fixed, ordered group of ranks and the collectives among them.

    Every member must call the same collectives with the same names; calls with different names may be in
    flight at once. `rank` is the position in the group, `ranks` holds the world ranks of the members.

    A transport implements the five underscored methods; they are only called for more than one rank.
    """

    def __init__(self, name: str, ranks: Sequence[int], rank: int):
        self.name = name
        self.ranks = tuple(ranks)
        self.rank = rank

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return len(self.ranks)

    @property
    def world_rank(self) -> int:
        """This rank's number among all ranks."""
        return self.ranks[self.rank]

    def allreduce(self, tensor: tf.Tensor, op: str, name: str) -> tf.Tensor:
        """Combines a tensor over the ranks, element by element.

        Args:
            tensor: any shape, the same on every rank.
            op: one of REDUCTIONS. The order of the additions is the transport's.
            name: the same on every rank, unique among the collectives in flight.

        Returns:
            A tensor of the same shape and dtype, identical on every rank.

        Steps and bytes sent per rank: 2 (P - 1) and 2 (P - 1) / P of the tensor, as a ring.
        """
        if self.size == 1:
            return tf.identity(tensor)
        reduced = self._allreduce(tensor, op, name)
        reduced.set_shape(tensor.shape)
        return reduced

    def allreduce_each(self, tensors: Sequence[tf.Tensor], op: str, name: str) -> list[tf.Tensor]:
        """Combines several tensors over the ranks, each large one as soon as it is ready.

        For use in a graph: the transport may merge small ones. Arguments and results as for `allreduce`, for each
        tensor.
        """
        if self.size == 1:
            return [tf.identity(tensor) for tensor in tensors]
        reduced = self._allreduce_each(tensors, op, name)
        for before, after in zip(tensors, reduced, strict=True):
            after.set_shape(before.shape)
        return reduced

    def allgather(self, tensor: tf.Tensor, name: str, lengths: Sequence[int] | None = None) -> tf.Tensor:
        """Concatenates the tensors of all ranks along the first dimension, in rank order.

        Args:
            tensor: shape [length, ...]; length may differ between ranks.
            name: the same on every rank, unique among the collectives in flight.
            lengths: of all ranks, if known when the graph is built; the same list on every rank.

        Returns:
            Shape [sum of the lengths, ...], identical on every rank.

        Steps and bytes sent per rank: P - 1 and (P - 1) times the rank's own tensor, as a ring.
        """
        if self.size == 1:
            return tf.identity(tensor)
        gathered = self._allgather(tensor, name, lengths)
        return tf.ensure_shape(gathered, [None if lengths is None else sum(lengths), *tensor.shape[1:]])

    def alltoall(self, tensor: tf.Tensor, splits: Sequence[int], name: str) -> tf.Tensor:
        """Sends consecutive pieces of a tensor to the ranks, and concatenates what arrives in rank order.

        Args:
            tensor: shape [sum(splits), ...].
            splits: number of rows for each rank; the same list on every rank.
            name: the same on every rank, unique among the collectives in flight.

        Returns:
            Shape [P * splits[rank], ...]. An empty result is hidden from the graph, which would otherwise fold it into
            a constant and drop the collective, on this rank only.

        Steps and bytes sent per rank: P - 1 and all of the tensor except the rank's own piece.
        """
        if self.size == 1:
            return tf.identity(tensor)
        received = self._alltoall(tensor, splits, name)
        return tf.ensure_shape(received, [self.size * splits[self.rank] or None, *tensor.shape[1:]])

    def alltoall_ragged(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends consecutive pieces of a tensor to the ranks; each rank chooses the lengths of its own pieces.

        Args:
            tensor: shape [sum(splits), ...].
            splits: [P] int32, number of rows for each rank; known when it runs, and different on each rank.
            name: the same on every rank, unique among the collectives in flight.

        Returns:
            What has arrived, in rank order, [rows, ...], and the number of rows from each rank, [P] int32.

        Steps and bytes sent per rank: P - 1 and all of the tensor except the rank's own piece.
        """
        if self.size == 1:
            return tf.identity(tensor), tf.identity(splits)
        received, lengths = self._alltoall_ragged(tensor, splits, name)
        return tf.ensure_shape(received, [None, *tensor.shape[1:]]), tf.ensure_shape(lengths, [self.size])

    def exchange(self, tensor: tf.Tensor, to: int | None, source: int | None, name: str) -> tf.Tensor:
        """Sends a tensor to one rank and receives one from one rank; every member calls it, whether it sends or not.

        Args:
            tensor: shape [rows, ...]; rows may differ between ranks.
            to: position in the group of the rank to send to, not this one; None sends nothing.
            source: position of the rank whose `to` is this one; None if there is no such rank.
            name: the same on every rank, unique among the collectives in flight.

        Returns:
            The tensor of `source`, shape [rows there, ...]; without rows if `source` is None.

        Raises:
            ValueError: if `to` or `source` is this rank or outside the group.

        Steps and bytes sent per rank: 1 and the tensor, or nothing. Horovod has no point-to-point messages, so it also
        sends P - 2 empty ones.
        """
        for other in (to, source):
            if other is not None and (other == self.rank or not 0 <= other < self.size):
                raise ValueError(
                    f"Expected another rank of {self.size}, counted from 0, or None, got {other} on {self.rank}."
                )
        if self.size == 1:
            return tf.identity(tensor[:0])
        sent = tensor[:0] if to is None else tensor
        splits = tf.shape(sent)[0] * tf.constant([int(rank == to) for rank in range(self.size)], tf.int32)
        received, _ = self._alltoall_ragged(sent, splits, name)
        return tf.ensure_shape(received, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        """Gives every rank the tensor of the rank at position `root` of the group.

        Steps and bytes sent per rank: log2 P and at most log2 P times the tensor, as a tree.
        """
        if self.size == 1:
            return tf.identity(tensor)
        return tf.ensure_shape(self._broadcast(tensor, root, name), tensor.shape)

    def gather_descriptions(self, description: Any, name: str) -> list[Any]:
        """Collects a JSON-serialisable object from every rank, in rank order; runs at once, also under tf.function."""
        text = json.dumps(description, sort_keys=True)
        if self.size == 1:
            return [json.loads(text)]
        encoded = np.frombuffer(text.encode(), dtype=np.uint8)

        def gather() -> tuple[np.ndarray, bytes]:
            with tf.device("CPU:0"):  # the text comes from the host and goes back there
                lengths = self.allgather(tf.constant([len(encoded)], tf.int32), f"{name}.lengths").numpy()
                return lengths, self.allgather(tf.constant(encoded), f"{name}.text").numpy().tobytes()

        lengths, texts = eagerly(gather)
        ends = np.cumsum(lengths)
        return [json.loads(texts[end - length : end]) for end, length in zip(ends, lengths, strict=True)]

    def agree(self, description: dict[str, Any], subject: str, name: str) -> None:
        """Checks that all ranks have the same description.

        Args:
            description: JSON-serialisable; its top-level keys name what is compared.
            subject: what is described, for the message.
            name: the same on every rank, unique among the collectives in flight.

        Raises:
            ValueError: on every rank, naming the ranks that differ from the first one, and how.
        """
        descriptions = self.gather_descriptions(description, name)
        differences = [
            f"rank {rank} has {key} = {json.dumps(other.get(key))}, "
            f"rank {self.ranks[0]} has {json.dumps(descriptions[0].get(key))}"
            for rank, other in zip(self.ranks, descriptions, strict=True)
            for key in sorted({*descriptions[0], *other})
            if other.get(key) != descriptions[0].get(key)
        ]
        if differences:
            raise ValueError(
                f"The ranks disagree on {subject}: {'; '.join(differences[:4])}"
                f"{'; ...' if len(differences) > 4 else ''}. Every rank must build the same model and pass the "
                "same recipe; look for a branch or a random choice that depends on the rank."
            )

    def in_background(self) -> Communicator:
        """The same ranks, for eager calls from several threads at once; each call returns the same object."""
        return self

    @abc.abstractmethod
    def _allreduce(self, tensor: tf.Tensor, op: str, name: str) -> tf.Tensor: ...

    def _allreduce_each(self, tensors: Sequence[tf.Tensor], op: str, name: str) -> list[tf.Tensor]:
        return [self._allreduce(tensor, op, f"{name}.{number}") for number, tensor in enumerate(tensors)]

    @abc.abstractmethod
    def _allgather(self, tensor: tf.Tensor, name: str, lengths: Sequence[int] | None) -> tf.Tensor: ...

    @abc.abstractmethod
    def _alltoall(self, tensor: tf.Tensor, splits: Sequence[int], name: str) -> tf.Tensor: ...

    @abc.abstractmethod
    def _alltoall_ragged(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]: ...

    @abc.abstractmethod
    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor: ...


class LoneCommunicator(Communicator):
    """A group of one rank: every collective is the identity and sends nothing."""

    def __init__(self, name: str = "lone", rank: int = 0):
        super().__init__(name, [rank], 0)

    def _allreduce(self, tensor: tf.Tensor, op: str, name: str) -> tf.Tensor:
        return tensor

    def _allgather(self, tensor: tf.Tensor, name: str, lengths: Sequence[int] | None) -> tf.Tensor:
        return tensor

    def _alltoall(self, tensor: tf.Tensor, splits: Sequence[int], name: str) -> tf.Tensor:
        return tensor

    def _alltoall_ragged(self, tensor: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        return tensor, splits

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        return tensor


def unknown(tensor: tf.Tensor) -> tf.Tensor:
    """Passes on a tensor, uncopied, as one that is not known before the graph runs, even if it is a constant.

    When TensorFlow optimises a graph it computes everything that depends only on constants, once per graph. That must
    not happen to a collective: it would wait, on one rank only, for others that have yet to begin the step.

    Args:
        tensor: any shape and dtype.

    Returns:
        The tensor.
    """
    with _lock:  # ranks simulated by threads arrive here together
        variable = _never_written()
    return ops.library().hvd_sparse_unknown(tensor=tensor, unknown=variable.read_value())


@functools.cache
def _never_written() -> tf.Variable:
    """What a graph takes for unknown; made at first use, as this initialises TensorFlow, which fixes its GPUs."""
    return eagerly(lambda: tf.Variable(0, trainable=False, name="never_written"), makes_variables=True)


class Grid(NamedTuple):
    """The ranks as m nodes of n: all of them, those of this node, and those at the same position in their nodes."""

    world: Communicator
    node: Communicator
    cross: Communicator

    @staticmethod
    def of_nodes(nodes: int, local_size: int) -> list[list[int]]:
        """The world ranks of each node if ranks are numbered node by node."""
        return [list(range(node * local_size, (node + 1) * local_size)) for node in range(nodes)]

    @classmethod
    def lone(cls) -> Grid:
        """The grid of a single process."""
        return cls(LoneCommunicator("world"), LoneCommunicator("node"), LoneCommunicator("cross"))

"""A communicator that wraps a real one and counts what it carries."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives import streams
from hvd_sparse.collectives.prepared import HEAD
from hvd_sparse.transport.communicator import Communicator


class CountingCommunicator(Communicator):
    """Forwards every call, and counts the steps and the payload bytes that this rank sends.

    A pairwise exchange is one step; an all-to-all and an all-gather are P - 1. An all-gather counts as a ring to which
    every rank contributes its own tensor, and an all-reduce of vectors as one of pieces: 2 (P - 1) steps in which a
    rank sends all pieces but one twice. Calls by which ranks agree before or during a collective are counted
    separately.

    Attributes:
        steps: those of the collective itself.
        sent: bytes of the collective itself.
        calls: those of the collective itself.
        agreeing: calls by which the ranks agree.
        gathers: all all-gathers that were forwarded.
    """

    def __init__(self, carrier: Communicator):
        super().__init__(carrier.name, carrier.ranks, carrier.rank)
        self.carrier = carrier
        self.steps = self.sent = self.calls = self.agreeing = self.gathers = 0

    def exchange(self, tensor, to, source, name):
        self._count(1, 0 if to is None else tensor.shape[0], tensor)
        return self.carrier.exchange(tensor, to, source, name)

    def _allgather(self, tensor, name, lengths):
        telling = name.endswith((".greeting", ".faults", ".counts", ".disagreement.lengths", ".disagreement.text"))
        carried = tensor.shape[0] - HEAD if name.endswith(".greeting") else 0 if telling else tensor.shape[0]
        self.agreeing += telling
        self.gathers += 1
        if carried or not telling:
            self._count(self.size - 1, (self.size - 1) * carried, tensor)
        return self.carrier._allgather(tensor, name, lengths)

    def _alltoall_ragged(self, tensor, splits, name):
        self._count(self.size - 1, int(tf.reduce_sum(splits) - splits[self.rank]), tensor)
        return self.carrier._alltoall_ragged(tensor, splits, name)

    def _allreduce(self, tensor, op, name):
        if name.endswith(".reduce"):
            pieces = streams.piece_sizes(tensor.shape[0], self.size)
            kept = sum(pieces[(self.rank + skipped) % self.size] for skipped in (0, 1))
            self._count(2 * (self.size - 1), 2 * tensor.shape[0] - kept, tensor)
        else:
            self.agreeing += 1
        return self.carrier._allreduce(tensor, op, name)

    def _alltoall(self, tensor, splits, name):
        return self.carrier._alltoall(tensor, splits, name)

    def _broadcast(self, tensor, root, name):
        return self.carrier._broadcast(tensor, root, name)

    def _count(self, steps, rows, tensor):
        self.calls += 1
        self.steps += steps
        self.sent += rows * tensor.shape[1:].num_elements() * tensor.dtype.size

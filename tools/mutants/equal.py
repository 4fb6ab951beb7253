"""Drawn faults that are not faults: the program behaves the same with and without them."""

from __future__ import annotations

from typing import NamedTuple

from tools.mutants.faults import Fault


class Equal(NamedTuple):
    """A change of one line of a file, compared without blanks, and why it changes nothing."""

    path: str
    was: str
    becomes: str
    reason: str


EQUAL = (
    Equal(
        "lars/layerwise.py",
        "_names = 0  # number of plans with sharing that this process has made",
        "_names = 1  # number of plans with sharing that this process has made",
        "The number only makes names that differ, wherever it begins.",
    ),
    Equal(
        "hvd_sparse/aggregators/transaction.py",
        "return tf.where(tf.stack(told) & (culprits == 0), -1, culprits)",
        "return tf.where(tf.stack(told) & (culprits == 0), ~1, culprits)",
        "Any number below zero says that no rank is to blame.",
    ),
    Equal(
        "hvd_sparse/optimizers/shard_slots.py",
        "return parts + tf.cast(tf.reduce_sum(self._added_up(nothing)), parts.dtype)",
        "return parts - tf.cast(tf.reduce_sum(self._added_up(nothing)), parts.dtype)",
        "The parts are those of an empty shard, without elements: only the collective counts.",
    ),
    Equal(
        "hvd_sparse/exchange/naming.py",
        "weakref.finalize(exchange, numbers.discard, number).atexit = False",
        "weakref.finalize(exchange, numbers.discard, number).atexit = True",
        "When the process ends nobody asks for a free number any more.",
    ),
    Equal(
        "lars/trust_ratio.py",
        "size = values.shape[0]",
        "size = values.shape[ -1]",
        "A vector's first dimension is its last.",
    ),
    Equal(
        "link/sockets.py",
        "socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30 * HEARTBEAT)",
        "socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 31 * HEARTBEAT)",
        "How long a silent connection is waited for is a choice, and a test of the last second would repeat it.",
    ),
)


def reason(fault: Fault) -> str | None:
    """Why a fault gives an equal program; None if it is not known to."""
    change = (fault.path, fault.was.split(), fault.becomes.split())
    found = (each.reason for each in EQUAL if (each.path, each.was.split(), each.becomes.split()) == change)
    return next(found, None)

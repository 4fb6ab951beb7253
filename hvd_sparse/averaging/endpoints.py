"""The native side of `Datagrams` (ops/datagrams/datagrams.h), called through ctypes."""

from __future__ import annotations

import ctypes
import errno
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvd_sparse import ops

MOST_RANKS = 64
FATES = (
    "accepted",
    "bad_size",
    "bad_header",
    "bad_start",
    "bad_tag",
    "replayed",
    "other_round",
    "other_place",
    "repeated",
    "late",
)
_MESSAGE = 256  # bytes


class Settings(ctypes.Structure):
    """hvds_datagrams_settings."""

    _fields_ = [
        ("ranks", ctypes.c_int32),
        ("me", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("rotate", ctypes.c_int32),
        ("datagram", ctypes.c_int32),
        ("spread", ctypes.c_int32),
        ("offload", ctypes.c_int32),
        ("start", ctypes.c_uint32),
        ("rate", ctypes.c_double),
        ("multiple", ctypes.c_double),
        ("slack", ctypes.c_double),
        ("least", ctypes.c_double),
        ("patience", ctypes.c_double),
    ]


class Report(ctypes.Structure):
    """hvds_datagrams_report."""

    _fields_ = [
        ("fates", ctypes.c_int64 * len(FATES)),
        ("sent", ctypes.c_int64),
        ("silent", ctypes.c_uint64),
        ("rate", ctypes.c_double),
        ("waited", ctypes.c_double),
        ("scatter", ctypes.c_double),
        ("scatter_limit", ctypes.c_double),
        ("gather", ctypes.c_double),
        ("gather_limit", ctypes.c_double),
    ]


class Recorded(NamedTuple):
    """Which ranks contributed to the last round, and what arrived, by segment (of transformed blocks under `spread`).

    Attributes:
        segment: elements of a segment; the last one of a block may be shorter.
        contributors: [segments of a block at most] uint64; bit r is set if the vector of rank r is in the mean of this
            segment of the block that this rank owned; 0 if there is no such segment.
        came: [P, segments of a block at most] bool, by block: whether this rank has received the mean of a segment.
    """

    segment: int
    contributors: np.ndarray
    came: np.ndarray


def open_endpoint(settings: Settings, address: str, port: int) -> tuple[int, int]:
    """Opens a socket.

    Args:
        settings: of this rank.
        address: numeric.
        port: 0 lets the system choose one.

    Returns:
        The endpoint's number and its port.

    Raises:
        OSError: if no such socket can be opened.
        ValueError: if the settings are invalid.
    """
    message, bound = ctypes.create_string_buffer(_MESSAGE), ctypes.c_int32(port)
    number = _native().hvds_datagrams_open(ctypes.byref(settings), address.encode(), ctypes.byref(bound), message)
    if number < 1:
        told = message.value.decode()
        raise ValueError(f"Datagrams could not start: {told}.") if number == -22 else OSError(-number, told)
    return number, bound.value


def join(number: int, addresses: Sequence[str], ports: Sequence[int], starts: Sequence[int], key: bytes) -> None:
    """Tells an endpoint about the others, and starts it.

    Raises:
        OSError: if it cannot start.
    """
    ranks, message = len(addresses), ctypes.create_string_buffer(_MESSAGE)
    hosts = (ctypes.c_char_p * ranks)(*(address.encode() for address in addresses))
    failed = _native().hvds_datagrams_join(
        number, hosts, (ctypes.c_int32 * ranks)(*ports), (ctypes.c_uint32 * ranks)(*starts), key, message
    )
    if failed:
        raise OSError(failed, message.value.decode())


def report(number: int) -> Report | None:
    """What an endpoint has seen; None if it is closed."""
    told = Report()
    return None if _native().hvds_datagrams_report_of(number, ctypes.byref(told)) else told


def record(number: int, ranks: int) -> Recorded | None:
    """Which ranks contributed to an endpoint's last round, and what arrived; None if it is closed."""
    most = _native().hvds_datagrams_record(number, None, None, None)
    if most < 0:
        return None
    segment, contributors, came = ctypes.c_int64(), np.zeros(most, np.uint64), np.zeros([ranks, most], bool)
    _native().hvds_datagrams_record(number, ctypes.byref(segment), contributors.ctypes, came.ctypes)
    return Recorded(segment.value, contributors, came)


def listen(number: int, vector: np.ndarray, round: int, ranks: int) -> tuple[int, np.ndarray] | None:
    """Takes part in a round without contributing, see hvds_datagrams_average.

    Args:
        number: the endpoint.
        vector: [d] float32, what is kept where no mean arrives.
        round: the round to begin with; a later one is used if the others are already there.
        ranks: P.

    Returns:
        The round and the new vector; None if no other rank takes part.

    Raises:
        OSError: if the channel is closed, or datagrams are larger than the interface allows.
    """
    mean, counts = np.empty_like(vector), np.zeros([4, ranks], np.int64)
    message = ctypes.create_string_buffer(_MESSAGE)
    averaged = _native().hvds_datagrams_average(number, vector.ctypes, 0, round, mean.ctypes, counts.ctypes, message)
    if averaged == -errno.ETIMEDOUT:
        return None
    if averaged < 0:
        raise OSError(-averaged, message.value.decode())
    return averaged, mean


def close(number: int) -> None:
    """Says goodbye to the others and closes the endpoint; a second call does nothing."""
    _native().hvds_datagrams_close(number)


@functools.cache
def _native() -> ctypes.CDLL:
    kernels = ops.kernels()
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    kernels.hvds_datagrams_open.argtypes = [pointer, ctypes.c_char_p, pointer, pointer]
    kernels.hvds_datagrams_open.restype = number
    kernels.hvds_datagrams_join.argtypes = [number, pointer, pointer, pointer, ctypes.c_char_p, pointer]
    kernels.hvds_datagrams_report_of.argtypes = [number, pointer]
    kernels.hvds_datagrams_record.argtypes = [number, pointer, pointer, pointer]
    kernels.hvds_datagrams_record.restype = number
    kernels.hvds_datagrams_average.argtypes = [
        number,
        pointer,
        ctypes.c_int32,
        number,
        pointer,
        pointer,
        pointer,
    ]
    kernels.hvds_datagrams_average.restype = number
    kernels.hvds_datagrams_close.argtypes = [number]
    return kernels

"""Table of the transports under test; a new one needs a row and then runs through test_transports.py."""

from __future__ import annotations

from typing import NamedTuple

from hvd_sparse.averaging import Datagrams, Lossy, Reliable
from hvd_sparse.averaging.transports import Transport


class Member(NamedTuple):
    """A transport and how to test it.

    Attributes:
        transport: the transport to open.
        loses: whether it may lose anything in these tests.
        ranks: the number of threads.
    """

    transport: Transport
    loses: bool
    ranks: tuple[int, ...] = (1, 2, 3, 5)


LONG = 300.0  # seconds: time limits that even a busy machine does not reach
MEMBERS = {
    "reliable": Member(Reliable(), loses=False),
    "lossy, nothing": Member(Lossy(0.0), loses=False),
    "lossy, some": Member(Lossy(0.4, seed=3), loses=True),
    "lossy, all": Member(Lossy(1.0), loses=True),
    "datagrams": Member(Datagrams("127.0.0.1", slack=LONG, least=LONG, patience=LONG), loses=False),
}

"""The members of the role `Transport`; a new one gets a row, and with it the laws of test_transports.py."""

from __future__ import annotations

from typing import NamedTuple

from hvd_sparse.averaging import Datagrams, Lossy, Reliable
from hvd_sparse.averaging.transports import Transport


class Member(NamedTuple):
    """One member as it is to be tried.

    Attributes:
        transport: what is opened.
        loses: whether it may lose anything, as the laws try it.
        ranks: on how many threads.
    """

    transport: Transport
    loses: bool
    ranks: tuple[int, ...] = (1, 2, 3, 5)


LONG = 300.0  # seconds: limits that no busy machine reaches
MEMBERS = {
    "reliable": Member(Reliable(), loses=False),
    "lossy, nothing": Member(Lossy(0.0), loses=False),
    "lossy, some": Member(Lossy(0.4, seed=3), loses=True),
    "lossy, all": Member(Lossy(1.0), loses=True),
    "datagrams": Member(Datagrams("127.0.0.1", slack=LONG, least=LONG, patience=LONG), loses=False),
}

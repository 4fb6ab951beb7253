"""The arms of the question about a service on the same links: how training sends its vectors, and what has priority."""

from __future__ import annotations

import dataclasses

TCP, DATAGRAMS = "tcp", "datagrams"


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is on the links beside the service.

    Attributes:
        name: of the arm.
        transport: of the training; None if nobody trains.
        first: whether the service's packets go first.
        share: of the link's rate that datagrams take at most.
    """

    name: str
    transport: str | None = None
    first: bool = False
    share: float = 1.0


ALONE = Arm("service alone")
TCP_ALIKE = Arm("TCP", TCP)
TCP_SECOND = Arm("TCP, service first", TCP, True)
DATAGRAMS_ALIKE = Arm("datagrams", DATAGRAMS)
DATAGRAMS_SECOND = Arm("datagrams, service first", DATAGRAMS, True)
TRAINED = (TCP_ALIKE, TCP_SECOND, DATAGRAMS_ALIKE, DATAGRAMS_SECOND)


def slower(share: float) -> Arm:
    """Datagrams at a share of the link's rate, the service first."""
    return dataclasses.replace(DATAGRAMS_SECOND, name=f"{DATAGRAMS_SECOND.name}, at {share:g}", share=share)

"""The arms of the question about a service on the same links: how training sends its vectors, and what has priority."""

from __future__ import annotations

import dataclasses

TCP, DATAGRAMS = "tcp", "datagrams"


@dataclasses.dataclass(frozen=True)
class Arm:
    """The training traffic beside the service.

    Attributes:
        name: of the arm.
        transport: transport of the training; None without training.
        first: whether the service's packets have priority.
        share: maximum rate of the datagrams, as a share of the link's.
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
    """Datagrams at a share of the link's rate, with priority for the service."""
    return dataclasses.replace(DATAGRAMS_SECOND, name=f"{DATAGRAMS_SECOND.name}, at {share:g}", share=share)

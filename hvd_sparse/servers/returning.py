"""How a rank whose process is gone comes back: only as a client, as another rank serves its part by then."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvd_sparse.servers.connections import ServerLostError
from hvd_sparse.servers.member import Guest, caller_of
from hvd_sparse.servers.replicas import deputy_of
from hvd_sparse.servers.saving import Flight, Write
from hvd_sparse.servers.settings import Settings
from hvd_sparse.spec import Spec
from hvd_sparse.transport.meeting import Ticket
from link import Client, LinkError, result_of

_ATTEMPTS = 30
_PAUSE = 1.0  # seconds between attempts


@dataclasses.dataclass
class _NotKept:
    """Stands in for a member's keeper; a checkpoint contains nothing of a guest."""

    flight: Flight = dataclasses.field(default_factory=Flight)
    unsent: Callable[[], np.ndarray] | None = None
    memory: Callable[[], Mapping[str, np.ndarray]] = dict
    write: Write | None = None

    def begin(self) -> None:
        """Does nothing: nothing waits for it."""


def come_back(shards: Sequence[Spec], ticket: Ticket, settings: Settings) -> Guest:
    """Begins at all servers as a rank that was gone, and pulls all parameters; not a collective.

    If this rank's part is not served yet, it waits for the deputy, which takes it over as for any other client. What
    the rank had not sent when it was gone is lost; a push that was on the way may or may not count.

    Args:
        shards: of all servers.
        ticket: of this rank, whose former process has ended.
        settings: the same as before.

    Raises:
        ValueError: if there are no replicas, so that the rank's part is lost with it.
        ServerLostError: if a server cannot be reached, or all ranks have ended.
    """
    require_replicas(settings)
    client = Client(ticket.addresses, caller_of(shards, ticket, settings))
    try:
        _announce(client, ticket.rank, len(shards))
        return Guest(shards, client, ticket, _NotKept(), settings)
    except BaseException:
        client.close()
        raise


def require_replicas(settings: Settings) -> None:
    """Raises ValueError if ranks cannot come back."""
    if settings.replicas is None:
        raise ValueError(
            "A lost rank can return only if another one serves its part of the parameters: pass replicas=1 on all "
            "ranks."
        )


def _announce(client: Client, rank: int, ranks: int) -> None:
    """Tells the witness, which is asked whether this rank is gone, that it no longer has a replica."""
    witness, why = deputy_of(rank, ranks), ""
    for _ in range(_ATTEMPTS):
        try:
            result_of(client.ask(witness, "returned", check=_heard))
            return
        except LinkError as problem:
            why = str(problem)
            time.sleep(_PAUSE)
    raise ServerLostError(
        f"Rank {witness}, which is to serve the part of rank {rank}, does not answer: {why}. If all ranks have ended, "
        "there is nothing to return to; otherwise restart the job from its last checkpoint."
    )


def _heard(kind: str, fields: Mapping[str, Any], payload: Any) -> None:
    """Decodes the answer, which is empty."""

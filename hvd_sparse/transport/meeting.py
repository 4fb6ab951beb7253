"""How ranks exchange addresses and a secret: one collective, before they communicate without collectives."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from typing import NamedTuple

from hvd_sparse.transport import host_names
from hvd_sparse.transport.communicator import Communicator
from link import hold

_SECRET_BYTES = 32


class Meeting(NamedTuple):
    """The addresses and the secret that ranks have agreed on; keep the secret to this process.

    Attributes:
        addresses: where the ranks that serve listen, in their order.
        secret: of this meeting, random; the same on every rank.
        held: keeps this rank's port until its server has it; None if it does not serve.
    """

    addresses: tuple[str, ...]
    secret: bytes
    held: socket.socket | None

    def __repr__(self) -> str:
        return f"Meeting({len(self.addresses)} addresses)"


class Ticket(NamedTuple):
    """What a rank needs to come back after its process has ended; it contains a secret.

    Attributes:
        rank: the rank that comes back.
        addresses: where the ranks listen, or did.
        secret: of their meeting.
    """

    rank: int
    addresses: tuple[str, ...]
    secret: bytes

    def __repr__(self) -> str:
        return f"Ticket(rank {self.rank})"

    def to_bytes(self) -> bytes:
        """All fields, the secret included."""
        return json.dumps([self.rank, self.addresses, self.secret.hex()]).encode()

    @classmethod
    def from_bytes(cls, told: bytes) -> Ticket:
        """What `to_bytes` has encoded; ValueError, which does not repeat the input, if it is something else."""
        try:
            rank, addresses, secret = json.loads(told)
            if type(rank) is int and 0 <= rank < len(addresses):
                return cls(rank, tuple(str(each) for each in addresses), bytes.fromhex(secret))
        except (ValueError, TypeError):
            pass
        raise ValueError("Expected a complete ticket from hvd.servers.ticket, got something else.") from None


def meet(world: Communicator, serving: Sequence[int], interface: str | None, name: str) -> Meeting:
    """Finds a port for each rank that serves, and a secret for all; a collective.

    Args:
        world: all ranks.
        serving: the ranks that are to listen.
        interface: network interface, or address, of this host; None is the address by which the others know it.
        name: the same on every rank, unique among the collectives in flight.

    Raises:
        OSError: on every rank, if one cannot listen.
    """
    held, address, problem = None, "", ""
    if world.rank in serving:
        held, address, problem = _try_to_hold(interface or host_names.own())
    told = world.gather_descriptions([address, problem], f"{name}.addresses")
    problems = [f"rank {rank} {said}" for rank, (_, said) in zip(world.ranks, told, strict=True) if said]
    if problems:
        raise OSError(
            f"{'; '.join(problems)}. Pass interface=, the network interface or the address that connects the hosts."
        )
    own = secrets.token_hex(_SECRET_BYTES) if world.rank == 0 else ""
    secret = world.gather_descriptions(own, f"{name}.secret")[0]
    return Meeting(tuple(told[rank][0] for rank in serving), bytes.fromhex(secret), held)


def _try_to_hold(bind: str) -> tuple[socket.socket | None, str, str]:
    try:
        held, address = hold(bind)
    except OSError as error:
        return None, "", f"cannot listen at {bind}: {error}"
    return held, address, ""

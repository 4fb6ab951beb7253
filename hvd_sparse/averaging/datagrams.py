"""Averaging by datagrams (UDP): what the network loses stays lost, and no rank waits longer than a stated time."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import time
import weakref
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.averaging import endpoints
from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.endpoints import Recorded
from hvd_sparse.averaging.transports import Averaged, Channel, Transport
from hvd_sparse.spec import describe
from hvd_sparse.transport import host_names
from hvd_sparse.transport.communicator import Communicator
from hvd_sparse.transport.meeting import meet
from link import resolve

_HEADERS = {4: 28, 6: 48}  # bytes of IP and UDP
_PERSON = b"hvds datagrams 1"


@dataclasses.dataclass(frozen=True)
class Datagrams(Transport):
    """Sends each segment of a vector once, as a datagram, and averages what has arrived when the time is up.

    The reduce-scatter and all-gather of section 4 of Yu et al. 2019, but segments are lost instead of blocks. A phase
    ends when everything has arrived, when all ranks have said that they have sent all of theirs, or, as in OptiReduce
    (NSDI 2025), at its limit. The limit is the shorter of `multiple` times bytes / rate and `slack` times the median of
    recent phases (or times bytes / rate if that is longer, as when the rate has just dropped), and at least `least`.
    The all-gather may use what the reduce-scatter leaves of its limit, as other ranks may still be in the
    reduce-scatter.

    A round begins when all ranks have entered it. A rank that has not after `patience` seconds is silent: no rank waits
    for it or sends it vectors until it takes part again, and then it continues in the round that the others are in.

    Datagrams are authenticated by SipHash-2-4 with 128 bits (Aumasson and Bernstein 2012), with a key for each job,
    process start and direction, and are not encrypted. Anything else is dropped and counted.

    Attributes:
        interface: network interface, or address, of this host; None is the address by which the others know it. It may
            differ between ranks.
        rate: bits per second, headers included, that a rank sends at most: what the slowest link of a host carries,
            divided by the number of ranks there. None adapts, starting at 100 Mbit/s, and loses some messages
            meanwhile.
        mtu: bytes of an IP packet on the narrowest link between the ranks.
        multiple: the limit of a phase, as a multiple of bytes / rate; the rate is that of the slowest rank.
        slack: the limit as a multiple of the median of the last nine phases, or of bytes / rate if that is longer.
        least: seconds that a phase may last in any case.
        patience: seconds that a round waits for missing ranks.
        spread: whether ranks send a randomised Hadamard transform of each block over its segments, as in OptiReduce
            (NSDI 2025): a lost segment then removes a little of many elements instead of all of a stretch. The result
            is the mean up to rounding, not to the bit.
        offload: whether the system may split and join datagrams (UDP_SEGMENT, UDP_GRO), if it can: half the processor
            time.

    Steps and bytes sent per rank: 2 and 2 (P - 1) / P of the vector, plus 56 bytes for each datagram.
    """

    interface: str | None = None
    rate: float | None = None
    mtu: int = 1500
    multiple: float = 2.0
    slack: float = 1.5
    least: float = 0.05
    patience: float = 5.0
    spread: bool = False
    offload: bool = True

    def __post_init__(self):
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"Expected a rate above 0 in bits per second, such as 1e9, or None, got {self.rate}.")
        if not 576 <= self.mtu <= 65535:
            raise ValueError(f"Expected an mtu of 576 to 65535 bytes, got {self.mtu}.")
        for name in ("multiple", "slack", "least", "patience"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"Expected {name} above 0, got {getattr(self, name)}.")

    def account(self) -> dict[str, Any]:
        return {name: value for name, value in describe(self).items() if name != "interface"}

    def open(self, size: int, world: Communicator, rotate: bool, name: str) -> DatagramsChannel:
        """Opens a channel, see `Transport.open`.

        Raises:
            OSError: on every rank, if one cannot listen.
            ValueError: if there are more than 64 ranks, or, on every rank, if some have IPv4 addresses and others IPv6.
        """
        if world.size > endpoints.MOST_RANKS:
            raise ValueError(
                f"Datagrams works with at most {endpoints.MOST_RANKS} ranks, got {world.size}: use "
                "hvd.averaging.Reliable()."
            )
        number, own = self._try_to_open(size, world.rank, world.size, rotate)
        told = [End(*each) for each in world.gather_descriptions(own, f"{name}.ends")]
        try:
            _require_one_network(world, told)
            secret = meet(world, (), None, name).secret
            return self._join(number, Ticket(world.rank, size, rotate, told, secret.hex()))
        except BaseException:
            endpoints.close(number)
            raise

    def reopen(self, ticket: Ticket) -> DatagramsChannel:
        """Opens a channel in a new process for a rank whose former process has ended; not a collective.

        Args:
            ticket: of the channel that the rank had.

        Raises:
            OSError: if it cannot listen at its old address and port.
        """
        former = ticket.ends[ticket.rank]
        number, own = self._try_to_open(ticket.size, ticket.rank, len(ticket.ends), ticket.rotate, former)
        if own.problem:
            raise OSError(f"Rank {ticket.rank} {own.problem}; this was its former address, which must be free.")
        ends = [own if rank == ticket.rank else end for rank, end in enumerate(ticket.ends)]
        return self._join(number, ticket._replace(ends=ends))

    def _try_to_open(
        self, size: int, rank: int, ranks: int, rotate: bool, former: End | None = None
    ) -> tuple[int, End]:
        """This rank's endpoint and its address; 0 and the reason if it failed, so that the others can be told."""
        bind = former.address if former else self.interface or host_names.own()
        start = max(int(time.time()), former.start + 1 if former else 0)
        try:
            address = resolve(bind)
            settings = endpoints.Settings(
                ranks=ranks,
                me=rank,
                size=size,
                rotate=rotate,
                datagram=self.mtu - _HEADERS[_version(address)],
                spread=self.spread,
                offload=self.offload,
                start=start,
                rate=self.rate or 0.0,
                multiple=self.multiple,
                slack=self.slack,
                least=self.least,
                patience=self.patience,
            )
            number, port = endpoints.open_endpoint(settings, address, former.port if former else 0)
        except (OSError, ValueError) as error:
            return 0, End("", 0, 0, f"cannot listen at {bind}: {error}")
        return number, End(address, port, start, "")

    def _join(self, number: int, ticket: Ticket) -> DatagramsChannel:
        key = hashlib.blake2b(key=bytes.fromhex(ticket.secret), person=_PERSON, digest_size=16).digest()
        addresses, ports, starts, _ = zip(*ticket.ends, strict=True)
        endpoints.join(number, addresses, ports, starts, key)
        return DatagramsChannel(number, ticket, self.spread)


class End(NamedTuple):
    """Where a rank listens.

    Attributes:
        address: numeric.
        port: UDP.
        start: when its process began to listen, in seconds since 1970; a later process of the same rank has a greater
            one.
        problem: why it cannot listen; empty if it can.
    """

    address: str
    port: int
    start: int
    problem: str


class Ticket(NamedTuple):
    """What a rank needs to come back after its process has ended; it contains a secret.

    Attributes:
        rank: the rank that comes back.
        size: d.
        rotate: whether owners change.
        ends: where each rank listens.
        secret: the job's secret, as hexadecimal digits.
    """

    rank: int
    size: int
    rotate: bool
    ends: list[End]
    secret: str

    def __repr__(self) -> str:
        return f"Ticket(rank {self.rank})"

    def to_json(self) -> list[Any]:
        """All fields, the secret included, as lists, numbers and strings."""
        return [self.rank, self.size, self.rotate, [list(end) for end in self.ends], self.secret]

    @classmethod
    def from_json(cls, told: list[Any]) -> Ticket:
        """The ticket from the output of `to_json`; ValueError, TypeError or LookupError if it is something else."""
        rank, size, rotate, ends, secret = told
        bytes.fromhex(secret)
        ticket = cls(int(rank), int(size), bool(rotate), [End(*end) for end in ends], secret)
        ticket.ends[ticket.rank]
        return ticket


class Listened(NamedTuple):
    """The result of a round to which this rank contributed nothing.

    Attributes:
        round: the round that was averaged.
        vector: [d] float32, the means, and the old values where none arrived.
        came: [P, segments of a block at most] bool, by block: whether the mean of a segment arrived.
    """

    round: int
    vector: np.ndarray
    came: np.ndarray


class DatagramsChannel(Channel):
    """One rank's endpoint.

    Attributes:
        ticket: lets another process take this one's place.
        spread: whether blocks are transformed.
    """

    def __init__(self, number: int, ticket: Ticket, spread: bool = False):
        """Takes an endpoint that has joined the others."""
        self.ticket, self.spread = ticket, spread
        self._number, self._ranks = number, len(ticket.ends)
        self._close = weakref.finalize(self, endpoints.close, number)  # at the latest when the process ends

    def average(self, vector: tf.Tensor, round: tf.Tensor) -> Averaged:
        """Averages a vector, see `Channel.average`.

        Raises:
            tf.errors.AbortedError: if the channel is closed, or datagrams are larger than the interface allows.
        """
        mean, counts, averaged = ops.library().hvd_datagrams_average(
            vector=vector, round=round, endpoint=self._number, size=self.ticket.size, ranks=self._ranks
        )
        return Averaged(mean, counts[0::2], counts[1::2], averaged)

    def segments(self) -> np.ndarray:
        """Which segments exist, [P, segments of a block at most] bool, by block."""
        recorded = self._recorded()
        blocks = Blocks(self.ticket.size, self._ranks)
        lengths = np.diff(np.minimum(np.arange(self._ranks + 1) * blocks.length, blocks.size))
        counts = -(-lengths // recorded.segment)
        return np.arange(recorded.came.shape[1]) < counts[:, None]

    def listen(self, vector: np.ndarray, round: int) -> Listened | None:
        """Takes part in a round without contributing: a rank that comes back takes over what the others have.

        It averages the block that it owns, as in any round, from what the others send.

        Args:
            vector: [d] float32, what is kept where no mean arrives.
            round: at least 0; the channel moves to a later one if the others are already there.

        Returns:
            None if no other rank has entered the round within the transport's patience.

        Raises:
            OSError: if the channel is closed, or datagrams are larger than the interface allows.
        """
        listened = endpoints.listen(self._number, vector, round, self._ranks)
        return None if listened is None else Listened(*listened, self._recorded().came)

    def _recorded(self) -> Recorded:
        recorded = self.recorded()
        if recorded is None:
            raise OSError("The channel is closed.")
        return recorded

    def report(self) -> dict[str, Any]:
        """What this rank has seen, for telemetry.

        Returns:
            - datagrams: how many have arrived, by what became of them: accepted, rejected (bad_size, bad_header,
              bad_start, bad_tag, replayed), or genuine but of no use (other_round, other_place, repeated, late).
            - sent: the number of datagrams sent.
            - silent: ranks that are not waited for.
            - rate: bits per second at which this rank sends now.
            - waited: seconds until all ranks had entered the last round.
            - reduce_scatter, all_gather: seconds of the last one and its limit.

            {} when the channel is closed.
        """
        told = endpoints.report(self._number)
        if told is None:
            return {}
        return {
            "datagrams": dict(zip(endpoints.FATES, told.fates, strict=True)),
            "sent": told.sent,
            "silent": [rank for rank in range(self._ranks) if told.silent >> rank & 1],
            "rate": told.rate,
            "waited": told.waited,
            "reduce_scatter": (told.scatter, told.scatter_limit),
            "all_gather": (told.gather, told.gather_limit),
        }

    def recorded(self) -> Recorded | None:
        """Which ranks contributed to the last round, and what arrived, by segment; None when the channel is closed."""
        return endpoints.record(self._number, self._ranks)

    def close(self) -> None:
        self._close()


def _require_one_network(world: Communicator, ends: list[End]) -> None:
    problems = [f"rank {rank} {end.problem}" for rank, end in zip(world.ranks, ends, strict=True) if end.problem]
    if problems:
        raise OSError(
            f"{'; '.join(problems)}. Pass interface=, the network interface or the address that connects the hosts."
        )
    if len({_version(end.address) for end in ends}) > 1:
        listed = ", ".join(f"rank {rank}: {end.address}" for rank, end in zip(world.ranks, ends, strict=True))
        raise ValueError(f"Expected addresses of one kind, IPv4 or IPv6, got {listed}: pass them as interface=.")


def _version(address: str) -> int:
    return ipaddress.ip_address(address.partition("%")[0]).version

"""A client's connections to all servers: whole steps, whatever is lost on the way."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.servers import wire
from hvd_sparse.servers.messages import Entries, MessageError, Pull, Push
from hvd_sparse.servers.pushing import Copy
from hvd_sparse.servers.saving import Flight
from hvd_sparse.spec import Spec
from link import Client, LinkError, WireError

_ATTEMPTS = 10  # to get an answer to one message, over connections that end
_PAUSE = 1.0  # seconds between them, for a network that is about to come back


class ServerLostError(RuntimeError):
    """A server does not answer any more."""


class SaveError(OSError):
    """A checkpoint of servers could not be taken down or written; training can go on."""


class Volume(NamedTuple):
    """How much has gone one way in steps, over all servers, this rank's own among them.

    Attributes:
        values: how many.
        bytes: of payload.
    """

    values: int = 0
    bytes: int = 0

    def plus(self, parts: Sequence[Entries]) -> Volume:
        """With these."""
        values = sum(len(each.values) for each in parts)
        return Volume(self.values + values, self.bytes + sum(each.nbytes for each in parts))


class Connections:
    """What one client says to all servers; not for several threads at once."""

    def __init__(self, client: Client, shards: Sequence[Spec], flight: Flight):
        """Takes the link's client, connected to a server for each shard, and what notes pushes; pulls everything."""
        self._client, self._servers, self._flight = client, range(len(shards)), flight
        self.copy = Copy(shards)
        self.number = 0
        self.pushes = 0  # of all clients, that servers have applied, the least that any has told
        self.sent, self.received = Volume(), Volume()
        self.seconds_waiting = 0.0
        self._lost: ServerLostError | None = None
        self._take(0, self._ask_each(self._servers, "begin", [{}] * len(shards)))

    def step(self, rate: float, chosen: Sequence[Entries]) -> None:
        """Pushes a gradient, of which each server gets its part, and takes up what they answer.

        Raises:
            ServerLostError: where a server cannot be reached; the copy is as before the step, or partly newer.
        """
        number = self.number + 1
        self._flight.sends(number, chosen)
        fields = [wire.push_fields(Push(number, rate, entries)) for entries in chosen]
        began = time.monotonic()
        self._take(number, self._ask_each(self._servers, "push", fields, _payloads(chosen)))
        self.seconds_waiting += time.monotonic() - began
        self._flight.arrived()
        self.number = number
        self.sent = self.sent.plus(chosen)

    def published(self) -> np.ndarray:
        """The servers' parameters as they are, [d] float32, whatever this client has."""
        return self._whole("publish")

    def pause(self) -> np.ndarray:
        """Tells all servers not to wait for this client until it pushes again; gives what `published` does."""
        return self._whole("pause")

    def averaged(self, values: np.ndarray) -> np.ndarray:
        """Tells the first server values [n] float32 that are not trained; gives the mean of what all have told last."""
        entries = Entries(values)
        return self._ask_each([0], "average", [wire.entries_fields(entries)], _payloads([entries]))[0].parameters.values

    def leave(self) -> np.ndarray:
        """Tells all servers that this client pushes no more; gives what `published` does once all clients have."""
        return self._whole("leave")

    def part(self) -> None:
        """Tells all servers that this client needs nothing any more; those that are gone need not know."""
        told = [self._client.ask(server, "part", check=lambda *_: None) for server in self._servers]
        concurrent.futures.wait(told)

    def save(self, checkpoint: int) -> list[str]:
        """Has all ranks write what they have at one moment, in which servers stand still.

        Args:
            checkpoint: its number.

        Returns:
            The SHA-256 of each rank's file.

        Raises:
            SaveError: where a rank cannot; it names the rank.
            ServerLostError: where a server cannot be reached.
        """
        nothing: list[dict[str, Any]] = [{} for _ in self._servers]
        try:
            applied = [np.frombuffer(told, np.int64) for told in self._tell_each("stand_still", nothing)]
            mine = [wire.numbers([last[rank] for last in applied]) for rank in self._servers]
            self._tell_each("keep", nothing, mine)
        finally:
            self._tell_each("go_on", nothing)
        return self._tell_each("write", [{"checkpoint": checkpoint} for _ in self._servers])

    def _tell_each(self, kind: str, fields: Sequence[dict[str, Any]], payloads: Sequence[bytes] | None = None) -> Any:
        """What each server says to what is no step; SaveError where one of them cannot do it."""
        answers = self._ask_each(self._servers, kind, fields, payloads, _said)
        problems = [f"rank {rank}: {told}" for rank, (told, failed) in enumerate(answers) if failed]
        if problems:
            raise SaveError(f"The servers' state could not be saved. {'; '.join(problems)}")
        return [told for told, _ in answers]

    def _whole(self, kind: str) -> np.ndarray:
        pulls = self._ask_each(self._servers, kind, [{}] * len(self._servers))
        return np.concatenate([pull.parameters.values for pull in pulls])

    def _take(self, number: int, pulls: Sequence[Pull]) -> None:
        for server, pull in enumerate(pulls):
            self.copy.take(server, number, pull)
        if number > 0:
            self.received = self.received.plus([pull.parameters for pull in pulls])
        self.pushes = min(pull.pushes for pull in pulls)

    def _ask_each(
        self,
        servers: Sequence[int],
        kind: str,
        fields: Sequence[dict[str, Any]],
        payloads: Sequence[bytes] | None = None,
        check: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """Asks several servers at once; what each answers, by default a `Pull`."""
        if self._lost is not None:
            raise self._lost
        bodies = payloads or [b""] * len(servers)

        def ask(place: int) -> concurrent.futures.Future[Any]:
            return self._client.ask(servers[place], kind, bodies[place], check=check or _pull, **fields[place])

        asked = {place: ask(place) for place in range(len(servers))}
        for _ in range(_ATTEMPTS):
            failed = _failed(asked)
            if not failed:
                return [asked[place].result() for place in range(len(servers))]
            lost = {servers[place]: asked[place].exception() for place in failed}
            time.sleep(_PAUSE)
            asked.update({place: ask(place) for place in failed})
        self._lost = ServerLostError(
            f"{'; '.join(f'The server of rank {server} does not answer: {why}' for server, why in lost.items())}. Its "
            "part of the parameters is lost with it: start the job again from what was saved last."
        )
        raise self._lost


def _payloads(parts: Sequence[Entries]) -> list[bytes]:
    return [wire.payload(each) for each in parts]


def _said(kind: str, fields: dict[str, Any], received: Any) -> tuple[Any, bool]:
    """What an answer says that is no pull, and whether that is a failure."""
    if kind == "failed":
        return fields["problem"], True
    return fields.get("sha256", bytes(received)), False


def _failed(asked: Mapping[int, concurrent.futures.Future[Any]]) -> list[int]:
    """Waits until all have answered, or one cannot; those that could not."""
    concurrent.futures.wait(asked.values(), return_when=concurrent.futures.FIRST_EXCEPTION)
    return [place for place, each in asked.items() if each.done() and isinstance(each.exception(), LinkError)]


def _pull(kind: str, fields: dict[str, Any], received: Any) -> Pull:
    try:
        return wire.pull_of(fields, received)
    except MessageError as complaint:
        raise WireError(str(complaint)) from None

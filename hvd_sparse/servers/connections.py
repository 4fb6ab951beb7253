"""A client's connections to all servers, which complete whole steps whatever is lost on the way."""

from __future__ import annotations

import concurrent.futures
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.compression.base import Compressor
from hvd_sparse.servers import wire
from hvd_sparse.servers.messages import Entries, MessageError, Pull, Push
from hvd_sparse.servers.pushing import Copy, decoder
from hvd_sparse.servers.replicas import Replicas, deputy_of
from hvd_sparse.servers.saving import Flight
from hvd_sparse.spec import Spec
from link import Client, LinkError, PartnerLostError, WireError, result_of, wait

_ATTEMPTS = 10  # to get an answer to one message, over connections that fail
_PAUSE = 1.0  # seconds between them, so that the network may recover
_LEASES = 10.0  # leases for which a client looks for a server that may have a deputy


class ServerLostError(PartnerLostError, RuntimeError):
    """A server no longer answers."""


class SaveError(OSError):
    """A checkpoint of the servers could not be taken or written; training can go on."""


class Volume(NamedTuple):
    """How much was sent in one direction in steps, to or from all servers, including this rank's own.

    Attributes:
        values: number of values.
        bytes: bytes of payload.
    """

    values: int = 0
    bytes: int = 0

    def plus(self, parts: Sequence[Entries]) -> Volume:
        """The volume with these entries added."""
        values = sum(len(each.values) for each in parts)
        return Volume(self.values + values, self.bytes + sum(each.nbytes for each in parts))


class Connections:
    """A client's messages to all servers; not for several threads at once.

    Attributes:
        copy: of all parameters.
        number: of its last push.
        pushes: number of pushes of all clients that servers have applied; the smallest that any server has reported.
        sent, received: volumes in steps.
        seconds_waiting: time spent in steps waiting for servers.
        updates_lost: updates that servers had made and their deputies had not received.
    """

    def __init__(
        self,
        client: Client,
        shards: Sequence[Spec],
        flight: Flight,
        replicas: Replicas | None = None,
        pull: Compressor | None = None,
    ):
        """Begins at all servers and pulls all parameters.

        Args:
            client: of the link, connected to all ranks.
            shards: of the ranks.
            flight: records what is pushed.
            replicas: how servers are replicated.
            pull: the compressor that servers use for pulls.
        """
        self._client, self._flight, self._replicas = client, flight, replicas
        self._decoders = [decoder(pull, shard) for shard in shards]
        self._places = list(range(len(shards)))  # the rank that serves each shard
        self._versions = [0] * len(shards)  # the newest version seen
        self.copy = Copy(shards)
        self.number = self.pushes = self.updates_lost = 0
        self.sent, self.received = Volume(), Volume()
        self.seconds_waiting = 0.0
        self._lost: ServerLostError | None = None
        self._take(0, self._ask_each("begin", [{"push": 0, "again": False}] * len(shards)))

    def step(self, rate: float, chosen: Sequence[Entries]) -> None:
        """Pushes a gradient, each server getting its part, and applies the servers' answers to the copy.

        Raises:
            ServerLostError: if a server cannot be reached; the copy is as before the step, or partly newer.
        """
        number = self.number + 1
        self._flight.sends(number, chosen)
        fields = [wire.push_fields(Push(number, rate, entries)) for entries in chosen]
        began = time.monotonic()
        self._take(number, self._ask_each("push", fields, [wire.payload(each) for each in chosen]))
        self.seconds_waiting += time.monotonic() - began
        self._flight.arrived()
        self.number = number
        self.sent = self.sent.plus(chosen)

    def published(self) -> np.ndarray:
        """The servers' current parameters, [d] float32, whatever this client's copy holds."""
        return self._whole("publish")

    def pause(self) -> np.ndarray:
        """Tells all servers not to wait for this client until it pushes again; returns what `published` does."""
        return self._whole("pause")

    def averaged(self, values: np.ndarray) -> np.ndarray:
        """Sends the first server untrained values [n] float32; returns the mean of what all clients last sent."""
        entries = Entries(values)
        return self._ask_each("average", [wire.entries_fields(entries)], [wire.payload(entries)])[0].parameters.values

    def leave(self) -> np.ndarray:
        """Tells all servers that this client will push no more; returns what `published` does once all clients have."""
        return self._whole("leave")

    def part(self) -> None:
        """Tells all ranks that this client needs nothing more; ranks that are gone are skipped."""
        ranks = range(len(self._places))
        concurrent.futures.wait([self._client.ask(rank, "part", check=lambda *_: None) for rank in ranks])

    def save(self, checkpoint: int) -> list[str]:
        """Has all shards written as they are at one moment, at which the servers stand still.

        Args:
            checkpoint: its number.

        Returns:
            The SHA-256 of each shard's file.

        Raises:
            SaveError: if a rank cannot; the message names the rank.
            ServerLostError: if a server cannot be reached.
        """
        try:
            applied = [np.frombuffer(told, np.int64) for told in self._tell_each("stand_still")]
            mine = [wire.numbers([last[rank] for last in applied]) for rank in range(len(applied))]
            self._tell_each("keep", payloads=mine)
        finally:
            self._tell_each("go_on")
        return self._tell_each("write", {"checkpoint": checkpoint})

    def _tell_each(self, kind: str, fields: Mapping[str, Any] = {}, payloads: Sequence[Any] | None = None) -> Any:
        """Sends all servers a message outside a step and returns their answers; SaveError if one of them fails."""
        answers = self._ask_each(kind, [fields] * len(self._places), payloads, _said)
        problems = [f"rank {self._places[shard]}: {told}" for shard, (told, failed) in enumerate(answers) if failed]
        if problems:
            raise SaveError(f"The servers' state could not be saved. {'; '.join(problems)}")
        return [told for told, _ in answers]

    def _whole(self, kind: str) -> np.ndarray:
        pulls = self._ask_each(kind, [{}] * len(self._places))
        return np.concatenate([pull.parameters.values for pull in pulls])

    def _take(self, number: int, pulls: Sequence[Pull]) -> None:
        for server, pull in enumerate(pulls):
            self.copy.take(server, number, pull)
            self._versions[server] = pull.version
        if number > 0:
            self.received = self.received.plus([pull.parameters for pull in pulls])
        self.pushes = min(pull.pushes for pull in pulls)

    # ---- whole answers, whatever is lost on the way ----

    def _ask_each(
        self,
        kind: str,
        fields: Sequence[Mapping[str, Any]],
        payloads: Sequence[Any] | None = None,
        check: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """Asks the servers of the first shards, one for each field; returns each answer, by default a `Pull`."""
        if self._lost is not None:
            raise self._lost
        bodies: Sequence[Any] = payloads or [b""] * len(fields)

        def ask(shard: int) -> concurrent.futures.Future[Any]:
            own = {} if kind in wire.OF_SERVICES else {"shard": shard}
            answer = _of_who_serves(check or functools.partial(_pull, self._decoders[shard]))
            return self._client.ask(self._places[shard], kind, bodies[shard], check=answer, **own, **fields[shard])

        asked = {shard: ask(shard) for shard in range(len(fields))}
        why: dict[int, Any] = {}
        attempts, pause = self._patience()
        for _ in range(attempts):
            failed = _failed(asked)
            if not failed:
                return [asked[shard].result() for shard in range(len(fields))]
            why |= {shard: asked[shard].exception() for shard in failed}
            time.sleep(pause)
            for shard in failed:
                pull = self._begin_again(shard) if self._replicas is not None else None
                has_arrived = kind == "push" and pull is not None and pull.number == self.number + 1
                asked[shard] = _done(pull) if has_arrived else ask(shard)
        # The last attempt may have ended at the first of several shards that fail in every attempt.
        raise self._lost_all({shard: each for shard, each in why.items() if not _has_answered(asked[shard])})

    def _patience(self) -> tuple[int, float]:
        """How often to ask for an answer, and the seconds between two attempts."""
        if self._replicas is None:
            return _ATTEMPTS, _PAUSE
        pause = min(_PAUSE, self._replicas.lease / 5)
        return int(_LEASES * self._replicas.lease / pause), pause

    def _begin_again(self, shard: int) -> Pull | None:
        """Has the deputy take a shard over, if it may, and pulls all of it; None if the shard stays where it is."""
        deputy = deputy_of(shard, len(self._places))
        try:
            if not self._is_moved(shard, deputy):
                return None
            self._places[shard] = deputy
            fields = {"shard": shard, "push": self.number, "again": True}
            pull = result_of(self._client.ask(deputy, "begin", check=functools.partial(_pull, None), **fields))
        except LinkError:
            return None
        self.copy.take(shard, pull.number, pull)
        self.updates_lost += max(0, self._versions[shard] - pull.version)
        self._versions[shard] = pull.version
        return pull

    def _is_moved(self, shard: int, deputy: int) -> bool:
        version = self._versions[shard]
        asked = self._client.ask(deputy, "take_over", check=_taken, shard=shard, version=version)
        said, problem = result_of(asked)
        if problem:
            raise self._lost_all({shard: f"rank {deputy} cannot take its part over: {problem}"})
        return said

    def _lost_all(self, why: Mapping[int, Any]) -> ServerLostError:
        """Records the lost servers, so that every later request fails as well."""
        told = [
            f"The server of rank {self._places[shard]} does not answer: {str(each).rstrip('.')}"
            for shard, each in sorted(why.items())
        ]
        self._lost = ServerLostError(
            f"{'; '.join(told)}. Its part of the parameters is lost with it: restart the job from its last "
            "checkpoint, or from the last save."
        )
        return self._lost


class _MovedError(Exception):
    """The rank that was asked no longer serves the shard."""

    def __str__(self) -> str:
        return "it no longer serves this part of the parameters"


def _of_who_serves(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(kind: str, fields: dict[str, Any], received: Any) -> Any:
        if kind == "moved":
            raise _MovedError
        return check(kind, fields, received)

    return checked


def _done(pull: Any) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_result(pull)
    return future


def _said(kind: str, fields: dict[str, Any], received: Any) -> tuple[Any, bool]:
    """The content of an answer that is not a pull, and whether it reports a failure."""
    if kind == "failed":
        return fields["problem"], True
    return fields.get("sha256", bytes(received)), False


def _taken(kind: str, fields: dict[str, Any], received: Any) -> tuple[bool, str]:
    """Whether a deputy serves a shard now, and why it never will."""
    return kind == "done", fields.get("problem", "")


def _failed(asked: Mapping[int, concurrent.futures.Future[Any]]) -> list[int]:
    """Waits until all have answered, or one has failed; returns those that have failed."""
    wait(asked.values())
    return [place for place, each in asked.items() if each.done() and isinstance(each.exception(), _RETRIED)]


def _has_answered(asked: concurrent.futures.Future[Any]) -> bool:
    return asked.done() and asked.exception() is None


def _pull(decode: wire.Decode | None, kind: str, fields: dict[str, Any], received: Any) -> Pull:
    try:
        return wire.pull_of(fields, received, decode)
    except (MessageError, KeyError) as complaint:
        raise WireError(f"no pull: {complaint}") from None


_RETRIED = (LinkError, _MovedError)

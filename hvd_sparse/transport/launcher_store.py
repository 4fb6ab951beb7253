"""How ranks exchange information while Horovod starts: through the key-value store of its launcher.

Launchers that start ranks with Gloo have such a store, because Gloo finds its peers through it. If there is none,
nothing is exchanged. In elastic jobs the driver empties it at each change of the ranks.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)
START_VARIABLE = "HVD_SPARSE_START_TIMEOUT"
ELASTIC_VARIABLE = "HOROVOD_ELASTIC"
USUAL_START = 600.0  # seconds to wait for ranks that have not started yet
NAMED_AFTER = 30.0  # seconds until they are named
CONNECTED_PATIENCE = 300.0  # seconds to wait for ranks that Horovod has connected, and that do the same
_ANSWER = 30.0  # seconds to wait for the launcher, which should answer at once
_POLL = 0.05
# The launcher is on a host of the job: do not ask a proxy for outside hosts, which the environment may name.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def is_elastic() -> bool:
    """Whether the launcher lets ranks come and go."""
    return os.environ.get(ELASTIC_VARIABLE, "0") not in ("", "0")


class RanksMissingError(RuntimeError):
    """Ranks do not start, or cannot be connected."""


class Store(NamedTuple):
    """A scope of the launcher's store.

    Attributes:
        url: of the scope.
    """

    url: str

    @classmethod
    def of_job(cls, scope: str) -> Store | None:
        """A scope of this job's store; None if ranks have no store in common."""
        job = os.environ
        address, port = job.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), job.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
        if address is None or port is None or job.get("HOROVOD_CONTROLLER") != "gloo":
            return None
        return cls(f"http://{address}:{port}/{scope}")

    def put(self, key: object, value: Any, answer: float = _ANSWER) -> None:
        """Stores a JSON-serialisable value under a key; the launcher must answer within `answer` seconds."""
        request = urllib.request.Request(f"{self.url}/{key}", json.dumps(value).encode(), method="PUT")
        _open(request, timeout=answer)

    def get(self, key: object, patience: float, answer: float = _ANSWER) -> Any:
        """The value under a key, as soon as it is there; TimeoutError if it does not arrive.

        Args:
            key: of the value.
            patience: seconds to wait for it; 0 asks once.
            answer: seconds in which the launcher must answer.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                with _open(f"{self.url}/{key}", timeout=answer) as told:
                    return json.load(told)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"Expected {key} in the launcher's store within {patience:g} s, got nothing.")
            time.sleep(_POLL)

    def text(self, key: object, answer: float) -> str:
        """What the launcher answers to a key, which may take it `answer` seconds; OSError if it does not."""
        with _open(f"{self.url}/{key}", timeout=answer) as told:
            return told.read().decode()

    def clear(self, key: object, attempts: int) -> None:
        """Makes the store drop Horovod's own scope to which this key belongs; does nothing if it is already dropped.

        The store drops a scope after as many deletion requests as it has ranks, together with all such requests in
        other scopes: so the request is repeated.
        """
        for _ in range(attempts):
            try:
                _open(f"{self.url}/{key}", timeout=_ANSWER)
            except urllib.error.HTTPError:
                return
            _open(urllib.request.Request(f"{self.url}/{key}", method="DELETE"), timeout=_ANSWER)

    def everyone(self, rank: int, count: int, value: Any, most: float = math.inf) -> list[Any]:
        """The values of all ranks, in their order, however late one comes; each calls it, once for each scope.

        After `NAMED_AFTER` seconds the first rank that waits warns which ranks are missing.

        Args:
            rank: this rank.
            count: of the ranks.
            value: JSON-serialisable.
            most: an upper bound of the time limit, in seconds.

        Raises:
            RanksMissingError: on every rank that waits, if one does not come within the time limit.
            ValueError: if the environment has no number as time limit.
        """
        self.put(rank, [value])
        begun, limit, named, told = time.monotonic(), min(most, _start_limit()), False, None
        known: list[Any] = [None] * count
        while told is None:
            waited = time.monotonic() - begun
            if is_elastic():
                self._require_no_end()
            if rank == 0:
                told = self._collected(known, final=waited > limit)
            else:
                told = self.ask("everyone") or (self._listed(known) if waited > limit + NAMED_AFTER else None)
            if told is None and waited > NAMED_AFTER and not named:
                named = True
                _name_missing(rank, self._listed(known), limit)
            if told is None:
                time.sleep(min(_POLL + waited / 20, 0.5))  # hundreds of ranks may ask, for minutes
        missing = [each for each, answer in enumerate(told) if answer is None]
        if missing:
            raise RanksMissingError(
                f"{_ranks(missing).capitalize()} of {count} did not call hvd.init within {limit:g} s of the others: "
                "look for what ended or slows them (imports from a slow file system, for example). "
                f"{START_VARIABLE} sets the seconds."
            )
        return [answer for (answer,) in told]

    def _require_no_end(self) -> None:
        """Raises RanksMissingError if an elastic job's driver has told that a process has ended meanwhile."""
        ended = Store(f"{self.url.rpartition('/')[0]}/ended").ask("worker")
        if ended is not None:
            raise RanksMissingError(f"The process {ended} (host and local rank) has ended while the ranks start.")

    def _collected(self, known: list[Any], final: bool) -> list[Any] | None:
        """Tells the others all values if they are there, and what there is if that is final."""
        told = self._listed(known)
        if None in told and not final:
            return None
        self.put("everyone", told)
        return told

    def _listed(self, known: list[Any]) -> list[Any]:
        """Adds what is there under the keys of ranks that are not known yet."""
        for rank, answer in enumerate(known):
            known[rank] = self.ask(rank) if answer is None else answer
        return known

    def ask(self, key: object, answer: float = _ANSWER) -> Any:
        """The value under a key; None if there is none yet. The launcher must answer within `answer` seconds."""
        try:
            return self.get(key, 0, answer)
        except TimeoutError:
            return None

    def gather(self, rank: int, ranks: Sequence[int], value: Any) -> list[Any]:
        """The values of all ranks of a group, in their order; each of them calls it, once for each scope.

        Args:
            rank: this rank, one of `ranks`.
            ranks: the group, the same on every rank.
            value: JSON-serialisable.

        Raises:
            RanksMissingError: on every rank, if one does not answer.
        """
        self.put(rank, [value])
        if rank == ranks[0]:
            deadline = time.monotonic() + CONNECTED_PATIENCE
            self.put("gathered", [self._value(key, deadline) for key in ranks])
        try:
            told = self.get("gathered", 2 * CONNECTED_PATIENCE)  # the first rank itself waits for others
        except TimeoutError:
            told = [None, *([each] for each in ranks[1:])]  # only the first rank is known to be missing
        missing = [each for each, answer in zip(ranks, told, strict=True) if answer is None]
        if missing:
            raise RanksMissingError(
                f"Of the ranks {list(ranks)}, {missing} did not answer within {CONNECTED_PATIENCE:g} s after Horovod "
                "had started: look for their error, or for what slows them."
            )
        return [answer for (answer,) in told]

    def _value(self, key: int, deadline: float) -> Any:
        try:
            return self.get(key, deadline - time.monotonic())
        except TimeoutError:
            return None


def _name_missing(rank: int, told: Sequence[Any], limit: float) -> None:
    """Warns which ranks are missing, on the first rank that is there."""
    missing = [each for each, answer in enumerate(told) if answer is None]
    if missing and not any(told[:rank]):
        _log.warning(
            "waiting for %s of %d to call hvd.init, for %g s so far, and no longer than %g s.",
            _ranks(missing),
            len(told),
            NAMED_AFTER,
            limit,
        )


def _start_limit() -> float:
    text = os.environ.get(START_VARIABLE) or str(USUAL_START)
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 < limit < float("inf"):
        raise ValueError(f"Expected a number of seconds above 0 in {START_VARIABLE}, got {text!r}.")
    return limit


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


def forget_addresses() -> None:
    """Makes the launcher's store forget the addresses at which Horovod's ranks have found each other.

    All ranks call it, once all of them are connected and before any of them starts Horovod again. Horovod 0.28.1 does
    this itself, but its store clears all scopes' deletion requests whenever one scope is complete. Addresses left
    behind would be taken as new when Horovod is started again, and ranks would be refused.
    """
    job = os.environ
    firsts = {"global": "RANK", f"local_{job.get('HOROVOD_HOSTNAME')}": "LOCAL_RANK"}
    firsts[f"cross_{job.get('HOROVOD_LOCAL_RANK')}"] = "CROSS_RANK"
    for scope, place in firsts.items():
        store = Store.of_job(scope)
        if store is not None and job.get(f"HOROVOD_{place}") == "0":
            store.clear(0, attempts=4 * int(job["HOROVOD_SIZE"]))  # others that clear their scopes may reset the count

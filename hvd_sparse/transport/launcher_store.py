"""How ranks exchange information while Horovod starts: through the key-value store of its launcher.

Launchers that start ranks with Gloo have such a store, because Gloo finds its peers through it. If there is none, or
ranks may come and go (elastic), nothing is exchanged.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PATIENCE = 30.0  # seconds to wait for other ranks; then Horovod finds the problem by itself
CONNECTED_PATIENCE = 300.0  # the same for ranks that Horovod has connected, and that do the same
_ANSWER = 30.0  # seconds to wait for the launcher, which should answer at once
_POLL = 0.05
# The launcher is on a host of the job: do not ask a proxy for outside hosts, which the environment may name.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


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
        if address is None or port is None or job.get("HOROVOD_CONTROLLER") != "gloo" or "HOROVOD_ELASTIC" in job:
            return None
        return cls(f"http://{address}:{port}/{scope}")

    def put(self, key: object, value: Any) -> None:
        """Stores a JSON-serialisable value under a key."""
        request = urllib.request.Request(f"{self.url}/{key}", json.dumps(value).encode(), method="PUT")
        _open(request, timeout=_ANSWER)

    def get(self, key: object, patience: float = PATIENCE) -> Any:
        """The value under a key, as soon as it is there; TimeoutError if it does not arrive."""
        deadline = time.monotonic() + patience
        while True:
            try:
                with _open(f"{self.url}/{key}", timeout=_ANSWER) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"Expected {key} in the launcher's store within {patience:g} s, got nothing.")
            time.sleep(_POLL)

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

    def verdict(self, count: int, judge: Callable[[list[Any]], Any]) -> Any:
        """Rank 0's verdict on the values under keys 0 to count - 1; the same on all ranks.

        Args:
            count: of the keys.
            judge: called on rank 0 with the values, None for those that do not arrive.

        Raises:
            RuntimeError: if rank 0 does not answer.
        """
        if os.environ.get("HOROVOD_RANK") == "0":
            deadline = time.monotonic() + PATIENCE
            self.put("verdict", judge([self._value(key, deadline) for key in range(count)]))
        patience = 3 * PATIENCE  # rank 0 itself waits for others
        try:
            return self.get("verdict", patience)
        except TimeoutError:
            raise RuntimeError(
                f"Rank 0 did not start within {patience:g} s of this one: look for its error, or for what slows it."
            ) from None

    def gather(self, rank: int, ranks: Sequence[int], value: Any) -> list[Any]:
        """The values of all ranks of a group, in their order; each of them calls it, once for each scope.

        Args:
            rank: this rank, one of `ranks`.
            ranks: the group, the same on every rank.
            value: JSON-serialisable.

        Raises:
            RuntimeError: on every rank, if one does not answer.
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
            raise RuntimeError(
                f"Of the ranks {list(ranks)}, {missing} did not answer within {CONNECTED_PATIENCE:g} s after Horovod "
                "had started: look for their error, or for what slows them."
            )
        return [answer for (answer,) in told]

    def _value(self, key: int, deadline: float) -> Any:
        try:
            return self.get(key, deadline - time.monotonic())
        except TimeoutError:
            return None


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

"""How a server keeps its lease and its deputy's replica up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from hvd_sparse.servers.replicas import Replicas, deputy_of, payload_of
from hvd_sparse.servers.service import Service
from link import Client, LinkError

_ALONE = 3.0  # leases without a deputy after which a server goes on alone
_CUT_OFF = 6.0  # leases without a deputy that may be alive, after which it gives up
_log = logging.getLogger(__name__)


class Replicator:
    """Keeps a server's lease and its deputy's replica, on a thread of its own.

    Args:
        service: of this rank, whose own shard is replicated.
        client: of this rank.
        replicas: how the server is replicated.
    """

    def __init__(self, service: Service, client: Client, replicas: Replicas):
        self._service, self._shard, self._client, self._replicas = service, service.shard, client, replicas
        self._deputy = deputy_of(service.number, service.ranks)
        self._ended = threading.Event()
        self._heard_at = time.monotonic()
        self._sent_version: int | None = None
        self._alone = False
        self._shard.insure(limit=-1, until=0.0)
        self._thread = threading.Thread(target=self._run, name="servers-replicator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops; calling it again does nothing."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set() and self._tell(time.monotonic()):
            self._shard.is_due.wait(self._tick)
            self._shard.is_due.clear()

    @property
    def _tick(self) -> float:
        """Seconds between two signs of life."""
        return min(self._replicas.lease / 5, 0.5)

    def _tell(self, now: float) -> bool:
        """Sends a sign of life, or a replica if one is due; False if another rank serves the shard."""
        with self._service.lock:
            self._service.wakes()
            is_due = self._sent_version is None or self._shard.version - self._sent_version >= self._half
            version = self._shard.version
            told = (self._shard.state(), self._shard.standings()) if is_due else None
        fields: dict[str, Any] = {"shard": self._service.number, "there": told is not None}
        fields |= {"version": version, "pushes": 0, "gathered": 0}
        payload = b""
        if told is not None:
            fields |= {"pushes": told[0].pushes, "gathered": told[0].gathered_pushes}
            payload = payload_of(*told)
        try:
            goes_on = self._client.ask(self._deputy, "replica", payload, check=_goes_on, **fields).result()
        except LinkError:
            return self._without_deputy(now)
        with self._service.lock:
            if not goes_on:
                self._service.depose()
                return False
            self._heard_at, self._alone = now, False
            self._sent_version = version if told is not None else self._sent_version
            assert self._sent_version is not None
            limit, due = self._sent_version + self._replicas.age, self._sent_version + self._half
            self._shard.insure(limit, now + self._replicas.lease, due)
            self._service.own.advance()
        return True

    @property
    def _half(self) -> int:
        """Number of updates after which a replica is sent, so that the server need not wait for the confirmation."""
        return max(1, self._replicas.age // 2)

    def _without_deputy(self, now: float) -> bool:
        self._sent_version = None  # it may come back with nothing
        silence = (now - self._heard_at) / self._replicas.lease
        if not self._alone and silence > _ALONE:
            gone = self._deputy_is_gone()
            self._alone = gone is True
            if gone is False and silence > _CUT_OFF:
                return self._give_up()
            if self._alone:
                _log.warning(
                    "hvd_sparse servers: rank %d, which had the replica of part %d of the parameters, was lost. "
                    "Training continues without a replica of it.",
                    self._deputy,
                    self._service.number,
                )
        if self._alone:
            with self._service.lock:
                self._shard.insure(None, None)
                self._service.own.advance()
        self._ended.wait(self._tick)
        return True

    def _deputy_is_gone(self) -> bool | None:
        """Whether the witness says that the deputy is gone, None if it cannot say; with two ranks there is none."""
        witness = deputy_of(self._deputy, self._service.ranks)
        if witness == self._service.number:
            return True
        try:
            return self._client.ask(witness, "heard", check=_is_gone, rank=self._deputy).result()
        except LinkError:
            return False

    def _give_up(self) -> bool:
        _log.warning(
            "hvd_sparse servers: rank %d is cut off from its deputy and no longer serves.", self._service.number
        )
        with self._service.lock:
            self._service.depose()
        return False


def _goes_on(kind: str, fields: Mapping[str, Any], payload: Any) -> bool:
    return kind == "done"


def _is_gone(kind: str, fields: Mapping[str, Any], payload: Any) -> bool | None:
    return None if kind == "failed" else kind == "not_yet"

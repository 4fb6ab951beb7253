"""The slow link between a file server and its clients: what each operation waits for, and what is counted."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import AsyncIterator

import trio


class TokenBucket:
    """One rate for all readers, in the order in which they ask.

    There is no burst: what is not used is lost, and n bytes take n / rate seconds after those asked for before, so no
    interval carries more than its length times the rate, and the one answer that is being sent.
    """

    def __init__(self, rate: float | None):
        """Takes bytes per second; None is without a limit."""
        self._rate = rate
        self._free_at = 0.0  # when all that was asked for so far is sent

    async def send(self, count: int) -> None:
        """Waits until so many bytes are through."""
        if self._rate is None:
            return
        self._free_at = max(self._free_at, trio.current_time()) + count / self._rate
        await trio.sleep_until(self._free_at)


class Link:
    """Latency for each operation, one token bucket for all that is read, and a cap on operations in flight.

    An operation holds its place from its beginning to its end. The latency passes before its bytes are sent, so that
    the latency of one overlaps the bytes of another. Times are never shorter than what is asked for; timers are late by
    up to a millisecond.
    """

    def __init__(self, rate: float | None, latency: float, in_flight: int):
        """Takes bytes per second (None: no limit), seconds, and how many operations may be under way."""
        self._latency, self._bucket = latency, TokenBucket(rate)
        self._in_flight, self._places = in_flight, trio.Semaphore(in_flight)
        self._operations: collections.Counter[str] = collections.Counter()
        self._bytes = self._most = 0

    @contextlib.asynccontextmanager
    async def operation(self, kind: str) -> AsyncIterator[None]:
        """The time of one operation; it is counted when it begins."""
        async with self._places:
            self._operations[kind] += 1
            self._most = max(self._most, self._in_flight - self._places.value)
            await trio.sleep(self._latency)
            yield

    async def send(self, count: int) -> None:
        """Carries bytes to a client, within an operation; they are counted before they are sent."""
        self._bytes += count
        await self._bucket.send(count)

    def counted(self) -> bytes:
        """What has been counted so far, as JSON."""
        numbers = {"operations": dict(self._operations), "bytes": self._bytes, "most_in_flight": self._most}
        return json.dumps(numbers).encode()

"""What ranks tell each other before Horovod starts, through the key-value store of its launcher.

The launchers that start ranks with Gloo have such a store, because Gloo finds its peers by it. Where there is none, or
ranks may come and go (elastic), nothing is told.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

PATIENCE = 30.0  # seconds to wait for other ranks; then Horovod finds out by itself what is wrong
_ANSWER = 30.0  # seconds to wait for an answer of the launcher, which has it at once
_POLL = 0.05


class Store(NamedTuple):
    """A scope of the launcher's store.

    Attributes:
        url: of the scope.
    """

    url: str

    @classmethod
    def of_job(cls, scope: str) -> Store | None:
        """A scope of this job's store, None where ranks have none in common."""
        job = os.environ
        address, port = job.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), job.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
        if address is None or port is None or job.get("HOROVOD_CONTROLLER") != "gloo" or "HOROVOD_ELASTIC" in job:
            return None
        return cls(f"http://{address}:{port}/{scope}")

    def put(self, key: object, value: Any) -> None:
        """Puts what JSON can say under a key."""
        request = urllib.request.Request(f"{self.url}/{key}", json.dumps(value).encode(), method="PUT")
        urllib.request.urlopen(request, timeout=_ANSWER)

    def get(self, key: object, patience: float = PATIENCE) -> Any:
        """The value under a key, as soon as it is there; TimeoutError where it does not come."""
        deadline = time.monotonic() + patience
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/{key}", timeout=_ANSWER) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"Expected {key} in the launcher's store within {patience:g} s, it did not come.")
            time.sleep(_POLL)

    def verdict(self, count: int, judge: Callable[[list[Any]], Any]) -> Any:
        """What rank 0 makes of everything that was told, of the values of keys 0 to count - 1; the same on all ranks.

        Args:
            count: of the keys.
            judge: gets the values, None for those that do not come; of rank 0 it is called.

        Raises:
            RuntimeError: where rank 0 does not come.
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

    def _value(self, key: int, deadline: float) -> Any:
        try:
            return self.get(key, deadline - time.monotonic())
        except TimeoutError:
            return None

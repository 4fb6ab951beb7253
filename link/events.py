"""What a link reports to its user, who may count it or report it in other words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from link.session import Greeting

_log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """A refusal by a server.

    Attributes:
        reason: "protocol", "version", "server", "subject", "secret", "session", "message" or "fault", as sent to the
            other side.
        what: the refused thing, as text.
        greeting: what the other side has said of itself, if that is the reason. It has proved nothing.
    """

    reason: str
    what: str
    greeting: Greeting | None = None


class Events:
    """Notified of refused and gone askers and of lost servers; called by threads of servers and clients, so be brief.

    Attributes:
        refused_because: what a client reports of a server that has refused it, by reason; other reasons need no text.
    """

    refused_because: Mapping[str, str] = {
        "protocol": "it speaks another protocol",
        "version": "it speaks another version of the protocol",
        "server": "it has another number: list the addresses of servers in the same order in all processes",
        "subject": "it belongs to another job, or serves another subject",
        "secret": "it refused this process's secret: use the same in all processes",
        "fault": "it failed to handle a request: see its log",
    }

    def __init__(self, name: str = "link"):
        """Takes the prefix of messages."""
        self._name = name
        self._warned: set[str] = set()

    def refused(self, refusal: Refusal) -> None:
        """A server has refused a connection, or ended it."""
        if self.is_new(refusal):
            _log.warning("%s: refused %s; further refusals are not logged.", self._name, refusal.what)

    def gone(self, asker: int) -> None:
        """A server no longer has a connection to a process that it knew; the process may come back."""

    def lost(self, server: int, reason: str) -> None:
        """A server is left alone from now on."""

    def left_alone(self, server: int, place: str, reason: str, seconds: float) -> None:
        """Something is wanted of a server that is left alone, for the first time since it was lost.

        It is tried again each time that this many seconds have passed.
        """
        _log.warning(
            "%s: server %d at %s is unavailable: %s. It is retried every %g s.",
            self._name,
            server,
            place,
            reason,
            seconds,
        )

    def answers_again(self, server: int, place: str) -> None:
        """A server answers again that was left alone when something was wanted of it."""
        _log.info("%s: server %d at %s answers again.", self._name, server, place)

    def is_new(self, refusal: Refusal) -> bool:
        """Whether it is the first refusal for its reason; strangers must not be able to fill a log."""
        is_new = refusal.reason not in self._warned
        self._warned.add(refusal.reason)
        return is_new

"""The counters of the links between nodes, and their messages to users."""

from __future__ import annotations

import logging

import link
from datacache.counters import Counters

_log = logging.getLogger(__name__)


class PeerEvents(link.Events):
    """Counts events, and reports them in terms of nodes and samples."""

    refused_because = {
        "protocol": "it is not a datacache server",
        "version": "it runs another version of datacache",
        "server": "it is another node: World.peers must list the nodes in the same order on all of them",
        "subject": "it has other data, or decodes it differently: use the same source and decode function on all nodes",
        "secret": "it refused this process's secret: use the same on all nodes",
    }

    def __init__(self, counters: Counters, node: int):
        """Takes the counters, and the number of this node."""
        super().__init__("datacache")
        self._counters, self._node = counters, node

    def refused(self, refusal: link.Refusal) -> None:
        self._counters.add("refused.peers")
        if self.is_new(refusal):
            what = _what(refusal, self._node)
            _log.warning("datacache: node %d refused %s; further refusals are only counted.", self._node, what)

    def lost(self, server: int, reason: str) -> None:
        self._counters.add("failures.peers")

    def left_alone(self, server: int, place: str, reason: str, seconds: float) -> None:
        _log.warning(
            "datacache: node %d at %s is unavailable: %s. Its samples come from this node's disk or the source "
            "until it answers again; it is retried every %g s.",
            server,
            place,
            reason,
            seconds,
        )

    def answers_again(self, server: int, place: str) -> None:
        _log.info("datacache: node %d at %s answers again.", server, place)


def _what(refusal: link.Refusal, node: int) -> str:
    """Names what a node has refused."""
    said = refusal.greeting
    if said is not None and refusal.reason == "server":
        return f"a peer that expected node {said.server}, but this is {node}"
    if said is not None and refusal.reason == "subject":
        return f"node {said.asker}, which reads other data, or decodes it differently"
    return refusal.what

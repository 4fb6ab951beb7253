"""What all ranks of sharded servers must have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

from hvd_sparse.compression.base import Compressor
from hvd_sparse.servers.replicas import Replicas
from hvd_sparse.servers.rules import Rule
from hvd_sparse.spec import describe


class Settings(NamedTuple):
    """The arguments of `ShardedServers`.

    Attributes:
        push: with error feedback; None sends all.
        pull: without feedback; None sends all.
        rule: which pushes are applied when.
        interface: where this rank's server listens; None is the address of this host.
        replicas: how servers are replicated; None if they are not.
        lazy: whether an update skips elements without a gradient.
    """

    push: Compressor | None
    pull: Compressor | None
    rule: Rule
    interface: str | None
    replicas: Replicas | None = None
    lazy: bool = False

    def account(self) -> dict[str, Any]:
        """What must be the same on all ranks, JSON-serialisable."""
        replicas = None if self.replicas is None else list(self.replicas)
        described = {"push": describe(self.push), "pull": describe(self.pull), "rule": describe(self.rule)}
        return {**described, "replicas": replicas, "lazy": self.lazy}

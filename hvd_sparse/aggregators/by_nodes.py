"""One aggregator for few nodes, another for many."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable

from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.delegating import Delegating
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.block import Block
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.spec import parts

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ByNodes(Delegating):
    """Leaves each vector to the aggregator for the number of nodes that exchange it.

    It is chosen when the state of a vector is created, so a training that resumes on another number of nodes continues
    with what suits that number. A line that the first rank logs says which, and how much it sends.

    Attributes:
        choices: (the fewest nodes, the aggregator for so many nodes or more), in rising order, from one node on.

    Steps and bytes sent per rank: those of the chosen aggregator.
    """

    disk_name = "ByNodes"
    goes_by_nodes = True
    choices: tuple[tuple[int, Aggregator], ...]

    def __post_init__(self):
        fewest = [nodes for nodes, _ in self.choices]
        if fewest[:1] != [1] or fewest != sorted(set(fewest)):
            raise ValueError(f"Expected choices from one node on, with rising numbers of nodes, got {fewest}.")

    @property
    def sends_all(self):
        """Whether every choice sends everything, as this must not depend on the number of nodes."""
        return all(aggregator.sends_all for _, aggregator in self.choices)

    def at_density(self, density):
        return self.each(lambda aggregator: aggregator.at_density(density))

    def holding(self):
        return self.each(lambda aggregator: aggregator.holding())

    def each(self, change: Callable[[Aggregator], Aggregator]) -> ByNodes:
        """The same with another aggregator for each choice."""
        return ByNodes(tuple((fewest, change(aggregator)) for fewest, aggregator in self.choices))

    def for_nodes(self, nodes: int) -> Aggregator:
        """The aggregator for a number of nodes."""
        return [aggregator for fewest, aggregator in self.choices if fewest <= nodes][-1]

    def serving(self, state):
        return self.for_nodes(state.spec.grid.cross.size)

    def _create(self, spec, communicator):
        nodes = spec.grid.cross.size
        chosen = self.for_nodes(nodes)
        if spec.grid.world.rank == 0:
            _tell(nodes, _sent(chosen))
        return AggregatorState(spec, communicator, chosen._create(spec, communicator))


def _sent(aggregator: Aggregator) -> str:
    """What an aggregator sends."""
    found = [part for part in parts(aggregator) if isinstance(part, Compressor)]
    what = "updates" if any(isinstance(part, LocalUpdates) for part in found) else "gradients"
    block = next((part for part in found if isinstance(part, Block)), None)
    if block is not None:
        sent = f"one of {block.blocks} blocks of the {what} in each step, the same on all nodes"
        bits = block.coder.code_bytes(8)  # bytes of eight values
        return f"{sent if block.blocks > 1 else f'all {what}'}, {bits} bits a value"
    shares = [part.share for part in found if part.share is not None]
    return f"the largest {100 * min(shares):.3g}% of each node's {what}" if shares else f"a part of each node's {what}"


@functools.cache  # once in a process
def _tell(nodes: int, sent: str) -> None:
    _log.info("%s %s: %s", nodes, "node" if nodes == 1 else "nodes", sent)

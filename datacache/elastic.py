"""Training whose ranks change: the position in the data belongs to the state that the ranks commit and share.

All epochs, one after another, are one sequence of samples, which any number of ranks cuts into batches. A rest of fewer
samples than ranks cannot be divided, so it goes into the next epoch, whose position then begins below zero. Thus epoch
and position, two numbers, say which samples were used, whatever has changed before.
"""

from __future__ import annotations

import logging
from typing import Any

from datacache import launchers
from datacache.position import Input, PositionCallback
from datacache.world import World

_log = logging.getLogger(__name__)


class ElasticTraining(PositionCallback):
    """A callback for `fit` that goes on where a state says, and keeps the state up to date: see `DataCache.elastic`.

    Attributes:
        epoch: the epoch being read, or read next; `initial_epoch` of `fit`.
        position: number of its samples that the model has been trained on, by all ranks together; negative if that
            many samples of the epoch before are still to come.
        steps_per_epoch: number of batches of a whole epoch, for `fit`; where some have one fewer, the larger number.
    """

    def __init__(self, input: Input, state: Any):
        """Begins where the state is; arguments as for `DataCache.elastic`."""
        super().__init__(input)
        missing = [name for name in ("epoch", "position") if not hasattr(state, name)]
        if missing:
            raise ValueError(
                f"Expected a state with the numbers epoch and position, got {type(state).__name__} without "
                f"{' and '.join(missing)}: make it as hvd.elastic.KerasState(model, epoch=0, position=0)."
            )
        whole = input.schedule(state.epoch, 0)
        if len(whole) == 0:
            raise ValueError(
                f"Expected at least one sample for each rank, and with drop_remainder a whole batch, got "
                f"{len(whole.order)} samples for {whole.ranks} ranks with a batch_size of {whole.batch_size}: use "
                "fewer ranks, or a smaller batch_size."
            )
        self._state = state
        self._go_to(state.epoch, state.position)
        self._tell()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        self._tell()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._tell()

    def _tell(self) -> None:
        self._state.epoch, self._state.position = self.epoch, self.position

    def _end_epoch(self) -> None:
        super()._end_epoch()
        if self.position < 0 and self._input.rank == 0:
            _log.warning(
                "datacache: epoch %d ends with %d samples for %d ranks; they go into epoch %d.",
                self.epoch - 1,
                -self.position,
                self._schedule.ranks,
                self.epoch,
            )


def require_current(world: World) -> None:
    """Makes sure that a cache's ranks are those that there are now.

    Raises:
        ValueError: if it has peers, whose addresses are fixed, or if an elastic job now has other ranks.
    """
    if world.peers:
        raise ValueError(
            f"Expected a cache without peers, as their addresses are fixed while hosts come and go, got "
            f"{len(world.peers)} peers: leave out World.peers (DATACACHE_PEERS); each node then reads for itself."
        )
    now = launchers.place() if launchers.is_elastic() else world
    if (now.rank, now.size) != (world.rank, world.size):
        raise ValueError(
            f"This cache was opened for rank {world.rank} of {world.size}, and this is rank {now.rank} of {now.size} "
            "now: leave out DataCache(world=...), then the cache follows the ranks of an elastic job."
        )

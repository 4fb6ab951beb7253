"""The base class of what elastic training commits, restores and synchronises."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.horovod_api.objects import broadcast_object
from hvd_sparse.keras.elastic.backups import Backups
from hvd_sparse.transport import host_names, membership, topology
from hvd_sparse.transport.membership import HorovodState, HostsUpdatedInterrupt

LEFT = 128 + signal.SIGTERM  # the exit status of a process that leaves; 0 would end the job


class State(HorovodState):
    """The base class of states, with Horovod's methods; `hvd.elastic.run` calls them.

    Args:
        bcast_object: gives all ranks an object of one; the default is `hvd.broadcast_object`.
        get_rank: returns this rank; the default is `hvd.rank`.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
    ):
        self._notices = 0  # of the driver: written by its listener's thread, read by the main thread
        self._heeded = 0
        self.reset_callbacks: list[Callable[[], None]] = []
        self._broadcast = bcast_object or broadcast_object
        self.leaves = False  # set by `leave`, also by other threads and by signals
        self.backups: Backups | None = None
        super().__init__(self._broadcast, get_rank or topology.rank)

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called by the driver's listener, on its own thread."""
        self._notices += 1

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions that are called, without arguments, when the ranks have changed."""
        self.reset_callbacks.extend(callbacks)

    def leave(self) -> None:
        """Notes that this host will be gone soon; call it at any time, from any thread, on any rank.

        At the next commit all ranks hand over what they have, and this process ends, with status 143; the others go on.
        `hvd.elastic.run` calls it when this process gets SIGTERM. If all ranks leave, or any rank of a job that is not
        elastic, the state is backed up, if it has a directory for that, and all processes end.
        """
        self.leaves = True

    def on_reset(self) -> None:
        """Called when the ranks have changed, before `sync`: runs `reset` and the registered callbacks."""
        self.reset()
        for callback in self.reset_callbacks:
            callback()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if any has heard that hosts come or go; a collective of 12 bytes.

        Raises SystemExit, with status 143, if all ranks are to leave.
        """
        self._check(False)

    def _check(self, due: bool) -> bool:
        """Like `check_host_updates`; returns whether all ranks would back up."""
        notices = self._notices
        own = tf.constant([notices > self._heeded, self.leaves, due], tf.int32)
        fresh, leaving, writing = topology.world().allreduce(own, "sum", "elastic.notices").numpy()
        if leaving == topology.size() or (leaving and not membership.is_elastic()):
            self.back_up()
            raise SystemExit(LEFT)
        if fresh or leaving:
            self._heeded = notices
            raise HostsUpdatedInterrupt(False)
        return bool(writing == topology.size())

    def exchanges(self) -> dict[str, GradientExchange]:
        """The exchanges that this state hands over."""
        return {}

    def hand_over(self) -> None:
        """Called before a planned change, while all ranks are still connected."""

    def take_leave(self) -> bool:
        """Called when all ranks have handed over: tells the others whether this one leaves; a collective.

        If no host is left on which all ranks stay, all write the last commit: the launcher gives no place any more to
        ranks of a host of which one has left.

        Returns:
            Whether nothing is lost if this process ends; not so if it is told to only now, as all others may leave.
        """
        leaves = self.leaves  # read once, as a signal may set it at any moment
        told = topology.world().gather_descriptions([host_names.own(), leaves], "elastic.leaving")
        none_stays = {host for host, _ in told} == {host for host, each in told if each}
        if none_stays:
            self.back_up()
        return leaves or none_stays

    def back_up(self) -> None:
        """Writes the last commit to the directory for backups, if there is one; a collective."""

    def back_up_alone(self) -> None:
        """Writes what this rank has of the last commit, as the others cannot be reached."""

    def finish(self) -> None:
        """Called when the function that trains has returned: removes the backups."""

    def meet(self) -> None:
        """Called when the ranks have changed, before `on_reset`: goes back to a commit that all have."""

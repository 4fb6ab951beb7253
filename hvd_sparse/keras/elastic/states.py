"""What elastic training commits, restores and synchronises: Python objects and TensorFlow's variables."""

from __future__ import annotations

import copy
import secrets
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.horovod_api.objects import broadcast_object
from hvd_sparse.horovod_api.variables import broadcast_variables
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.transport import host_names, topology
from hvd_sparse.transport.membership import HorovodObjectState, HorovodState, HostsUpdatedInterrupt

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
        `hvd.elastic.run` calls it when this process gets SIGTERM.
        """
        self.leaves = True

    def on_reset(self) -> None:
        """Called when the ranks have changed, before `sync`: runs `reset` and the registered callbacks."""
        self.reset()
        for callback in self.reset_callbacks:
            callback()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if any has heard that hosts come or go; a collective of 8 bytes.

        Raises SystemExit, with status 143, if all ranks are to leave.
        """
        notices = self._notices
        own = tf.constant([notices > self._heeded, self.leaves], tf.int32)
        fresh, leaving = topology.world().allreduce(own, "sum", "elastic.notices").numpy()
        if leaving == topology.size():
            raise SystemExit(LEFT)
        if fresh or leaving:
            self._heeded = notices
            raise HostsUpdatedInterrupt(False)

    def exchanges(self) -> dict[str, GradientExchange]:
        """The exchanges that this state hands over."""
        return {}

    def hand_over(self) -> None:
        """Called before a planned change, while all ranks are still connected."""

    def meet(self) -> None:
        """Called when the ranks have changed, before `on_reset`: goes back to a commit that all have."""


class Member(NamedTuple):
    """What ranks tell each other when they meet; JSON-serializable.

    Attributes:
        process: identifies the process.
        host: the name of its host.
        commits: the numbers of the commits that it still has and that were made together with others, ascending.
    """

    process: str
    host: str
    commits: list[int]


class Meeting(NamedTuple):
    """What ranks know of each other after a change.

    Attributes:
        root: the first rank that was there before, from which new ones get everything; 0 at the start.
        before: the number of ranks before; 0 at the start.
        joined: the ranks that are new.
        gone: the ranks that are no longer there, by their former numbers, with their hosts.
        ranks: the process and the host of each rank.
    """

    root: int
    before: int
    joined: list[int]
    gone: dict[int, str]
    ranks: list[tuple[str, str]]

    @property
    def is_start(self) -> bool:
        """Whether no rank was there before."""
        return self.before == 0


class ObjectState(HorovodObjectState, State):
    """Python objects, as attributes: numbers, strings, arrays, and lists and dictionaries of them.

    Args:
        bcast_object: as for `State`.
        get_rank: as for `State`.
        **kwargs: attributes and their values.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ):
        State.__init__(self, bcast_object, get_rank)
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._number = 0  # of the newest commit
        self._commits: dict[int, dict[str, Any]] = {}
        self._process = secrets.token_hex(8)
        self._ranks: list[tuple[str, str]] = []  # process and host of each rank; empty before the first `sync`
        self._meeting: Meeting | None = None  # until `sync` uses it
        self.save()

    def save(self) -> None:
        """Copies everything to host memory, as a new commit."""
        kept = [self._commits[self._number]] if self._number in self._commits else []
        self._commits = dict(zip([self._number], kept, strict=False))
        self._number += 1
        self._commits[self._number] = self._taken()

    def commit(self) -> None:
        """Copies everything to host memory; raises HostsUpdatedInterrupt on all ranks if hosts come or go.

        A death makes training go on from the last commit that all ranks have. The one before is kept until all have
        this one.
        """
        self.save()
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt:
            self._commits = {self._number: self._commits[self._number]}
            raise
        self._commits = {self._number: self._commits[self._number]}

    def restore(self) -> None:
        """Goes back to the last commit."""
        self._give(self._commits[self._number])

    def meet(self) -> None:
        together = [number for number, taken in self._commits.items() if taken["ranks"]]
        own = Member(self._process, host_names.own(), sorted(together))
        members = [Member(*each) for each in topology.world().gather_descriptions(own, "elastic.members")]
        agreed = min((each.commits[-1] for each in members if each.commits), default=None)
        # One that had just come when the ranks changed again may not have the commit that the others go back to.
        old = [rank for rank, each in enumerate(members) if agreed in each.commits]
        if topology.rank() in old and agreed != self._number:
            assert agreed is not None
            self._number = agreed
            self.restore()
        mine = self._commits[self._number]["ranks"]
        before = topology.world().gather_descriptions(mine, "elastic.before")[old[0]] if old else []
        stayed = {members[rank].process for rank in old}
        gone = {rank: host for rank, (process, host) in enumerate(before) if process not in stayed}
        joined = [rank for rank in range(len(members)) if rank not in old] if old else []
        ranks = [(each.process, each.host) for each in members]
        self._meeting = Meeting(old[0] if old else 0, len(before), joined, gone, ranks)

    def sync(self) -> None:
        """Gives all ranks everything of the first rank that was there before; a collective."""
        if self._meeting is None:
            self.meet()
        meeting, self._meeting = self._meeting, None
        assert meeting is not None
        self._share(meeting)
        self._number = topology.world().gather_descriptions(self._number, "elastic.number")[meeting.root]
        self._ranks = meeting.ranks
        self.save()

    def _share(self, meeting: Meeting) -> None:
        """Makes all ranks alike; a collective."""
        values = {name: getattr(self, name) for name in self._names}
        for name, value in self._broadcast(values, meeting.root).items():
            setattr(self, name, value)

    def _taken(self) -> dict[str, Any]:
        """A copy of everything."""
        objects = {name: copy.deepcopy(getattr(self, name)) for name in self._names}
        return {"objects": objects, "ranks": self._ranks}

    def _give(self, taken: dict[str, Any]) -> None:
        """Restores what `_taken` has copied."""
        for name, value in taken["objects"].items():
            setattr(self, name, copy.deepcopy(value))


class TensorFlowState(ObjectState):
    """TensorFlow's or Keras's variables, and Python objects as attributes.

    Residuals are not among them: with a recipe that keeps some, use `TensorFlowKerasState`.

    Args:
        variables: the variables.
        session: has no effect.
        **kwargs: attributes and their values.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any):
        if variables is None:
            raise ValueError(
                "Expected the variables, as hvd.elastic.TensorFlowState([*model.variables, *optimizer.variables]), got "
                "none: TensorFlow 2 has no list of all variables."
            )
        self.variables: Sequence[Any] = list(variables)
        super().__init__(**kwargs)

    def _share(self, meeting: Meeting) -> None:
        super()._share(meeting)
        broadcast_variables([resource(each) for each in self.variables], meeting.root)

    def _taken(self) -> dict[str, Any]:
        return {**super()._taken(), "variables": copies(self.variables)}

    def _give(self, taken: dict[str, Any]) -> None:
        super()._give(taken)
        assign(taken["variables"])


Copies = list[tuple[Any, np.ndarray]]


def copies(variables: Iterable[Any]) -> Copies:
    """Each variable with a copy of its value in host memory."""
    return [(each, tf.convert_to_tensor(resource(each)).numpy()) for each in variables]


def assign(copied: Copies) -> None:
    """Assigns copies to their variables."""
    for variable, value in copied:
        resource(variable).assign(value)

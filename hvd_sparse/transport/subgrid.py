"""The grid of a process set: some of the ranks, on one level."""

from __future__ import annotations

from typing import Any

from hvd_sparse.transport import process_sets, topology
from hvd_sparse.transport.communicator import Grid, LoneCommunicator

_members: dict[tuple[int, ...], topology.HorovodCommunicator] = {}


def of(process_set: Any) -> Grid:
    """The ranks of a process set, each a node of its own; a grid of one for a rank that is outside.

    Raises:
        ValueError: if Horovod does not know the process set, or `init` was not called.
    """
    me = topology.rank()
    if process_set.process_set_id is None or not process_set.ranks:
        raise ValueError(
            f"{process_set} is not known to Horovod: pass it to hvd.init(process_sets=[...]), on every rank, or add it "
            f"with hvd.add_process_set and {process_sets.DYNAMIC_VARIABLE}=1."
        )
    node = LoneCommunicator("node", me)
    if me not in process_set.ranks or len(process_set.ranks) == 1:
        return Grid(LoneCommunicator("process_set", me), node, LoneCommunicator("cross", me))
    key = (process_set.process_set_id, *process_set.ranks)
    if key not in _members or _members[key].process_set is not process_set:
        place = list(process_set.ranks).index(me)
        _members[key] = topology.HorovodCommunicator("process_set", process_set.ranks, place, process_set)
    return Grid(_members[key], node, _members[key])

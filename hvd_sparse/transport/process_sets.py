"""Sets of ranks that run collectives together: Horovod's, which users and the grid of nodes share.

Horovod has at most one set of the same ranks. The grid may have created one that a user asks for, or vice versa: so
each has its own object, and a set that the grid uses stays when a user removes theirs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

import horovod.tensorflow as _horovod
import tensorflow as tf
from horovod.tensorflow import ProcessSet, global_process_set

from hvd_sparse.transport.launcher_store import RanksMissingError

DYNAMIC_VARIABLE = "HOROVOD_DYNAMIC_PROCESS_SETS"
_ids: dict[tuple[int, ...], int] = {}  # of all sets except that of all ranks
_of_grid: set[tuple[int, ...]] = set()
_started_dynamic = False


class NotIncludedError(tf.errors.InvalidArgumentError, ValueError):
    """A rank has called a collective of a process set that it does not belong to; also Horovod's error for that."""

    def __init__(self, message: str):
        super().__init__(None, None, message)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set while Horovod runs; every rank calls it, with the same ranks.

    Args:
        process_set: a `ProcessSet`, or world ranks.

    Returns:
        The set, ready for `process_set=`.

    Raises:
        ValueError: if Horovod was started without dynamic process sets, ranks do not exist, or a user already has such
            a set.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    size = _horovod.size()
    if not can_be(made, size):
        raise ValueError(
            f"Expected some of the ranks 0 to {size - 1} as a process set, got {made.ranks}: hvd.global_process_set "
            "is that of all ranks."
        )
    if not is_dynamic():
        raise ValueError(
            "Process sets can be added after the start only if Horovod was started for it: pass "
            f"hvd.init(process_sets='dynamic'), or the sets themselves; or set {DYNAMIC_VARIABLE}=1 from the start."
        )
    key = tuple(made.ranks)
    if key in _of_grid:
        made.process_set_id = _ids[key]
        return made
    _ids[key] = _horovod.add_process_set(made).process_set_id
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set while Horovod runs; every rank calls it.

    Returns:
        Whether it was there and could be removed; if so, `process_set` is no longer usable.

    Raises:
        ValueError: if Horovod was started without dynamic process sets.
    """
    key = tuple(process_set.ranks or ())
    if process_set.process_set_id and key in _of_grid:
        process_set.process_set_id = None
        return True
    removed = _horovod.remove_process_set(process_set)
    if removed:
        _ids.pop(key, None)
    return removed


def can_be(process_set: ProcessSet, size: int) -> bool:
    """Whether a process set consists of some, but not all, of this many ranks."""
    ranks = process_set.ranks or []
    return 0 < len(ranks) < size and len(set(ranks)) == len(ranks) and 0 <= min(ranks) and max(ranks) < size


def make_ready(process_set: ProcessSet) -> None:
    """Registers a set that `init` was asked for among those that Horovod has; every rank calls it.

    Raises:
        ValueError: on every rank, if it is not there and cannot be added.
    """
    key = tuple(process_set.ranks)
    if key in _ids:
        process_set.process_set_id = _ids[key]
    else:
        add_process_set(process_set)


def is_dynamic() -> bool:
    """Whether process sets can be added after Horovod has started."""
    return _started_dynamic or os.environ.get(DYNAMIC_VARIABLE, "0") not in ("", "0")


def asked_for(process_sets: Iterable[ProcessSet | Sequence[int]] | str | None) -> tuple[list[ProcessSet], bool]:
    """The sets that `init` was asked for, and whether others may be added later, as "dynamic" asks.

    Raises:
        ValueError: if one is not a process set, or two have the same ranks.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"Expected process sets, or 'dynamic', as process_sets, got {process_sets!r}.")
        return [], True
    wanted = [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in process_sets or ()]
    keys = [tuple(each.ranks or ()) for each in wanted]
    if not all(keys):
        raise ValueError("Expected the ranks of each process set, got an empty one or an MPI communicator: list them.")
    if len(set(keys)) < len(keys):
        raise ValueError(
            f"Expected process sets of different ranks, got {[list(key) for key in keys]}: pass each only once."
        )
    return wanted, False


def require_same(asked: Sequence[Sequence[Sequence[int]]]) -> None:
    """Checks that all ranks have asked for the same sets, each given by its ranks.

    Raises:
        ValueError: if they have not.
    """
    if any(each != asked[0] for each in asked):
        by_rank = ", ".join(f"rank {rank}: {own}" for rank, own in enumerate(asked))
        raise ValueError(
            f"The ranks disagree on process_sets ({by_rank}): pass the same sets to hvd.init on every rank, including "
            "those that are in none of them."
        )


def start(own: Sequence[ProcessSet], groups: Iterable[tuple[int, ...]] = (), dynamic: bool = False) -> None:
    """Starts Horovod with a user's sets and those of the grid, or so that they can be added; the same on every rank.

    Raises:
        RanksMissingError: if Horovod cannot connect the ranks.
    """
    global _started_dynamic
    forget()
    users = {tuple(each.ranks): each for each in own}
    grids = {group: ProcessSet(list(group)) for group in sorted(groups) if group not in users}
    try:
        with _dynamic_variable() if dynamic else contextlib.nullcontext():
            _horovod.init(process_sets=[*own, *grids.values()])
    except ValueError as error:
        if not str(error).startswith("Horovod initialization failed"):
            raise
        _horovod.shutdown()  # so that it may be started again
        raise RanksMissingError(
            "Horovod could not connect all ranks, for the reason that it has logged above: a rank has ended meanwhile, "
            "or hosts cannot reach each other at the addresses of their names or interfaces. On each host, "
            "`python -m hvd_sparse.doctor` says what these are."
        ) from None
    _ids.update({key: each.process_set_id for key, each in {**users, **grids}.items()})
    _started_dynamic = dynamic


@contextlib.contextmanager
def _dynamic_variable() -> Iterator[None]:
    """Context in which the variable that Horovod reads is set; a job that this process starts later must not see it."""
    before = os.environ.get(DYNAMIC_VARIABLE)
    os.environ[DYNAMIC_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[DYNAMIC_VARIABLE]
        else:
            os.environ[DYNAMIC_VARIABLE] = before


def of_grid(ranks: Sequence[int]) -> ProcessSet:
    """The process set of a group of the grid, created if missing; every rank calls it, in the same order.

    Raises:
        RuntimeError: on every rank, if it is not there and cannot be added.
    """
    key = tuple(ranks)
    if len(key) == _horovod.size():
        return global_process_set
    if key not in _ids and not is_dynamic():
        raise RuntimeError(
            f"Horovod was started without a node of the ranks {list(key)}: start it with "
            "hvd_sparse.init(local_size=...), after hvd_sparse.shutdown() if it is running; or set "
            f"{DYNAMIC_VARIABLE}=1 before the start, which makes small messages take two to three times as long."
        )
    if key not in _ids:
        _ids[key] = _horovod.add_process_set(list(key)).process_set_id
    _of_grid.add(key)
    handle = ProcessSet(list(key))
    handle.process_set_id = _ids[key]
    return handle


def forget() -> None:
    """Drops what is useless once Horovod has stopped."""
    global _started_dynamic
    _started_dynamic = False
    _ids.clear()
    _of_grid.clear()


def require_member(process_set: ProcessSet, root_rank: int | None = None) -> None:
    """Raises an error for a process set that is not ready or does not contain this rank, or a root outside it.

    Raises:
        ValueError: naming the reason; for a rank outside the set it is also Horovod's `InvalidArgumentError`.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            f"The process set of the ranks {process_set.ranks} is not part of Horovod: pass it to "
            "hvd.init(process_sets=[...]) or hvd.add_process_set."
        )
    size = _horovod.size()  # raises an error if Horovod was not started
    ranks = process_set.ranks if process_set.process_set_id else list(range(size))
    if _horovod.rank() not in ranks:
        raise NotIncludedError(
            f"Rank {_horovod.rank()} is not in the process set of the ranks {ranks}: call its collectives only if "
            "process_set.included()."
        )
    if root_rank is not None and root_rank not in ranks:
        raise ValueError(f"Expected one of the ranks {ranks} as root_rank, got {root_rank!r}.")

"""What launchers tell a process, in the environment, about its place in the job.

Several may do so at once, as when `srun` starts `torchrun` on each node: the innermost counts. A launcher that reports
several processes, but not which of them this is and on which node, is an error: otherwise each process would take
itself for the only one, and all would read the same samples.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A process among those of the job, and its machine among the job's; attributes as of `World`."""

    rank: int = 0
    size: int = 1
    node: int = 0
    nodes: int = 1


class _Variables(NamedTuple):
    """Names of the variables that a launcher sets; not all launchers have the last two."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str = ""
    nodes: str = ""


_LAUNCHERS = (
    _Variables(
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
    ),
    _Variables(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    _Variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),  # torchrun
    _Variables("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and Intel MPI
    _Variables("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),  # Cray
)
_INCOMPLETE = (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", ""))
_WORKERS = ("chief", "master", "worker")  # of TF_CONFIG, in the order of their ranks
_ALONE = "world=datacache.World() if each process trains on its own"


def is_elastic() -> bool:
    """Whether the launcher is Horovod's and lets ranks come and go, so that the place may change."""
    return os.environ.get("HOROVOD_ELASTIC", "0") not in ("", "0")


def place() -> Place:
    """The place that the environment reports; one process alone if it reports nothing.

    In an elastic job whose nodes have unequal numbers of processes each process counts as a node of its own.

    Raises:
        ValueError: if nodes have unequal numbers of processes otherwise, or it is not reported which process this is.
    """
    for names in _LAUNCHERS:
        if all(name in os.environ for name in names[:4]):
            return _of(names)
    return _of_tensorflow() or _of_slurm() or _of_incomplete()


def _of(names: _Variables) -> Place:
    rank, size, local_rank, local_size = (_number(name) for name in names[:4])
    known = names.nodes in os.environ
    nodes = _number(names.nodes) if known else size // max(local_size, 1)
    if nodes * local_size != size:
        if is_elastic() and names.rank == "HOROVOD_RANK":
            return Place(rank, size, rank, size)
        among = f" of {nodes} nodes" if known else ""
        raise ValueError(
            f"Expected equally many ranks on each node, got {size} ranks, {local_size} of them on this one{among}: "
            "start the same number on each."
        )
    node = _number(names.node) if names.node in os.environ else (rank - local_rank) // local_size
    return Place(rank, size, node, nodes)


def _of_slurm() -> Place | None:
    """A task of a step. A batch script, which is one process, has the job's variables, and none of a step's."""
    if "SLURM_STEP_NUM_TASKS" not in os.environ or "SLURM_PROCID" not in os.environ:
        return None
    rank, size = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")
    if size == 1:
        return Place()
    told = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts = _tasks_per_node(told)
    if len(set(counts)) != 1 or sum(counts) != size:
        raise ValueError(
            f"Expected equally many tasks on each node, got SLURM_STEP_TASKS_PER_NODE={told!r} for {size} tasks: start "
            f"them with `srun --ntasks-per-node=N`, or pass {_ALONE}."
        )
    if rank == 0:
        _tell_of_slurm(size)
    return Place(rank, size, _number("SLURM_NODEID"), len(counts))


@functools.cache
def _tell_of_slurm(size: int) -> None:
    """Reports once, as `srun` also starts processes that have nothing to do with each other."""
    _log.warning(
        "datacache: srun has started %d tasks, of which this is rank 0: each reads its share of every batch. Pass %s.",
        size,
        _ALONE,
    )


def _tasks_per_node(text: str) -> list[int]:
    """Parses Slurm's notation, such as "2(x3),1" for 2, 2, 2 and 1; empty if it is something else."""
    counts = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _of_tensorflow() -> Place | None:
    """Refuses several workers of TF_CONFIG: tf.distribute may also divide their data, which cannot be detected here."""
    cluster, own = _tf_config()
    addresses = {kind: list(cluster.get(kind, ())) for kind in _WORKERS}
    size = sum(map(len, addresses.values()))
    if size <= 1 or own[0] == "evaluator":  # an evaluator reads everything for itself
        return None
    call = "world=datacache.World(rank=..., size=..., node=..., nodes=...)"
    workers = [(kind, index) for kind in _WORKERS for index in range(len(addresses[kind]))]
    if own in workers:
        hosts = [str(addresses[kind][index]).rpartition(":")[0] for kind, index in workers]
        rank, different = workers.index(own), list(dict.fromkeys(hosts))
        node, nodes = different.index(hosts[rank]), len(different)
        call = f"world=datacache.World(rank={rank}, size={size}, node={node}, nodes={nodes})"
    raise ValueError(
        f"TF_CONFIG names {size} workers, and tf.distribute may divide a dataset among them: if it does not (in your "
        f"own loop, or with AutoShardPolicy.OFF), pass {call}, so that each reads its share; if it does, pass "
        "world=datacache.World()."
    )


def _tf_config() -> tuple[dict[str, Any], tuple[str, int]]:
    """The cluster of TF_CONFIG, empty if it names none, and this task's type and index."""
    text = os.environ.get("TF_CONFIG", "").strip()
    try:
        told = json.loads(text or "{}")
        task = dict(told.get("task") or {})
        return dict(told.get("cluster") or {}), (str(task.get("type")), int(task.get("index", 0)))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"Expected JSON with a cluster and a task in TF_CONFIG, got {text[:200]!r}.") from None


def _of_incomplete() -> Place:
    for rank, size in _INCOMPLETE:
        if rank in os.environ and (not size or (size in os.environ and _number(size) > 1)):
            told = ", ".join(f"{name}={os.environ[name]}" for name in (rank, size) if name)
            raise ValueError(
                f"{told} shows that this job has other processes, but not which are on this machine: pass "
                f"world=datacache.World(rank=..., size=..., node=..., nodes=...) as the launcher has them, or {_ALONE}."
            )
    return Place()


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"Expected a number in the variable {name}, got {os.environ[name]!r}.") from None

"""Variables of launchers: which launcher counts if there are several, single processes, and invalid numbers."""

import json
import logging

import pytest

from datacache import launchers
from datacache.launchers import Place
from tests.faults.test_datacache_launchers import MPICH, SRUN, TORCHRUN, launched  # noqa: F401 - a fixture

HOROVOD = {"HOROVOD_RANK": 1, "HOROVOD_SIZE": 4, "HOROVOD_LOCAL_RANK": 1, "HOROVOD_LOCAL_SIZE": 2}
BATCH_SCRIPT = {"SLURM_JOB_ID": 7, "SLURM_NTASKS": 6, "SLURM_PROCID": 0, "SLURM_TASKS_PER_NODE": "2(x3)"}


def tf_config(cluster, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


CASES = {
    "nothing": ({}, Place()),
    "Horovod inside srun": ({**SRUN, **HOROVOD}, Place(1, 4, 0, 2)),
    "torchrun inside srun": (
        {**SRUN, **TORCHRUN, "RANK": 1, "WORLD_SIZE": 2, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1},
        Place(1, 2, 0, 1),
    ),
    "torchrun of one process": (
        {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0},
        Place(),
    ),
    "mpiexec inside srun": ({**SRUN, "SLURM_STEP_NUM_TASKS": 3, **MPICH}, Place(5, 6, 2, 3)),
    "srun with PMI": ({**SRUN, "PMI_RANK": 5, "PMI_SIZE": 6, "PMIX_RANK": 5}, Place(5, 6, 2, 3)),
    "srun with exported rank and size": ({**SRUN, "RANK": 5, "WORLD_SIZE": 6, "LOCAL_RANK": 1}, Place(5, 6, 2, 3)),
    "srun with tasks laid out in turn": ({**SRUN, "SLURM_NODEID": 0, "SLURM_PROCID": 3}, Place(3, 6, 0, 3)),
    "a step of one task": ({**SRUN, "SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 1}, Place()),
    "a batch script": (BATCH_SCRIPT, Place()),
    "one process with PMI": ({"PMI_RANK": 0, "PMI_SIZE": 1}, Place()),
    "Cray": ({"PMI_RANK": 3, "PMI_SIZE": 4, "PMI_LOCAL_RANK": 1, "PMI_LOCAL_SIZE": 2}, Place(3, 4, 1, 2)),
    "a size without a rank": ({"WORLD_SIZE": 8}, Place()),
    "one worker": (tf_config({"worker": ["a:1"]}, type="worker", index=0), Place()),
    "an evaluator": (tf_config({"worker": ["a:1", "b:1"]}, type="evaluator", index=0), Place()),
    "an empty TF_CONFIG": ({"TF_CONFIG": "{}"}, Place()),
    "TF_CONFIG inside Horovod": ({**tf_config({"worker": ["a:1", "b:1"]}), **HOROVOD}, Place(1, 4, 0, 2)),
}
REFUSED = {
    "unequal nodes of torchrun": (
        {**TORCHRUN, "WORLD_SIZE": 5, "RANK": 4},
        "5 ranks, 2 of them on this one of 3 nodes",
    ),
    "unequal nodes that divide": ({**TORCHRUN, "WORLD_SIZE": 8}, "equally many ranks on each node"),
    "no number": ({**TORCHRUN, "RANK": "x"}, "Expected a number in the variable RANK, got 'x'"),
    "no local size": ({**TORCHRUN, "LOCAL_WORLD_SIZE": 0}, "equally many ranks"),
    "tasks that are not told": (
        {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "many"},
        "many tasks.*'many' for 6 tasks",
    ),
    "TF_CONFIG inside srun": ({**SRUN, **tf_config({"worker": ["a:1", "b:1"]})}, r"World\(rank=..., size=..., "),
    "the chief": (tf_config({"chief": ["a:1"], "worker": ["b:1"]}, type="chief"), "rank=0, size=2, node=0, nodes=2"),
    "no such worker": (tf_config({"worker": ["a:1", "b:1"]}, type="worker", index=2), r"names 2 workers.*rank=\.\.\."),
    "no JSON": ({"TF_CONFIG": "cluster"}, "Expected JSON with a cluster and a task in TF_CONFIG, got 'cluster'"),
    "no index": (tf_config({}, type="worker", index="first"), "Expected JSON with a cluster and a task"),
    "no object": ({"TF_CONFIG": "[1]"}, "Expected JSON with a cluster and a task"),
}


@pytest.mark.parametrize("variables, wanted", CASES.values(), ids=CASES)
def test_the_innermost_launcher_counts(variables, wanted, launched):  # noqa: F811
    launched(variables)
    assert launchers.place() == wanted


@pytest.mark.parametrize("variables, told", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(variables, told, launched):  # noqa: F811
    launched(variables)
    with pytest.raises(ValueError, match=told):
        launchers.place()


def test_rank_0_says_once_that_srun_was_understood(launched, caplog):  # noqa: F811
    launched({**SRUN, "SLURM_PROCID": 0, "SLURM_NODEID": 0})
    launchers._tell_of_slurm.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert launchers.place() == Place(0, 6, 0, 3)
    assert [record.message for record in caplog.records] == [
        "datacache: srun has started 6 tasks, of which this is rank 0: each reads its share of every batch. "
        "Pass world=datacache.World() if each process trains on its own."
    ]

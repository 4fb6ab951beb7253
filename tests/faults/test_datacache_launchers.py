"""datacache: a process that torchrun, srun, mpiexec or TF_CONFIG started with others does not assume it is alone.

Each case is the environment that the launcher sets for one of its processes.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import datacache

TORCHRUN = {
    "RANK": 5,
    "WORLD_SIZE": 6,
    "LOCAL_RANK": 1,
    "LOCAL_WORLD_SIZE": 2,
    "GROUP_RANK": 2,
    "GROUP_WORLD_SIZE": 3,
}
SRUN = {
    "SLURM_STEP_ID": 0,
    "SLURM_PROCID": 5,
    "SLURM_NTASKS": 6,
    "SLURM_STEP_NUM_TASKS": 6,
    "SLURM_LOCALID": 1,
    "SLURM_NODEID": 2,
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}
MPICH = {"PMI_RANK": 5, "PMI_SIZE": 6, "MPI_LOCALRANKID": 1, "MPI_LOCALNRANKS": 2}
WORKERS = {"chief": ["a:1"], "worker": ["a:2", "b:1", "b:2"]}
UNEQUAL = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)"}
REFUSED = {
    "srun with unequal nodes": (UNEQUAL, "equally many tasks on each node.*pass world="),
    "PMI alone": ({"PMI_RANK": 5, "PMI_SIZE": 6}, "PMI_RANK=5, PMI_SIZE=6 shows that this job has other .*pass world="),
    "PMIx alone": ({"PMIX_RANK": 5}, "PMIX_RANK=5 shows that this job has other processes.*pass world="),
    "rank and size alone": ({"RANK": 5, "WORLD_SIZE": 6}, "RANK=5, WORLD_SIZE=6 shows.*pass world="),
    "TF_CONFIG": (
        {"TF_CONFIG": json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 1}})},
        r"TF_CONFIG names 4 workers.*World\(rank=2, size=4, node=1, nodes=2\)",
    ),
}


@pytest.fixture
def launched(monkeypatch):
    """Sets the variables of one launcher, and none of any other."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_", "SLURM_", "PMI", "MV2_")) or name in (*TORCHRUN, *MPICH, "TF_CONFIG"):
            monkeypatch.delenv(name)

    def set_all(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return set_all


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN, MPICH], ids=["torchrun", "srun", "mpiexec"])
def test_a_launcher_is_understood(variables, launched, tmp_path):
    launched(variables)
    assert datacache.World.from_environment() == datacache.World(5, 6, 2, 3)
    source = datacache.Indexed(lambda index: bytes([index]), 12, "bytes", labels=range(12))
    with datacache.DataCache(source, lambda payload: np.zeros(1), tmp_path, memory_bytes=0) as cache:
        assert [len(labels) for _, labels in cache.batches(1, 0)] == [1, 1]


@pytest.mark.parametrize("variables, told", REFUSED.values(), ids=REFUSED)
def test_who_tells_too_little_is_refused_with_what_to_pass(variables, told, launched):
    launched(variables)
    with pytest.raises(ValueError, match=told):
        datacache.World.from_environment()

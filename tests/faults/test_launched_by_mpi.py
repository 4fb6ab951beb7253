"""Bugs in starting ranks by MPI with a Horovod that was built without it: they ended by segmentation faults."""

import os
import subprocess
import sys

import pytest
from horovod.tensorflow import mpi_built

from tests.parallel.launch import QUIET, ROOT

COMMAND = ["--", sys.executable, "-m", "examples.keras_digits"]
PROGRAMS = {  # in place of those that exist only on a cluster
    "mpirun": 'echo "mpirun (Open MPI) 4.1.4"',
    "srun": "exit 0",
    "scontrol": "echo localhost",
}
ALLOCATION = {"SLURM_JOB_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": "2"}


@pytest.fixture
def launched(tmp_path):
    """Runs a launch file of examples/launch with these programs first on PATH."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def launch(name, *arguments):
        environment = {**os.environ, **QUIET, **ALLOCATION, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = [ROOT / "examples" / "launch" / name, *arguments, *COMMAND]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return launch


@pytest.mark.skipif(mpi_built(), reason="this Horovod was built with MPI")
@pytest.mark.parametrize("name, arguments", [("mpirun.sh", ["-np", "2"]), ("slurm.sh", ["--launcher", "srun"])])
def test_a_horovod_without_mpi_is_refused_before_the_start(launched, name, arguments):
    ended = launched(name, *arguments)
    assert ended.returncode == 2, ended
    assert "was built without MPI" in ended.stderr and "horovodrun.sh" in ended.stderr


def test_control_horovodrun_starts_without_mpi(launched):
    ended = launched("slurm.sh", "--dry-run")
    assert ended.returncode == 0 and "horovodrun" in ended.stdout and "-np 2" in ended.stdout, ended

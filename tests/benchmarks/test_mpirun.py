"""Ranks of a cluster in a box under mpirun: its command line and agent, and real ranks if Open MPI is installed."""

import os
import subprocess
import sys
import types

import pytest

from benchmarks.exchange import bench_exchange
from benchmarks.machines import mpirun
from benchmarks.machines.cluster import Cluster
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

ADDRESSES = ["10.78.0.1", "10.78.0.2", "10.78.0.3"]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Programs, first on PATH, that record their arguments, one per line, in place of those that need root."""
    record = tmp_path / "record"
    for name in ("ip", "mpirun"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" > {record}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return record


@pytest.mark.parametrize("node", [0, 1, 12])
def test_the_agent_enters_the_namespace_of_the_address(recorded, tmp_path, node):
    agent = mpirun.write_agent(tmp_path, "box7")
    subprocess.run([agent, f"10.78.0.{node + 1}", "PATH=/x:$PATH", ";", "orted", "-mca", "a b"], check=True)
    entered = recorded.read_text().splitlines()
    namespace = f"box7n{node}"
    assert entered[:6] == ["ip", "netns", "exec", namespace, "unshare", "--uts"]
    assert entered[-2:] == [namespace, "PATH=/x:$PATH ; orted -mca a b"]  # joined by spaces, as ssh does


def test_the_command_line_has_the_agent_the_nodes_and_only_their_network(recorded, tmp_path):
    agent = mpirun.write_agent(tmp_path, "box7")
    line = mpirun.arguments(agent, ADDRESSES, 4, ["python", "-c", "a b"])
    assert line[0] == "mpirun" and line[-3:] == ["python", "-c", "a b"]
    assert line[line.index("-np") + 1] == "12"
    assert line[line.index("-H") + 1] == "10.78.0.1:4,10.78.0.2:4,10.78.0.3:4"
    settings = {line[at + 1]: line[at + 2] for at, word in enumerate(line) if word == "--mca"}
    assert settings["plm_rsh_agent"] == str(agent)
    assert settings["btl_tcp_if_include"] == settings["oob_tcp_if_include"] == "10.78.0.0/24"
    assert mpirun.run("box7", ADDRESSES, 4, ["true"], {}, 60) == 0
    assert recorded.read_text().splitlines()[0] == "mpirun"


def test_without_open_mpi_it_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="install the package openmpi-bin"):
        mpirun.run("box7", ADDRESSES, 1, ["true"], {}, None)


def test_what_is_no_launcher_is_refused():
    with pytest.raises(ValueError, match="rendezvous or mpirun"):
        Cluster(2, 1).run(["true"], launcher="slurm")


def test_mpi4py_is_a_rival_only_where_mpirun_starts_the_ranks(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", types.ModuleType("mpi4py"))
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert bench_exchange.others("rendezvous") == ["torch.distributed"]
    assert bench_exchange.others("mpirun") == ["torch.distributed", "mpi4py"]
    first, second = bench_exchange.cells_of((2, 2), "1gbit", ["1M"], [0.01, 0.1], ["mpi4py"])
    assert "mpi4py" in first["rounds"] and "mpi4py" not in second["rounds"]  # dense arms do not depend on the density


@needs.mpirun
def test_ranks_are_where_they_should_be(tmp_path):
    program = (
        "import os, pathlib, socket, sys\n"
        "own = socket.gethostbyname(socket.gethostname())\n"
        "text = ' '.join([own, os.environ['OMPI_COMM_WORLD_LOCAL_RANK'], os.environ['ANSWER']])\n"
        "pathlib.Path(sys.argv[1], os.environ['OMPI_COMM_WORLD_RANK']).write_text(text)\n"
    )
    with Cluster(2, 2) as made:
        statuses = made.run(
            [sys.executable, "-c", program, str(tmp_path)], {"ANSWER": "4 2"}, limit=300, launcher="mpirun"
        )
    assert statuses == [0] * 4
    found = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert found == [f"{made.address(node)} {local} 4 2" for node in (0, 1) for local in (0, 1)]


@needs.mpirun
def test_a_rank_that_fails_ends_all():
    program = "import os, sys, time; sys.exit(3) if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(500)"
    with Cluster(2, 1) as made:
        assert made.run([sys.executable, "-c", program], limit=400, launcher="mpirun") == [3, 3]
        with pytest.raises(TimeoutError, match="after 2 s"):
            made.run([sys.executable, "-c", "import time; time.sleep(500)"], limit=2, launcher="mpirun")

"""The launch files for Open MPI and Slurm: their dry runs and their errors, and ranks if Horovod has MPI."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.examples.launching import FOLDER, TRAIN, dry, refused, run, trains, value
from tests.parallel import launch

# ---- mpirun ----

WITH_MPI, TRAIN_MPI = "echo MPI: True", ["python", *TRAIN[1:]]  # a Python whose Horovod has MPI
OPEN_MPI = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else printf "%s\\n" "$@"; fi'


def test_mpirun_gets_the_flags_of_horovods_manual(programs):
    environment = {**programs(mpirun=OPEN_MPI, python=WITH_MPI), "HVD_SPARSE_LOCAL_SIZE": "2", "UNRELATED": "x"}
    arguments = ["-H", "10.0.0.1:2,10.0.0.2:2", "--network-interfaces", "eth7", "--ssh-port", "2222"]
    commands, _ = dry("mpirun.sh", *arguments, environment=environment, train=TRAIN_MPI)
    variables = dict(words[1].split("=", 1) for words in commands if words[0] == "export")
    assert variables["HOROVOD_FUSION_THRESHOLD"] == str(2**20) and variables["HOROVOD_CONTROLLER"] == "mpi"
    command = commands[-1]
    assert command[:5] == ["mpirun", "-np", "4", "-H", "10.0.0.1:2,10.0.0.2:2"]
    assert (value(command, "-bind-to"), value(command, "-map-by")) == ("none", "slot")
    settings = {command[at + 1]: command[at + 2] for at, word in enumerate(command) if word == "-mca"}
    assert settings == {
        "pml": "ob1",
        "btl": "^openib",
        "btl_tcp_if_include": "eth7",
        "oob_tcp_if_include": "eth7",
        "plm_rsh_args": "-p 2222",
    }
    handed_on = {command[at + 1] for at, word in enumerate(command) if word == "-x"}
    assert {"PATH", "HVD_SPARSE_LOCAL_SIZE", "HOROVOD_CYCLE_TIME", "NCCL_SOCKET_IFNAME"} <= handed_on
    assert "UNRELATED" not in handed_on and command[-5:] == TRAIN_MPI


def test_a_network_is_for_mpi_alone(programs):
    arguments = ["-H", "10.0.0.1:2,10.0.0.2:2", "--network-interfaces", "10.0.0.0/24"]
    commands, _ = dry("mpirun.sh", *arguments, environment=programs(mpirun=OPEN_MPI, python=WITH_MPI), train=TRAIN_MPI)
    assert value(commands[-1], "btl_tcp_if_include") == "10.0.0.0/24" and "NCCL_SOCKET_IFNAME" not in commands[-1]


ROUTES = {
    "direct": ('echo "$4 dev eth7 src 10.0.0.9 uid 0"', "10.0.0.0/24"),
    "by a router": ('echo "$4 via 10.9.9.1 dev eth7 src 10.9.9.9 uid 0"', "eth7"),
    "none": ("exit 2", None),
}


@pytest.mark.parametrize("route", ROUTES)
def test_mpi_uses_the_network_of_the_hosts_or_the_interface_that_leads_there(programs, route):
    answer, wanted = ROUTES[route]
    ip = f'if [ "$3" = get ]; then {answer}; else echo "10.0.0.0/24 proto kernel src 10.0.0.9"; fi'
    environment = programs(mpirun=OPEN_MPI, python=WITH_MPI, ip=ip)
    commands, _ = dry("mpirun.sh", "-H", "10.0.0.1:2,10.0.0.2:2", environment=environment, train=TRAIN_MPI)
    given = value(commands[-1], "btl_tcp_if_include") if "btl_tcp_if_include" in commands[-1] else None
    assert given == wanted


def test_many_hosts_are_started_by_mpirun_itself(programs):
    hosts = ",".join(f"10.0.0.{number}:1" for number in range(1, 65))
    commands, _ = dry("mpirun.sh", "-H", hosts, environment=programs(mpirun=OPEN_MPI, python=WITH_MPI), train=TRAIN_MPI)
    assert "plm_rsh_no_tree_spawn" in commands[-1] and value(commands[-1], "plm_rsh_num_concurrent") == "64"


def test_another_mpi_is_refused(programs):
    environment = programs(mpirun="echo HYDRA build details")
    assert "not Open MPI" in refused("mpirun.sh", "-np", "2", "--", *TRAIN, environment=environment)


# ---- Slurm ----

SCONTROL = '[ "$*" = "show hostnames 10.0.0.[1-2]" ] && printf "10.0.0.1\\n10.0.0.2\\n"'
ALLOCATION = {"SLURM_JOB_NODELIST": "10.0.0.[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)"}


def test_on_a_login_node_it_submits_itself():
    commands, _ = dry("slurm.sh", "--nodes", "3", "--slots-per-host", "4", "--partition", "gpu")
    exported, command = commands
    assert exported == ["export", f"HVD_SPARSE_LAUNCH={FOLDER}"]
    assert command[:7] == ["sbatch", "--nodes", "3", "--ntasks-per-node", "4", "--partition", "gpu"]
    at = command.index(str(FOLDER / "slurm.sh"))
    assert "--dry-run" not in command[at:] and command[-5:] == TRAIN
    assert value(command[at:], "--nodes") == "3"


def test_a_command_may_have_a_dry_run_of_its_own():
    commands, _ = dry("slurm.sh", train=[*TRAIN, "--dry-run"])
    assert commands[-1][-1] == "--dry-run"


def test_inside_an_allocation_hosts_are_slurms(programs):
    environment = {**programs(scontrol=SCONTROL), **ALLOCATION}
    (command,), _ = dry("slurm.sh", environment=environment)
    assert (value(command, "-np"), value(command, "-H")) == ("8", "10.0.0.1:4,10.0.0.2:4")


def test_a_copy_of_the_file_elsewhere_finds_the_others(programs, tmp_path):
    copy = tmp_path / "slurm_script"  # as made by sbatch
    copy.write_text((FOLDER / "slurm.sh").read_text())
    environment = {**os.environ, **programs(scontrol=SCONTROL), **ALLOCATION, "SLURM_SUBMIT_DIR": str(launch.ROOT)}
    for extra in ({}, {"HVD_SPARSE_LAUNCH": str(FOLDER)}):
        ended = subprocess.run(
            ["bash", copy, "--dry-run", "--", *TRAIN],
            cwd=launch.ROOT,
            env={**environment, **extra},
            capture_output=True,
            text=True,
        )
        assert "10.0.0.1:4,10.0.0.2:4" in ended.stdout, ended.stderr


def test_srun_starts_ranks_with_mpi(programs):
    environment = {**programs(scontrol=SCONTROL, srun="exit 1", python=WITH_MPI), **ALLOCATION}
    commands, _ = dry("slurm.sh", "--launcher", "srun", "--mpi", "pmi2", environment=environment, train=TRAIN_MPI)
    command = commands[-1]
    assert command[0] == "srun" and value(command, "--mpi") == "pmi2"
    assert (value(command, "--nodes"), value(command, "--ntasks")) == ("2", "8")
    assert ["export", "HOROVOD_CONTROLLER=mpi"] in commands and command[-5:] == TRAIN_MPI


@pytest.mark.parametrize("status, queued", [(143, True), (1, False), (0, False)])
def test_a_job_that_was_told_to_end_is_queued_again(programs, tmp_path, status, queued):
    noted = tmp_path / "noted"
    scontrol = f'[ "$1" = requeue ] && echo "$2" > {noted} && exit; {SCONTROL}'
    environment = {**programs(scontrol=scontrol, srun=f"exit {status}", python=WITH_MPI), **ALLOCATION}
    ended = subprocess.run(
        ["bash", FOLDER / "slurm.sh", "--launcher", "srun", "--signal", "TERM@60", "--", *TRAIN_MPI],
        cwd=launch.ROOT,
        env={**os.environ, **environment, "SLURM_JOB_ID": "17"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == (0 if queued else status), ended.stderr
    assert noted.exists() == queued and (not queued or noted.read_text() == "17\n")


def test_the_time_of_the_signal_is_handed_to_slurm():
    arguments = ["--launcher", "srun", "--signal", "TERM@90"]
    commands, _ = dry("slurm.sh", *arguments)
    assert value(commands[-1], "--signal") == "TERM@90" and commands[-1].count("--signal") == 2


@pytest.mark.parametrize(
    "arguments, allocation, reason",
    [
        (["--launcher", "ssh"], {}, "--launcher must be srun or horovodrun, got ssh"),
        (["--signal", "TERM@60"], {}, "--signal needs --launcher srun"),
        (["--nodes", "0"], {}, "--nodes and --slots-per-host must be whole numbers"),
        ([], {**ALLOCATION, "SLURM_TASKS_PER_NODE": "many"}, "SLURM_TASKS_PER_NODE is many"),
        ([], {**ALLOCATION, "SLURM_TASKS_PER_NODE": "4,2"}, "unequal numbers of ranks (4 2)"),
        ([], {**ALLOCATION, "SLURM_JOB_NODELIST": "other"}, "scontrol does not know the nodes other"),
    ],
)
def test_slurm_refuses_in_words(programs, arguments, allocation, reason):
    environment = {**programs(scontrol=SCONTROL), **allocation}
    assert reason in refused("slurm.sh", "--dry-run", *arguments, "--", *TRAIN, environment=environment)


# ---- real ranks ----


def _mpi():
    """Why mpirun cannot start ranks here; None if it can."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun"
    built = "from horovod.tensorflow import mpi_built; raise SystemExit(not mpi_built())"
    if subprocess.run([sys.executable, "-c", built], capture_output=True).returncode:
        return "Horovod was built without MPI"
    return None


def test_mpiruntrains():
    reason = _mpi()
    if reason:
        pytest.skip(reason)
    trains(run("mpirun.sh", "-H", "localhost:2", "--", *TRAIN, limit=600))

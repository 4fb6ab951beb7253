"""The launch files for clusters: their dry runs, their errors, and real ranks if one machine is enough."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.parallel import launch

FOLDER = launch.ROOT / "examples" / "launch"
SHELL = sorted(path.name for path in FOLDER.glob("*.sh"))
TRAIN = [sys.executable, "-m", "examples.keras_digits", "--epochs", "3"]
HERE = subprocess.run(["hostname"], capture_output=True, text=True).stdout.strip()


def run(name, *arguments, environment=None, limit=60):
    """Runs a launch file as a user does, from the repository's folder."""
    command = [str(FOLDER / name), *arguments] if name.endswith(".sh") else [sys.executable, "-m", name, *arguments]
    return subprocess.run(
        command,
        cwd=launch.ROOT,
        env={**os.environ, **launch.QUIET, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
    )


def dry(name, *arguments, environment=None, train=TRAIN):
    """The commands of a dry run, split into words, without comments; and its whole output."""
    ended = run(name, "--dry-run", *arguments, "--", *train, environment=environment)
    assert ended.returncode == 0, ended.stderr
    assert subprocess.run(["bash", "-n"], input=ended.stdout, text=True, capture_output=True).returncode == 0
    return [shlex.split(line) for line in ended.stdout.splitlines() if line and not line.startswith("#")], ended.stdout


def refused(name, *arguments, environment=None):
    """The error message of a launch file."""
    ended = run(name, *arguments, environment=environment)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended
    return ended.stderr


def value(words, option):
    return words[words.index(option) + 1]


@pytest.fixture
def programs(tmp_path):
    """Puts programs first on PATH, in place of those that exist only on a cluster."""

    def put(**texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    return put


# ---- the files ----


@pytest.mark.parametrize("name", SHELL)
def test_shell_files_parse(name):
    assert subprocess.run(["bash", "-n", FOLDER / name]).returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    checked = subprocess.run(["shellcheck", "-x", *SHELL], cwd=FOLDER, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_readme_names_every_start_file():
    text = (FOLDER / "README.md").read_text()
    files = {path.name for path in FOLDER.iterdir() if path.suffix in (".sh", ".py", ".yaml")}
    parts = {"common.sh", "cloud.sh", "__init__.py"}
    assert {name for name in files - parts if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("name", [name for name in SHELL if name not in ("common.sh", "cloud.sh")])
def test_help_has_the_options_and_an_example(name):
    ended = run(name, "--help")
    assert ended.returncode == 0
    assert f"examples/launch/{name} " in ended.stdout and "--network-interfaces" in ended.stdout


# ---- hosts and slots ----


def test_a_host_file_may_have_comments_and_empty_lines(tmp_path):
    (tmp_path / "hosts").write_text("# ours\n\n10.0.0.1 slots=4 # first\n  10.0.0.2\tslots = 4\n10.0.0.3 slots=4")
    (command,), text = dry("horovodrun.sh", "--hostfile", str(tmp_path / "hosts"))
    assert pathlib.Path(command[0]).name == "horovodrun"
    assert value(command, "-np") == "12"
    assert value(command, "-H") == "10.0.0.1:4,10.0.0.2:4,10.0.0.3:4"
    assert command[-5:] == TRAIN
    assert "# 12 ranks on 3 hosts" in text


def test_fewer_ranks_take_fewer_hosts():
    (command,), _ = dry("horovodrun.sh", "-np", "4", "-H", "10.0.0.1:2,10.0.0.2:2,10.0.0.3:2")
    assert (value(command, "-np"), value(command, "-H")) == ("4", "10.0.0.1:2,10.0.0.2:2")


def test_without_hosts_this_machine_gets_all_ranks():
    (command,), _ = dry("horovodrun.sh", "-np", "3")
    assert value(command, "-H") == "localhost:3" and "--network-interfaces" not in command
    assert dry("horovodrun.sh", "--num-proc=3")[0] == dry("horovodrun.sh", "-np", "3")[0]  # an equals sign is accepted


def test_the_interface_is_the_one_that_leads_to_the_others():
    devices = subprocess.run(["ip", "-o", "route", "get", "10.0.0.1"], capture_output=True, text=True)
    found = re.search(r" dev (\S+)", devices.stdout)
    if not found:
        pytest.skip("no route leads from here to 10.0.0.1")
    (command,), _ = dry("horovodrun.sh", "-H", "10.0.0.1:1,10.0.0.2:1")
    assert value(command, "--network-interfaces") == found[1]
    (command,), _ = dry("horovodrun.sh", "-H", "10.0.0.1:1,10.0.0.2:1", "--network-interfaces", "ib0")
    assert value(command, "--network-interfaces") == "ib0"


def test_options_reach_horovodrun(tmp_path):
    (tmp_path / "key").write_text("a key")
    options = ["--ssh-port", "2222", "--ssh-identity-file", str(tmp_path / "key"), "--cycle-time-ms", "2.5"]
    (command,), _ = dry("horovodrun.sh", "-np", "2", *options, "--fusion-threshold-mb", "64", "--start-timeout", "7")
    for option, wanted in {
        "--ssh-port": "2222",
        "--ssh-identity-file": str(tmp_path / "key"),
        "--cycle-time-ms": "2.5",
        "--fusion-threshold-mb": "64",
        "--start-timeout": "7",
    }.items():
        assert value(command, option) == wanted


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-H", "10.0.0.1"], "--hosts must be HOST:SLOTS"),
        (["-H", "10.0.0.1:x"], "expected a number of slots, got x"),
        (["-H", "a b:2"], "a b is not a valid host name"),
        (["-H", "10.0.0.1:2,10.0.0.1:2"], "listed twice"),
        (["-H", "10.0.0.1:2", "-np", "3"], "-np 3 exceeds the total of 2 slots"),
        (["-H", "10.0.0.1:2,10.0.0.2:1"], "unequal numbers of ranks (2 1)"),
        (["-H", "127.0.0.1:2,10.0.0.2:2"], "127.0.0.1 here, which the other hosts cannot reach"),
        (["-np", "two"], "--num-proc must be a whole number, got two"),
        (["-np"], "-np requires a value"),
        (["--hostfile", "nowhere"], "--hostfile nowhere cannot be read"),
        (["--hostfile", "nowhere", "-H", "a:1"], "not both"),
        (["--ssh-identity-file", "nowhere"], "nowhere cannot be read"),
        (["--cycle-time", "1"], "unknown option --cycle-time"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments, reason):
    said = refused("horovodrun.sh", "--dry-run", *arguments, *(["--", *TRAIN] if arguments != ["-np"] else []))
    assert reason in said and said.startswith("horovodrun.sh: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["10.0.0.1", "10.0.0.1:4", "10.0.0.1 slots=", "10.0.0.1 slots=four", "10.0.0.1 slots=0"]
)
def test_a_bad_line_of_a_host_file_is_told(tmp_path, line):
    (tmp_path / "hosts").write_text(f"10.0.0.9 slots=4\n{line}\n")
    said = refused("horovodrun.sh", "--dry-run", "--hostfile", str(tmp_path / "hosts"), "--", *TRAIN)
    assert "slots" in said and "10.0.0.1" in said


@pytest.mark.parametrize(
    "command, reason",
    [
        ([], "expected the command for every rank"),
        (["no_such_program"], "program no_such_program was not found"),
        ([sys.executable, "-m", "examples.no_such_script"], "Python cannot find module examples.no_such_script"),
        ([sys.executable, "no_such_script.py"], "the script no_such_script.py cannot be read"),
    ],
)
def test_a_command_that_is_not_there_is_refused(command, reason):
    assert reason in refused("horovodrun.sh", "--dry-run", "-np", "2", "--", *command)


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


@pytest.mark.parametrize(
    "arguments, allocation, reason",
    [
        (["--launcher", "ssh"], {}, "--launcher must be srun or horovodrun, got ssh"),
        (["--nodes", "0"], {}, "--nodes and --slots-per-host must be whole numbers"),
        ([], {**ALLOCATION, "SLURM_TASKS_PER_NODE": "many"}, "SLURM_TASKS_PER_NODE is many"),
        ([], {**ALLOCATION, "SLURM_TASKS_PER_NODE": "4,2"}, "unequal numbers of ranks (4 2)"),
        ([], {**ALLOCATION, "SLURM_JOB_NODELIST": "other"}, "scontrol does not know the nodes other"),
    ],
)
def test_slurm_refuses_in_words(programs, arguments, allocation, reason):
    environment = {**programs(scontrol=SCONTROL), **allocation}
    assert reason in refused("slurm.sh", "--dry-run", *arguments, "--", *TRAIN, environment=environment)


# ---- clouds ----

CLOUDS = {
    "aws.sh": ("fs-0123.efs.eu-west-1.amazonaws.com:/", "nfs4", {"nfsvers=4.1", "hard", "noresvport", "rsize=1048576"}),
    "alibaba.sh": (
        "0123-abc.cn-hangzhou.nas.aliyuncs.com:/",
        "nfs",
        {"vers=4", "minorversion=0", "hard", "noresvport"},
    ),
    "tencent.sh": ("10.0.0.7:/fsid0123", "nfs", {"vers=3", "nolock", "proto=tcp", "noresvport"}),
}


@pytest.mark.parametrize("name", CLOUDS)
def test_each_host_mounts_the_file_system_and_gets_its_cache(name):
    system, kind, options = CLOUDS[name]
    places = ["--mount-point", "/mnt/set", "--local-dir", "/scratch/cache", "--shm-size", "99G"]
    commands, text = dry(name, "--file-system", system, "-H", "10.0.0.1:8,10.0.0.2:8", "--ssh-port", "2222", *places)
    assert text.count("ssh -p 2222 10.0.0.1 bash -s <<'END'") == text.count("ssh -p 2222 10.0.0.2 bash -s <<'END'") == 1
    mounts = [words for words in commands if words[:2] == ["as_root", "mount"] and "-t" in words]
    assert len(mounts) == 2
    assert value(mounts[0], "-t") == kind and options <= set(value(mounts[0], "-o").split(","))
    assert mounts[0][-2:] == [system, "/mnt/set"]
    assert "as_root mkdir -p /scratch/cache" in text and "mount -o remount,size=99G /dev/shm" in text
    exported = [words[1] for words in commands if words[0] == "export"]
    assert exported == ["DATA_DIR=/mnt/set", "DATACACHE_LOCAL_DIR=/scratch/cache", "DATACACHE_MEMORY_DIR=/dev/shm"]
    assert value(commands[-1], "-H") == "10.0.0.1:8,10.0.0.2:8" and commands[-1][-5:] == TRAIN


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-H", "10.0.0.1:8"], "--file-system must be SERVER:/PATH, got nothing"),
        (["-H", "10.0.0.1:8", "--file-system", "a:/$(reboot)"], "--file-system must be SERVER:/PATH"),
        (["--file-system", "a:/"], "specify the instances with --hosts or --hostfile"),
        (["-H", "10.0.0.1:8", "--file-system", "a:/", "--local-dir", "cache"], "--local-dir must be an absolute path"),
        (["-H", "10.0.0.1:8", "--file-system", "a:/", "--local-dir", "/mnt/data/c"], "not in /mnt/data on the network"),
        (["-H", "10.0.0.1:8", "--file-system", "a:/", "--shm-size", "much"], "--shm-size must be a size such as 200G"),
    ],
)
def test_a_cloud_refuses_in_words(arguments, reason):
    assert reason in refused("aws.sh", "--dry-run", *arguments, "--", *TRAIN)


def _mounts_in_a_namespace(tmp_path, source, script):
    """Runs a shell script in its own mount namespace, with a tmpfs named `source` mounted at tmp_path/data."""
    (tmp_path / "data").mkdir()
    ready = f"mount -t tmpfs {source} {tmp_path}/data && {script}"
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", ready],
        cwd=launch.ROOT,
        env={**os.environ, **launch.QUIET},
        capture_output=True,
        text=True,
        timeout=180,
    )


def _may_unshare():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _may_unshare(), reason="needs root, to mount")
@pytest.mark.parametrize("there, status", [("fs-1.efs:/", 0), ("fs-2.efs:/", 2)])
def test_a_host_with_the_file_system_in_place_trains_and_another_one_is_refused(tmp_path, there, status):
    places = f"--mount-point {tmp_path}/data --local-dir {tmp_path}/cache --shm-size 1M"
    train = f'{sys.executable} -c \'import os; print(os.environ["DATACACHE_LOCAL_DIR"], os.environ["HOROVOD_RANK"])\''
    script = f"{FOLDER}/aws.sh --file-system fs-1.efs:/ -H localhost:2 {places} -- {train}"
    ended = _mounts_in_a_namespace(tmp_path, there, script)
    assert ended.returncode == status, ended.stderr
    if status:
        assert f"{tmp_path}/data is fs-2.efs:/, not fs-1.efs:/" in ended.stderr and "horovodrun" not in ended.stdout
    else:
        assert (tmp_path / "cache").is_dir()
        assert all(f"{tmp_path}/cache {rank}" in ended.stdout for rank in (0, 1))


# ---- real ranks ----


def _trains(ended):
    assert ended.returncode == 0, ended.stdout + ended.stderr
    accuracy = re.search(r"test accuracy (\d\.\d+)", ended.stdout)
    assert accuracy and float(accuracy[1]) > 0.6, ended.stdout


@pytest.mark.thorough
def test_horovodrun_trains(tmp_path):
    (tmp_path / "hosts").write_text("# this machine\nlocalhost slots=2\n")
    _trains(run("horovodrun.sh", "--hostfile", str(tmp_path / "hosts"), "--", *TRAIN, limit=600))


def _mpi():
    """Why mpirun cannot start ranks here; None if it can."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun"
    built = "from horovod.tensorflow import mpi_built; raise SystemExit(not mpi_built())"
    if subprocess.run([sys.executable, "-c", built], capture_output=True).returncode:
        return "Horovod was built without MPI"
    return None


def test_mpirun_trains():
    reason = _mpi()
    if reason:
        pytest.skip(reason)
    _trains(run("mpirun.sh", "-H", "localhost:2", "--", *TRAIN, limit=600))

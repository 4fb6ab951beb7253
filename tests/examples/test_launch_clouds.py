"""The launch files for clouds: what they do on each host, and their errors."""

import os
import subprocess
import sys

import pytest

from tests.examples.launching import FOLDER, TRAIN, dry, refused, run, value
from tests.parallel import launch

CLOUDS = {
    "aws.sh": ("fs-0123.efs.eu-west-1.amazonaws.com:/", "nfs4", {"nfsvers=4.1", "hard", "noresvport", "rsize=1048576"}),
    "alibaba.sh": (
        "0123-abc.cn-hangzhou.nas.aliyuncs.com:/",
        "nfs",
        {"vers=4", "minorversion=0", "hard", "noresvport"},
    ),
    "tencent.sh": ("10.0.0.7:/fsid0123", "nfs", {"vers=3", "nolock", "proto=tcp", "noresvport"}),
}


MACHINES = {
    "aws.sh": {
        "p5.48xlarge": (8, "1T"),
        "p4d.24xlarge": (8, "576G"),
        "g6.12xlarge": (4, "96G"),
        "c7i.24xlarge": (0, "96G"),
    },
    "alibaba.sh": {
        "ecs.gn7e-c16g1.32xlarge": (8, "500G"),
        "ecs.gn7i-c32g1.32xlarge": (4, "376G"),
        "ecs.c8i.24xlarge": (0, "96G"),
    },
    "tencent.sh": {"GT4.41XLARGE948": (8, "474G"), "PNV4.28XLARGE466": (4, "233G")},
}
EACH = [(name, machine) for name, machines in MACHINES.items() for machine in machines]


@pytest.mark.parametrize("name, machine", EACH)
def test_a_machine_has_its_memory_and_its_gpus(name, machine):
    gpus, size = MACHINES[name][machine]
    hosts = ["--file-system", CLOUDS[name][0], "--machine", machine, "-H"]
    commands, text = dry(name, *hosts, f"10.0.0.1:{gpus or 96}")
    assert f"mount -o remount,size={size} /dev/shm" in text and f", {machine}: " in text
    assert value(commands[-1], "-np") == str(gpus or 96)
    if gpus:
        said = refused(name, "--dry-run", *hosts, f"10.0.0.1:{gpus + 1}", "--", *TRAIN)
        assert f"would get {gpus + 1} ranks, and {machine} has {gpus} GPUs" in said


@pytest.mark.parametrize("name", CLOUDS)
def test_help_names_each_machine_and_no_dropped_one(name):
    text = run(name, "--help").stdout
    assert [machine for machine in MACHINES[name] if machine not in text] == [] and "V100" not in text


def test_another_machine_needs_its_memory():
    arguments = ["--file-system", "a:/", "-H", "10.0.0.1:2", "--machine", "p6.big"]
    assert "p6.big is none of" in refused("aws.sh", "--dry-run", *arguments, "--", *TRAIN)
    _, text = dry("aws.sh", *arguments, "--shm-size", "7G")
    assert "size=7G" in text


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

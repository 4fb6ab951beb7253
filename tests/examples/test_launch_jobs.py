"""Launch files for Kubernetes and Ray: the job, their errors, and ranks on Ray if it is installed."""

import copy
import importlib.util
import os
import re
import subprocess
import sys

import pytest
import yaml

from examples.launch import mpijob, ray_job
from tests.examples import launching
from tests.parallel import launch

TRAIN = ["python", "-m", "examples.imagenet", "--epochs", "2"]


def run(module, *arguments, **options):
    return launching.run(f"examples.launch.{module}", *arguments, **options)


def make(*arguments):
    """The job of a dry run."""
    ended = run("mpijob", *arguments, "--image", "registry/sparse:1", "--dry-run", "--", *TRAIN)
    assert ended.returncode == 0, ended.stderr
    return yaml.safe_load(ended.stdout)


def replica(job, role):
    return job["spec"]["mpiReplicaSpecs"][role]


# ---- Kubernetes ----


def test_the_template_is_a_job():
    assert mpijob.faults(yaml.safe_load(mpijob.TEMPLATE.read_text())) == []


def test_a_job_has_its_workers_and_their_ranks():
    job = make("-np", "32", "--slots-per-host", "8", "--name", "run-7", "--namespace", "team")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert job["metadata"] == {"name": "run-7", "namespace": "team"}
    assert job["spec"]["slotsPerWorker"] == 8 and replica(job, "Worker")["replicas"] == 4
    assert job["spec"]["sshAuthMountPath"] == "/root/.ssh" and replica(job, "Launcher")["replicas"] == 1
    containers = [replica(job, role)["template"]["spec"]["containers"][0] for role in ("Launcher", "Worker")]
    assert {container["image"] for container in containers} == {"registry/sparse:1"}


def test_the_launcher_runs_horovodrun_over_the_operators_hosts():
    options = ["--network-interfaces", "eth1", "--fusion-threshold-mb", "64", "--cycle-time-ms", "2.5"]
    launcher = replica(make("-np", "8", *options), "Launcher")["template"]["spec"]["containers"][0]
    command = launcher["command"]
    assert command[:6] == ["horovodrun", "-np", "8", "--hostfile", "/etc/mpi/hostfile", "--gloo"]
    given = {command[at]: command[at + 1] for at, word in enumerate(command) if word.startswith("--")}
    assert given["--network-interfaces"] == "eth1" and given["--fusion-threshold-mb"] == "64"
    assert given["--cycle-time-ms"] == "2.5" and command[-len(TRAIN) :] == TRAIN
    variables = {each["name"]: each["value"] for each in launcher["env"]}
    assert variables["DATACACHE_MEMORY_DIR"] == "/dev/shm"


def test_a_worker_has_memory_its_nodes_disk_and_the_data():
    job = make("-np", "4", "--slots-per-host", "4", "--shm-size", "64Gi", "--memory", "128Gi", "--data-claim", "set")
    spec = replica(job, "Worker")["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert volumes[mounts["/mnt/data"]]["persistentVolumeClaim"] == {"claimName": "set"}
    assert volumes[mounts["/var/tmp/datacache"]]["hostPath"]["path"] == "/var/tmp/datacache"
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4, "cpu": "60", "memory": "128Gi"}


def test_a_cache_may_go_with_the_pod_and_gpus_may_be_none():
    spec = replica(make("-np", "8", "--local-dir", "", "--gpus-per-host", "0"), "Worker")["template"]["spec"]
    assert [volume["emptyDir"] for volume in spec["volumes"] if volume["name"] == "cache"] == [{}]
    assert "nvidia.com/gpu" not in spec["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-np", "12"], "-np 12 is not a positive multiple of --slots-per-host 8"),
        (["-np", "0"], "-np 0 is not a positive multiple"),
        (["-np", "8", "--name", "Run_7"], "not a valid Kubernetes name: 'Run_7'"),
        (["-np", "8", "--memory", "64 GB"], "limits of memory: '64 GB' is not a quantity"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_words(arguments, reason):
    ended = run("mpijob", *arguments, "--image", "x", "--dry-run", "--", *TRAIN)
    assert ended.returncode == 1 and reason in ended.stderr and "Traceback" not in ended.stderr


def _without(*path):
    def change(job):
        for key in path[:-1]:
            job = job[key]
        del job[path[-1]]

    return change


WORKER = ("spec", "mpiReplicaSpecs", "Worker")
CONTAINER = (*WORKER, "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    "change, fault",
    [
        (_without("apiVersion"), "apiVersion is not kubeflow.org/v2beta1"),
        (_without("spec", "mpiReplicaSpecs", "Launcher"), "not Launcher and Worker"),
        (_without(*WORKER, "replicas"), "Worker has no replicas"),
        (_without(*WORKER, "template", "spec", "containers"), "Worker has no containers"),
        (_without(*CONTAINER, "image"), "Worker: a container has no image"),
        (_without(*WORKER, "template", "spec", "volumes", 2), "/dev/shm mounts volume memory, which does not exist"),
        (_without(*WORKER, "template", "spec", "volumes", 0, "persistentVolumeClaim"), "volume data needs one source"),
    ],
)
def test_faults_are_found(change, fault):
    job = copy.deepcopy(yaml.safe_load(mpijob.TEMPLATE.read_text()))
    change(job)
    assert any(fault in each for each in mpijob.faults(job)), mpijob.faults(job)


def test_without_dry_run_kubectl_gets_the_job(tmp_path):
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/job\nexit 3\n')
    (tmp_path / "kubectl").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = run("mpijob", "-np", "8", "--image", "registry/sparse:1", "--", *TRAIN, environment=path)
    assert ended.returncode == 3
    assert (tmp_path / "arguments").read_text() == "apply -f -\n"
    assert yaml.safe_load((tmp_path / "job").read_text()) == make("-np", "8")


# ---- Ray ----


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}


def options(*arguments):
    return ray_job.parser().parse_args([*arguments, "examples.keras_digits"])


def test_a_cluster_must_have_room_on_each_host():
    wanted = ray_job.placement(options("--num-hosts", "2", "--slots-per-host", "4", "--gpus-per-worker", "1"))
    assert ray_job.lacking([node(4, 4), node(8, 4), node(1)], wanted) is None
    said = ray_job.lacking([node(8, 8), node(64, 2), node(8, 4, alive=False)], wanted)
    assert "1 of 3 hosts" in said and "4 cores and 4 GPUs; 2 are needed" in said


def test_variables_are_horovods_and_ours(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_LOCAL_SIZE", "2")
    monkeypatch.setenv("UNRELATED", "x")
    made = ray_job.variables(options("--fusion-threshold-mb", "2", "--cycle-time-ms", "3.5"))
    assert made["HOROVOD_FUSION_THRESHOLD"] == str(2**21) and made["HOROVOD_CYCLE_TIME"] == "3.5"
    assert made["HVD_SPARSE_LOCAL_SIZE"] == "2" and "UNRELATED" not in made


def test_a_module_runs_as_python_m_runs_it(tmp_path):
    (tmp_path / "shown.py").write_text("import sys\nprint(__name__, sys.argv[1:], __file__)\n")
    program = f"from examples.launch import ray_job; ray_job.run_module('shown', ['--a', '1'], {str(tmp_path)!r})"
    ended = subprocess.run([sys.executable, "-c", program], cwd=launch.ROOT, capture_output=True, text=True)
    assert ended.stdout == f"__main__ ['--a', '1'] {tmp_path}/shown.py\n", ended.stderr


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["examples.no_such_script"], "Python cannot find module examples.no_such_script"),
        (["--num-hosts", "0", "examples.keras_digits"], "at least one host with one worker"),
    ],
)
def test_ray_refuses_in_words(arguments, reason):
    ended = run("ray_job", "--dry-run", *arguments)
    assert ended.returncode == 1 and reason in ended.stderr and "Traceback" not in ended.stderr


def test_a_dry_run_tells_placement_and_call():
    arguments = ["--address", "127.0.0.1:1", "--num-hosts", "2", "--slots-per-host", "4"]
    ended = run("ray_job", "--dry-run", *arguments, "--", "examples.keras_digits", "--epochs", "3", limit=120)
    assert ended.returncode == 0, ended.stderr
    assert "# 8 ranks on 2 hosts" in ended.stdout and "num_hosts=2, num_workers_per_host=4" in ended.stdout
    assert "No Ray cluster responds" in ended.stdout or "Ray is not installed" in ended.stdout
    assert ended.stdout.endswith("python -m examples.keras_digits --epochs 3\n")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_ray_trains():
    arguments = ["--address", "local", "--slots-per-host", "2", "--", "examples.keras_digits", "--epochs", "3"]
    ended = run("ray_job", *arguments, limit=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    accuracy = re.search(r"test accuracy (\d\.\d+)", ended.stdout)
    assert accuracy and float(accuracy[1]) > 0.6, ended.stdout

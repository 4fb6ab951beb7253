"""`python -m hvd_sparse.doctor`: what it finds here, in environments that lack something, and what it concludes."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from hvd_sparse.doctor import advice
from tests.faults import environments, test_nameless_host
from tests.parallel.launch import horovodrun

ROOT = environments.ROOT


def run(*arguments, before=(), **variables):
    """Runs the command in this environment, which shows it no GPU."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    return subprocess.run(
        [*before, sys.executable, "-m", "hvd_sparse.doctor", *arguments],
        cwd=ROOT,
        env={**own, "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def here():
    """What it finds on this machine."""
    done = run("--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_it_finds_what_is_installed(here):
    found = here["found"]
    import horovod
    import tensorflow as tf

    assert found["python"]["path"] == sys.executable
    assert found["tensorflow"]["version"] == tf.__version__ and found["tensorflow"]["gpus"] == []
    assert found["horovod"]["version"] == horovod.__version__
    assert {"gloo", "mpi"} & set(found["horovod"]["built_with"])
    assert "error" not in found["hvd_sparse"]
    for name in ("hvd_sparse/_ops.so", "datacache/_ops.so", "lars/_ops.so"):
        assert found["libraries"][name] == {"there": True, "tensorflow": tf.__version__}


def test_it_finds_what_the_machine_has(here):
    found = here["found"]
    assert found["interfaces"]["lo"]["address"] == "127.0.0.1"
    assert found["memory"]["bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found["shared_memory"]["opens_others"] is True


@pytest.mark.skipif(not test_nameless_host.can_be_renamed(), reason="hosts cannot be given another name here")
def test_a_host_of_ipv6_has_an_address():
    renamed = ["unshare", "--uts", "sh", "-c", 'echo ::1 >/proc/sys/kernel/hostname && exec "$0" "$@"']
    found = json.loads(run("--json", before=renamed).stdout)["found"]
    assert found["host"] == {"name": "::1", "address": "::1"}


def test_without_a_gpu_all_runs_on_the_cpu_and_training_can_start(here):
    assert here["obstacles"] == []
    assert here["places"]["model"] == here["places"]["selection"] == "CPU"
    assert here["places"]["exchange inside a node"].startswith("shared memory")


def test_only_the_first_rank_prints():
    done = run(HOROVOD_RANK="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_rank_prints_what_stops_training_on_its_host():
    done = run(HOROVOD_RANK="1", KERAS_BACKEND="numpy")
    assert (done.returncode, done.stdout) == (1, "")
    first, *rest = done.stderr.splitlines()
    assert first == f"Training cannot start on {socket.gethostname()}:"
    assert "  - Keras computes with numpy." in rest and "    Set KERAS_BACKEND=tensorflow." in rest


def test_it_prints_a_table():
    done = run(HVD_SPARSE_SHARED_MEMORY="0")
    lines = done.stdout.splitlines()
    for title in ("Software", "Native libraries", "Machine", "What runs where", "Training can start."):
        assert title in lines
    assert "  exchange inside a node  Horovod, through the loopback interface" in lines
    assert "  - HVD_SPARSE_SHARED_MEMORY=0 sends what ranks of a node exchange through Horovod." in lines


def test_without_horovod_it_says_how_to_get_it(tmp_path):
    packages = environments.without("horovod", tmp_path / "packages")
    done = environments.python(["-m", "hvd_sparse.doctor"], packages)
    assert done.returncode == 1, done.stderr
    assert "horovod cannot be imported (not installed)" in done.stdout and "build_wheel.sh" in done.stdout
    assert "hvd_sparse cannot be imported" not in done.stdout, "which only follows"


def test_libraries_that_are_not_compiled_stop_training(tmp_path):
    for name in ("hvd_sparse", "link", "datacache", "lars"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "quiet_tensorflow.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "hvd_sparse.doctor"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "hvd_sparse/_ops.so is not compiled" in done.stdout and "make build" in done.stdout


def test_a_job_begins_with_a_line_of_it_from_rank_0():
    ended = horovodrun(2, ["-c", "import hvd_sparse as hvd; hvd.init(local_size=1)"], 300.0)
    assert ended.status == 0, ended.output
    (line,) = [each for each in ended.output.splitlines() if "hvd_sparse.doctor" in each]
    assert "hvd_sparse: 2 ranks, 1 on each node; the model computes on the CPU" in line
    assert "exchanged by Gloo between nodes." in line or "exchanged by MPI between nodes." in line


# ---- what it concludes from what was found ----


def changed(here, **changes):
    """What was found here, with other values: path__to__value=value."""
    found = copy.deepcopy(here["found"])
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = found
        for parent in parents:
            place = place[parent]
        place[last] = value
    return found


STOPPED = {
    "keras computes": ({"keras__backend": "jax"}, "Keras computes with jax"),
    "horovod has neither": ({"horovod__built_with": ["nccl"]}, "neither Gloo nor MPI"),
    "no name": ({"host": {"name": "node7", "error": "not known"}}, "node7, does not resolve"),
    "no tensorflow": ({"tensorflow": {"error": "not installed"}}, "tensorflow cannot be imported"),
    "what follows": (
        {name: {"backend": "tensorflow", "error": f"OSError: {name}"} for name in ("keras", "horovod", "hvd_sparse")},
        "keras cannot be imported (OSError: keras)",
    ),
    "its own import": ({"hvd_sparse__error": "ModuleNotFoundError: lmdb"}, "hvd_sparse cannot be imported"),
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_stops_training(here, name):
    changes, said = STOPPED[name]
    (fault,) = advice.obstacles(changed(here, **changes))
    assert said in fault.text and fault.remedy


def test_operations_for_another_tensorflow_stop_training(here):
    found = changed(here)
    found["libraries"]["lars/_ops.so"]["tensorflow"] = "2.20.0"
    (fault,) = advice.obstacles(found)
    assert fault.text.startswith("lars/_ops.so is for TensorFlow 2.20.0, this is 2.")


GPU = {"tensorflow__gpus": ["NVIDIA H100, compute capability 9.0"], "nvidia": {"devices": 1, "driver_cuda": "12.4"}}
NCCL = {"horovod__built_with": ["gloo", "nccl"]}
COMPILED = {"there": True, "tensorflow": None}


def test_with_all_there_is_everything_runs_on_the_gpu(here):
    found = changed(here, **GPU, **NCCL, host={"name": "node7", "address": "10.0.0.7"})
    found["libraries"] |= {"hvd_sparse/_cuda.so": COMPILED, "lars/_cuda.so": COMPILED}
    places = advice.places(found)
    assert places["model"] == places["selection"] == "GPU"
    assert places["exchange between nodes"] == places["exchange inside a node"] == "NCCL, between GPUs"
    assert advice.losses(found) == []


def test_without_nccl_ranks_of_a_node_use_shared_memory_also_with_gpus(here):
    assert advice.places(changed(here, **GPU))["exchange inside a node"].startswith("shared memory")
    assert any("without NCCL" in fault.text for fault in advice.losses(changed(here, **GPU)))


def test_a_horovod_that_ends_with_the_first_rank_is_told(here):
    (fault,) = advice.losses(changed(here, horovod__survives_deaths=False, host={"name": "n", "address": "10.0.0.7"}))
    assert "the death of a rank" in fault.text and "build_wheel.sh" in fault.remedy
    assert here["found"]["horovod"]["survives_deaths"]


UNUSABLE = {
    "is not compiled": {"there": False},
    "cannot be loaded (OSError: wrong ELF class)": {**COMPILED, "error": "OSError: wrong ELF class"},
}
ON_THE_CPU = {
    "hvd_sparse/_cuda.so": "so gradients are copied to the CPU to be selected",
    "lars/_cuda.so": "so LARS and LAMB update weights on the CPU",
}


@pytest.mark.parametrize("name", ON_THE_CPU)
@pytest.mark.parametrize("reason", UNUSABLE)
def test_what_a_gpu_library_does_is_done_on_the_cpu_without_it(here, name, reason):
    found = changed(here, **GPU, **NCCL)
    found["libraries"] |= {**dict.fromkeys(ON_THE_CPU, COMPILED), name: UNUSABLE[reason]}
    assert advice.places(found)["selection"] == ("GPU" if name == "lars/_cuda.so" else "CPU")
    (loss,) = [each for each in advice.losses(found) if "_cuda.so" in each.text]
    assert loss.text == f"{name} {reason}, {ON_THE_CPU[name]}"
    assert "CUDA 11.8 to 12.4, the newest for this driver" in loss.remedy


def test_a_gpu_library_that_this_driver_cannot_run_stops_training(here):
    """The operations are registered for GPUs as soon as the library loads."""
    found = changed(here, **GPU, **NCCL, gpu_fault="CUDA driver version is insufficient for CUDA runtime version")
    found["libraries"] |= dict.fromkeys(ON_THE_CPU, COMPILED)
    assert advice.places(found)["selection"] == "not at all"
    (fault,) = advice.obstacles(found)
    assert "driver version is insufficient" in fault.text and "CUDA 11.8 to 12.4" in fault.remedy


@pytest.mark.parametrize("cuda, said", [(None, "is built for CPUs"), ("12.5.1", "does not find CUDA's libraries")])
def test_gpus_that_tensorflow_does_not_see_are_told(here, cuda, said):
    found = changed(here, nvidia={"devices": 8, "driver_cuda": "13.0"}, tensorflow__cuda=cuda)
    told = [fault.text for fault in advice.losses(found)]
    assert any(said in text and text.startswith("TensorFlow sees none of the machine's GPUs (8)") for text in told)


def test_a_loopback_name_is_told_but_stops_nothing(here):
    found = changed(here, host={"name": "node7", "address": "127.0.1.1"})
    assert advice.obstacles(found) == []
    assert any("127.0.1.1" in fault.text for fault in advice.losses(found))

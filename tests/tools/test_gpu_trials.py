"""tools/gpu_trials: the driver without a GPU, as a program sees it, and how the trials read what ranks print.

The trials themselves need TensorFlow for GPUs: `python -m tools.gpu_trials`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from tools.gpu_trials import environment, trials

PROGRAM = """
import ctypes, json, sys
driver = ctypes.CDLL(sys.argv[1])
count, names, buses = ctypes.c_int(), [], []
driver.cuDeviceGetCount(ctypes.byref(count))
for device in range(count.value):
    name, bus = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    driver.cuDeviceGetName(name, 64, device)
    driver.cuDeviceGetPCIBusId(bus, 64, device)
    names.append(name.value.decode())
    buses.append(bus.value.decode())
print(json.dumps([names, len(set(buses))]))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """What stands for libcuda, and nothing else, which needs none of CUDA's headers."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    sources = [environment.SOURCES / f"{name}.cc" for name in ("common", "cuda_driver")]
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-fPIC", "-shared", "-pthread", *sources, "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(
    ("gpus", "visible", "seen"),
    [
        ("2", None, [0, 1]),
        ("4", "3,1", [3, 1]),
        ("4", "", []),
        ("2", "1,5,0", [1]),  # CUDA stops at the first that is not there
        ("1", "none", []),
    ],
)
def test_a_process_sees_the_gpus_that_cuda_would_show_it(driver, gpus, visible, seen):
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    selected = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    command = [sys.executable, "-c", PROGRAM, driver]
    told = subprocess.run(command, env={**kept, **selected, "TRIAL_GPUS": gpus}, capture_output=True, text=True)
    assert json.loads(told.stdout) == [[f"Trial GPU {number}" for number in seen], len(seen)]


def test_memory_is_counted_and_copies_are_logged(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIAL_LOG", str(tmp_path / "log"))
    cuda = ctypes.CDLL(str(driver))
    block, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000)) == 0
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    assert total.value - free.value == 1000
    there, back = ctypes.create_string_buffer(b"weights"), ctypes.create_string_buffer(8)
    assert cuda.cuMemcpyHtoD_v2(block, there, ctypes.c_size_t(8)) == 0
    assert cuda.cuMemcpyDtoH_v2(back, block, ctypes.c_size_t(8)) == 0
    assert back.value == b"weights"
    assert cuda.cuMemFree_v2(block) == 0 and cuda.cuMemFree_v2(block) != 0
    assert (tmp_path / f"log.{os.getpid()}").read_text() == "copy H2D 8 pageable\ncopy D2H 8 pageable\n"


def test_what_each_rank_printed_is_found_among_warnings():
    printed = '[1]<stderr>:a warning\n[1]<stdout>:{"rank": 1, "gpus": []}\n[0]<stdout>:{"rank": 0, "gpus": ["a"]}\n'
    assert trials.told(printed) == {0: {"rank": 0, "gpus": ["a"]}, 1: {"rank": 1, "gpus": []}}


def test_each_number_of_gpus_is_tried_with_each_way_to_select_one():
    plain = {(trial.gpus, trial.script) for trial in trials.TRIALS if trial.ranks == trial.gpus and not trial.variables}
    assert {(gpus, way) for gpus in (1, 2, 4) for way in trials.WAYS} <= plain
    selected = {trial.script for trial in trials.TRIALS if trial.variables.get("CUDA_VISIBLE_DEVICES") == "3,1"}
    assert selected == set(trials.WAYS)

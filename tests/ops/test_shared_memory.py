"""The exchange in shared memory between real processes, without Python or TensorFlow, and under sanitizers."""

import ctypes
import errno
import pathlib
import subprocess

import numpy as np
import pytest

from tests.ops import native

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "tests" / "ops" / "exchange_ranks.cc", ROOT / "ops" / "shared_memory" / "shared_memory.cc"]
LIMIT = 300  # seconds until a process counts as hanging


def build(folder: pathlib.Path, *options: str) -> pathlib.Path:
    program = folder / "exchange_ranks"
    command = ["c++", "-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra", *options]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The ranks, without sanitizers."""
    return build(tmp_path_factory.mktemp("plain"))


def run(program: pathlib.Path, ranks: int, rounds: int, what: str) -> None:
    ended = subprocess.run(
        [str(program), str(ranks), str(rounds), what], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize("ranks", [*range(1, 10), 64])
def test_each_rank_gets_what_the_others_sent(program, ranks):
    run(program, ranks, 4 if ranks == 64 else 40, "all")


def test_large_pieces_arrive_whole(program):
    run(program, 3, 8, "large")


def test_memory_that_was_of_no_use_for_long_is_given_back(program):
    run(program, 2, 1500, "all")


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("rounds", [1, 20])
def test_a_killed_rank_ends_the_exchange_of_the_others(program, ranks, rounds):
    run(program, ranks, rounds, "dies")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("what", ["stops", "late", "ends"])
def test_a_rank_that_stands_still_is_given_up_and_one_that_is_late_is_waited_for(program, ranks, what):
    run(program, ranks, 3, what)


@pytest.mark.parametrize("patience", [-1.0, float("nan"), float("inf")])
def test_a_patience_that_is_none_is_refused(patience):
    kernels, address = native.library(), np.zeros(3, np.int64)
    group = kernels.hvds_neighbours_open(2, 0, native.pointer(address))
    watch = kernels.hvds_neighbours_watch
    watch.argtypes = [ctypes.c_int64, ctypes.c_double, ctypes.c_void_p]
    assert watch(group, patience, None) == errno.EINVAL
    assert watch(group, 0.0, None) == 0
    assert watch(group + 1, 1.0, None) == errno.EINVAL
    kernels.hvds_neighbours_close(group)


@pytest.mark.parametrize(
    "sanitizer, rounds",
    [
        ("thread", 300),
        pytest.param("thread", 3000, marks=pytest.mark.thorough),
        pytest.param("address,undefined", 100, marks=pytest.mark.thorough),
    ],
)
def test_it_is_clean_under_sanitizers(sanitizer, rounds, tmp_path, monkeypatch):
    """A race ends a rank. Signals that an inbox is free come from another process; the sanitizer does not see them."""
    program = build(tmp_path, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    (tmp_path / "known").write_text("race:copy_piece\n")
    monkeypatch.setenv("TSAN_OPTIONS", f"halt_on_error=1 suppressions={tmp_path / 'known'}")
    run(program, 3, 20, "all")
    for what in ("dies", "stops", "late", "ends"):
        run(program, 3, 5, what)
    run(program, 2, rounds, "many")


def test_arguments_that_cannot_be_are_refused():
    kernels = native.library()
    address = np.zeros(3, np.int64)
    for members, me in [(0, 0), (65, 0), (2, 2), (2, -1)]:
        assert kernels.hvds_neighbours_open(members, me, native.pointer(address)) < 0


def test_who_has_a_ranks_old_number_is_not_taken_for_it():
    """Another process may now have its process id, and another file its descriptor: the token tells them apart."""
    kernels, addresses = native.library(), np.zeros((2, 3), np.int64)
    groups = [kernels.hvds_neighbours_open(2, me, native.pointer(addresses[me])) for me in range(2)]
    stale = addresses + [[0, 0, 0], [0, 0, 1]]
    assert kernels.hvds_neighbours_join(groups[0], native.pointer(stale)) == errno.ESRCH
    assert kernels.hvds_neighbours_join(groups[0], native.pointer(addresses)) == 0
    for group in groups:
        kernels.hvds_neighbours_close(group)

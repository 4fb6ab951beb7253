"""Averaging by datagrams without Python or TensorFlow: tags, the window of counters, and ranks under sanitizers."""

import ctypes
import functools
import pathlib
import subprocess
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from benchmarks.machines import cluster
from hvd_sparse.averaging.blocks import Blocks
from tests.ops import native
from tests.simulation import same_bits

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [
    *sorted(path for path in (ROOT / "ops" / "datagrams").glob("*.cc") if not path.stem.endswith("_op")),
    ROOT / "ops" / "common" / "cpu_features.cc",
]
LIMIT = 300  # seconds until a process counts as hanging
WINDOW = 8192  # counters

# ---- tags ----

KEY = bytes(range(16))
# The message is the bytes 0, 1, ..., length - 1: vectors_sip128 of the reference code (veorq/SipHash).
PUBLISHED = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    63: "5150d1772f50834a503e069a973fbd7c",
}


def tag(key: bytes, message: bytes) -> bytes:
    made = ctypes.create_string_buffer(16)
    native.library().hvds_siphash(key, message, ctypes.c_int64(len(message)), made)
    return made.raw


@pytest.mark.parametrize("length", PUBLISHED)
def test_tags_are_the_published_ones(length):
    assert tag(KEY, bytes(range(length))).hex() == PUBLISHED[length]


@hypothesis.given(
    count=strategies.integers(1, 8),
    length=strategies.integers(0, 1500),
    seed=strategies.integers(0, 2**32 - 1),
)
def test_several_at_once_have_the_tags_of_each_under_its_own_key(count, length, seed, examples):
    random = np.random.default_rng(seed)
    keys, messages = ([random.bytes(size) for _ in range(count)] for size in (16, length))
    for isa in native.isas():
        made = np.zeros(16 * count, np.uint8)
        with native.isa(native.ISAS[isa]):
            native.library().hvds_siphash_many(
                *((ctypes.c_char_p * count)(*each) for each in (keys, messages)),
                *(ctypes.c_int64(number) for number in (count, length)),
                native.pointer(made),
            )
        assert made.tobytes() == b"".join(tag(key, message) for key, message in zip(keys, messages, strict=True))


# ---- counters ----


@hypothesis.given(
    steps=strategies.lists(
        strategies.one_of(
            strategies.integers(-3, 3), strategies.integers(-70, 70), strategies.integers(-3 * WINDOW, 3 * WINDOW)
        ),
        max_size=200,
    ),
    start=strategies.integers(0, 2**40),
)
def test_a_counter_is_let_in_once_and_none_that_is_new_is_lost(steps, start, examples):
    library = native.library()
    library.hvds_window_new.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.hvds_window_new())
    seen, counter, highest = {0}, start, 0
    for step in steps:
        counter = max(counter + step, 0)
        accepted = bool(library.hvds_window_accept(made, ctypes.c_uint64(counter)))
        assert not (accepted and counter in seen), "it came again"
        if counter not in seen and counter + WINDOW > highest:
            assert accepted, "it was new, and not too old"
        seen.add(counter)
        highest = max(highest, counter)
    library.hvds_window_delete(made)


# ---- ranks ----


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles a program; shared code is compiled once for each sanitizer."""

    def compiled(sanitizer: str, *arguments: object) -> None:
        command = ["c++", "-std=c++17", "-O1", "-pthread", "-Wall", "-Wextra", f"-I{ROOT / 'ops'}"]
        chosen = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
        subprocess.run([*command, *chosen, *map(str, arguments)], check=True, cwd=folder)

    @functools.cache
    def common(sanitizer: str) -> list[pathlib.Path]:
        made = [folder / f"{sanitizer}.{source.stem}.o" for source in SOURCES]
        for source, target in zip(SOURCES, made, strict=True):
            compiled(sanitizer, "-c", source, "-o", target)
        return made

    @functools.cache
    def build_program(name: str, sanitizer: str = "", alone: bool = False) -> pathlib.Path:
        program = folder / f"{sanitizer}.{name}"
        objects = [] if alone else common(sanitizer)
        compiled(sanitizer, ROOT / "tests" / "ops" / f"{name}.cc", *objects, "-o", program)
        return program

    folder = tmp_path_factory.mktemp("datagrams")
    return build_program


def run(program: pathlib.Path, *arguments: object) -> None:
    command = [str(program), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize("sanitizer", ["address,undefined", pytest.param("thread", marks=pytest.mark.thorough)])
def test_ranks_average_as_they_must_and_clean_under_sanitizers(build, sanitizer, monkeypatch):
    """Exact without loss; also with a rank that is killed or stopped in the middle of a phase and comes back."""
    monkeypatch.setenv("TSAN_OPTIONS", "halt_on_error=1")
    program = build("datagram_ranks", sanitizer)
    for ranks, rounds, size in [(1, 2, 5), (2, 3, 1), (3, 4, 1421), (4, 3, 100_003), (5, 5, 357)]:
        run(program, "all", ranks, rounds, size, 0)
        run(program, "all", ranks, rounds, size, 1)
    run(program, "dies", 3, 0, 300_000, 0)
    run(program, "stops", 3, 0, 300_000, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_ranks_that_spread_what_they_send_survive_the_end_of_one(build, sanitizer, monkeypatch):
    monkeypatch.setenv("TSAN_OPTIONS", "halt_on_error=1")
    for what in ("dies", "stops"):
        run(build("datagram_ranks", sanitizer), what, 3, 0, 300_000, 1)


@pytest.mark.parametrize(
    "lies, spread",
    [
        (20_000, 0),
        pytest.param(1_000_000, 0, marks=pytest.mark.thorough),
        pytest.param(1_000_000, 1, marks=pytest.mark.thorough),
    ],
)
def test_no_lie_is_accepted(build, lies, spread):
    run(build("datagram_lies", "address,undefined"), lies, 5_003, spread)


# ---- the rate ----


@pytest.mark.parametrize(
    "ceiling, capacity, period, burst, active, pause, least, lost",
    [
        (1e9, 1e9, 230, 20, 60, 45, 0.5, 0.05),  # bursts of another sender, and pauses as for a computation
        (1e8, 1e8, 230, 20, 60, 45, 0.5, 0.05),
        (1e9, 1e9, 200, 20, 1000, 0, 0.7, 0.06),
        ("inf", 1e8, 200, 20, 1000, 0, 0.7, 0.1),
        (1e8, 1e8, 170, 20, 50, 50, 0.7, 0.08),
        (1e9, 1e9, 170, 20, 10, 30, 0.7, 0.09),
        ("inf", 1e9, 170, 20, 50, 50, 0.8, 0.09),
        (1e9, 1e9, 200, 0, 50, 50, 1.0, 0.0),  # no other sender
        (1e9, 7e8, 200, 0, 1000, 0, 0.9, 0.02),  # a ceiling that is too high
        (1e9, 1e8, 200, 0, 1000, 0, 0.9, 0.02),
        (1e9, 5e8, 200, 0, 50, 50, 0.9, 0.05),
        ("inf", 1e9, 200, 0, 1000, 0, 0.9, 0.01),
        ("inf", 1e8, 200, 0, 1000, 0, 0.9, 0.01),
    ],
)
def test_the_rate_comes_back_after_a_burst_and_finds_what_a_link_carries(
    build, ceiling, capacity, period, burst, active, pause, least, lost
):
    words = map(str, (ceiling, capacity, period, burst, active, pause))
    told = subprocess.run(
        [build("datagram_pacer", alone=True), *words], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    rate, share = map(float, told.stdout.split())
    assert rate >= least and share <= lost


# ---- limits of a phase ----


@hypothesis.given(
    rates=strategies.lists(strategies.floats(1e6, 1e10), min_size=1, max_size=40),
    bytes=strategies.integers(1, 10**9),
    multiple=strategies.floats(1.1, 4),
    slack=strategies.floats(1.1, 3),
    least=strategies.floats(1e-3, 0.1),
)
@hypothesis.example(rates=[1e9] * 9 + [4e8], bytes=10**8, multiple=2.0, slack=1.5, least=0.05)
def test_no_limit_cuts_a_phase_whose_rate_has_fallen(build, rates, bytes, multiple, slack, least, examples):
    program = build("datagram_limits", alone=True)
    words = [program, *map(str, (multiple, slack, least, bytes, *rates))]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT).stdout
    lasts, limits = np.array([line.split() for line in told.splitlines()], float).T
    near = 1 + 1e-6
    assert (limits * near >= np.maximum(least, min(multiple, slack) * lasts)).all(), "it was cut"
    assert (limits <= near * np.maximum(least, multiple * lasts)).all(), "longer than the stated multiple"


# ---- a queue that overflows ----

SEGMENT = (1472 - 56) // 4  # elements


class Round(NamedTuple):
    """A rank's results of a round, see datagram_rank.cc."""

    mean: np.ndarray
    contributors: np.ndarray
    came: np.ndarray


def read_rounds(path: pathlib.Path, ranks: int, size: int) -> list[Round]:
    rounds = []
    with path.open("rb") as file:
        while len(mean := np.fromfile(file, np.float32, size)):
            most = int(np.fromfile(file, np.int64, 1)[0])
            contributors = np.fromfile(file, np.uint64, most)
            rounds.append(Round(mean, contributors, np.fromfile(file, np.uint8, ranks * most).reshape(ranks, most)))
    return rounds


def value(rank: int, round: int, size: int) -> np.ndarray:
    """The vector of a rank, as in datagram_job.h."""
    mixed = (np.arange(size, dtype=np.uint64) * np.uint64(64) + np.uint64(rank)) * np.uint64(1000003) + np.uint64(round)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return ((mixed % np.uint64(2000001)).astype(np.int64) - 1000000).astype(np.float32) * np.float32(1e-3)


@pytest.mark.thorough
@pytest.mark.skipif(cluster.unavailable() is not None, reason=str(cluster.unavailable()))
def test_under_a_queue_that_overflows_each_segment_is_the_mean_of_those_that_arrived(build, tmp_path):
    """Three hosts on links of 20 Mbit/s send at 1.3 times that rate."""
    ranks, rounds, size = 3, 2, 1_000_001
    program = build("datagram_rank")
    with cluster.Cluster(ranks, 1, "20mbit") as hosts:
        addresses = [hosts.address(rank) for rank in range(ranks)]
        running = [
            subprocess.Popen(
                [*hosts.prefix(rank), program, *map(str, (rank, rounds, size, 26e6, tmp_path / f"{rank}")), *addresses]
            )
            for rank in range(ranks)
        ]
        assert [each.wait(LIMIT) for each in running] == [0] * ranks
    told = [read_rounds(tmp_path / f"{rank}", ranks, size) for rank in range(ranks)]
    blocks, lost = Blocks(size, ranks), 0
    for round in range(rounds):
        own = np.stack([value(rank, round, size) for rank in range(ranks)])
        for block in range(ranks):
            owner = told[blocks.owner_of(block, round, True)][round]
            end = min((block + 1) * blocks.length, size)
            for number, start in enumerate(range(block * blocks.length, end, SEGMENT)):
                here = slice(start, min(start + SEGMENT, end))
                there = [rank for rank in range(ranks) if int(owner.contributors[number]) >> rank & 1]
                mean = own[there[0], here].copy()
                for rank in there[1:]:
                    mean += own[rank, here]
                mean /= np.float32(len(there))
                lost += ranks - len(there)
                for rank in range(ranks):
                    came = told[rank][round].came[block, number]
                    same_bits(told[rank][round].mean[here], mean if came else own[rank, here])
                    lost += not came
    assert lost > 0

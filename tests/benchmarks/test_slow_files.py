"""The slow file system: its contents, its delays, its counters, and its removal afterwards."""

import concurrent.futures
import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

import datacache
from benchmarks.datacache import slow_files
from benchmarks.datacache.slow_files import SlowFiles
from examples import photographs
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

ROOT = pathlib.Path(__file__).parents[2]
SIDE = 16


@pytest.fixture
def source(tmp_path):
    """Two folders with files of 0 to 300 KB, and a symbolic link to one of them."""
    random = np.random.default_rng(0)
    for number, size in enumerate((0, 1, 4096, 4097, 100_000, 300_000)):
        path = tmp_path / "source" / f"folder {number % 2}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(size))
    (tmp_path / "source" / "link").symlink_to("folder 0/4.bin")
    return tmp_path / "source"


def read_all(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_until(true, limit=60.0):
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mounted(path):
    return any(line.split()[1] == str(path) for line in pathlib.Path("/proc/mounts").read_text().splitlines())


@pytest.mark.parametrize("text, wanted", [("50MB/s", 50e6), ("1.5gb/s", 1.5e9), ("64 kB/s", 64e3)])
def test_rates_are_read(text, wanted):
    assert slow_files.bytes_per_second(text) == wanted


@pytest.mark.parametrize("text, wanted", [("2ms", 0.002), ("0ms", 0), ("1.5s", 1.5), ("50 us", 50e-6)])
def test_latencies_are_read(text, wanted):
    assert slow_files.seconds(text) == pytest.approx(wanted)


@pytest.mark.parametrize("options", [{"rate": "fast"}, {"rate": "0MB/s"}, {"latency": "2"}, {"in_flight": 0}])
def test_what_cannot_be_is_refused(tmp_path, options):
    with pytest.raises(ValueError, match="Expected"):
        SlowFiles(tmp_path, **options)


def test_what_is_no_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected a directory"):
        SlowFiles(tmp_path / "nothing")


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert "apt-get install libfuse3-dev fuse3" in slow_files.unavailable()
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(RuntimeError, match="needs /dev/fuse"), SlowFiles(ROOT):
        pass


@needs.fuse
def test_files_are_those_of_the_source(source):
    with SlowFiles(source) as slow:
        assert read_all(slow.mount) == read_all(source)
        assert os.readlink(slow.mount / "link") == "folder 0/4.bin"
        for path in source.rglob("*"):
            shown, real = os.lstat(slow.mount / path.relative_to(source)), os.lstat(path)
            assert (shown.st_size, shown.st_mtime_ns) == (real.st_size, real.st_mtime_ns)
        assert os.statvfs(slow.mount).f_blocks == os.statvfs(source).f_blocks
        with pytest.raises(FileNotFoundError):
            (slow.mount / "nothing").read_bytes()
        assert (slow.mount / "folder 0").is_dir() and not (slow.mount / "folder 0" / "1.bin").exists()


@needs.fuse
def test_nothing_can_be_written(source):
    with SlowFiles(source) as slow:
        for write in (lambda: (slow.mount / "new").touch(), lambda: (slow.mount / "folder 0" / "4.bin").open("r+")):
            with pytest.raises(OSError, match="Read-only"):
                write()


@needs.fuse
def test_it_counts_what_is_asked_for(source):
    with SlowFiles(source) as slow:
        assert slow.counted() == slow_files.Counted({}, 0, 0)
        path = slow.mount / "folder 1" / "5.bin"
        path.read_bytes()
        first = slow.counted()
        assert first.bytes == 300_000
        assert first.operations["open"] == 1 and first.operations["read"] >= 1
        assert first.operations["lookup"] >= 2  # of the folder and of the file; more if that takes long
        path.read_bytes()  # it is checked for changes and read again
        second = slow.counted()
        assert second.bytes == 600_000 and second.operations["open"] == 2
    assert slow.counted() == second  # also after unmounting


@needs.fuse
def test_no_reader_gets_more_than_the_rate(source):
    """All readers together; on a busy machine it may be slower, but never faster."""
    paths = [path.relative_to(source) for path in source.rglob("5.bin")]
    with SlowFiles(source, rate="2MB/s") as slow, concurrent.futures.ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        for _ in range(2):  # one at a time, as simultaneous readers of a file share the kernel's pages
            for path in paths:
                (slow.mount / path).read_bytes()
        list(pool.map(lambda name: (slow.mount / name).read_bytes(), ["folder 0/4.bin", "folder 1/3.bin"] * 2))
        elapsed = time.monotonic() - began
        assert slow.counted().bytes >= 600_000 + 104_097
        assert slow.counted().bytes / elapsed <= 2e6


@needs.fuse
def test_no_operation_is_faster_than_the_latency(source):
    with SlowFiles(source, latency="30ms") as slow:
        began = time.monotonic()
        (slow.mount / "folder 0" / "4.bin").read_bytes()
        elapsed = time.monotonic() - began
        counted = slow.counted()
        assert counted.most_in_flight <= 16
        assert elapsed >= 0.03 * 4  # two lookups, an open and a read, one after another
        began = time.monotonic()
        os.listdir(slow.mount / "folder 1")
        assert time.monotonic() - began >= 0.03 * 2


@needs.fuse
@pytest.mark.parametrize("in_flight", [1, 3])
def test_no_more_operations_are_in_flight_than_may_be(source, in_flight):
    with SlowFiles(source, latency="100ms", in_flight=in_flight) as slow:  # a long latency makes them overlap
        names = [path.relative_to(source) for path in source.rglob("*.bin")]
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda name: (slow.mount / name).read_bytes(), names))
        elapsed = time.monotonic() - began
        counted = slow.counted()
        assert counted.most_in_flight == in_flight
        assert elapsed >= 0.1 * counted.all_operations / in_flight


@needs.fuse
def test_lookups_in_one_folder_overlap(source):
    """The kernel looks up one name per directory at a time, so a lookup must not wait for the latency there."""
    for number in range(40):
        (source / "folder 0" / f"many {number}").touch()
    with SlowFiles(source, latency="100ms") as slow, concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: os.stat(slow.mount / "folder 0" / f"many {number}"), range(40)))
        counted = slow.counted()
    assert counted.operations["lookup"] >= 41
    assert counted.most_in_flight > 1


@needs.fuse
def test_calibration_says_what_is_reached(source, monkeypatch):
    monkeypatch.setattr(slow_files, "drop_caches", lambda: False)  # global; other tests count repeated reads
    with SlowFiles(source, rate="5MB/s", latency="5ms", in_flight=4) as slow:
        found = slow.calibrate(limit=0.3)
    assert 0 < found.one <= 5e6 and 0 < found.rate <= 5e6
    assert found.latency >= 0.005


@needs.fuse
def test_what_has_no_file_cannot_be_calibrated(tmp_path):
    with SlowFiles(tmp_path) as slow, pytest.raises(ValueError, match="no file to calibrate with"):
        slow.calibrate()


# ---- removal ----


@needs.fuse
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_is_stopped_is_unmounted(source, number):
    with SlowFiles(source) as slow:
        used = os.open(slow.mount / "folder 0" / "4.bin", os.O_RDONLY)
        os.kill(slow.pid, number)
        wait_until(lambda: not mounted(slow.mount))
        with contextlib.suppress(OSError):  # the server that would be told of the close is gone
            os.close(used)
    assert not slow.mount.exists()


@needs.fuse
def test_it_is_unmounted_when_its_user_is_killed(source):
    program = (
        "import sys, time; from benchmarks.datacache.slow_files import SlowFiles\n"
        "with SlowFiles(sys.argv[1]) as slow: print(slow.mount, flush=True); time.sleep(300)"
    )
    command = [sys.executable, "-c", program, str(source)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as user:
        mount = pathlib.Path(user.stdout.readline().strip())
        assert mounted(mount)
        user.kill()
    wait_until(lambda: not mounted(mount))
    wait_until(lambda: not mount.exists())


@needs.fuse
def test_as_a_command_it_prints_what_it_counted(source, tmp_path):
    mount = tmp_path / "mount"
    command = [sys.executable, "-m", "benchmarks.datacache.slow_files", "--source", str(source), "--mount", str(mount)]
    with subprocess.Popen([*command, "--rate", "50MB/s"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == f"Mounted on {mount}\n"
        assert (mount / "folder 0" / "4.bin").read_bytes() == (source / "folder 0" / "4.bin").read_bytes()
        server.terminate()
        assert '"bytes": 100000' in server.stdout.read()
    assert server.returncode == 0 and not mounted(mount)


# ---- the cache on top of it ----


def decode(payload):
    return np.asarray(Image.open(io.BytesIO(payload)).resize((SIDE, SIDE)))


@needs.fuse
def test_a_cache_reads_each_byte_once_over_two_epochs_and_two_runs(tmp_path):
    files = photographs.write_folder(tmp_path / "source", 18, width=60, height=50, photographs=3)
    wanted = [decode(content) for _, content in files]
    total = sum(len(content) for _, content in files)
    with SlowFiles(tmp_path / "source", rate="20MB/s", latency="1ms") as slow:

        def run():
            before = slow.counted()
            source = datacache.ImageFolder(slow.mount)
            with datacache.DataCache(source, decode, tmp_path / "local", world=datacache.World()) as cache:
                for epoch in range(2):
                    order = cache.schedule(4, epoch)
                    for step, (samples, _) in enumerate(cache.batches(4, epoch)):
                        for sample, index in zip(samples, order.indices(step, 0), strict=True):
                            np.testing.assert_array_equal(sample, wanted[index])
            after = slow.counted()
            return after.bytes - before.bytes, after.all_operations - before.all_operations

        assert run()[0] == total
        assert run() == (0, 0)

"""From a slow network file system to training, datacache against tf.data: `python -m benchmarks.datacache.files`.

JPEG files of 500 x 375 and 110 KB lie behind benchmarks/slow_files; all arms decode and resize them to 96 x 96 by the
same TensorFlow operations. Each round does the following for each rate of the link, one after another, each on a new
mount:

- the link is calibrated, with as many plain readers as operations may be in flight;
- datacache fills: a first run with an empty local directory, and a second one that finds it filled, both up to a full
  memory level, without training. The kernel's caches are dropped before each run (only as root; otherwise the report
  says so);
- a small ResNet trains some epochs on tf.data's parallel pipeline, once with AUTOTUNE alone and once with private
  threads that read 16 files at a time, and on datacache; caches are dropped before each of these. Between datacache's
  epochs it trains one epoch on a single batch in memory, as synthetic data. At the first rate there are many more such
  pairs, as one synthetic epoch differs from the next by a tenth.

I/O time is the time that the training step waits for its batch. The rival is the better of tf.data's arms. All files
are in memory on the server's side, and file server, decoding and training share this machine's cores: on a fast link
the cores, not the link, limit all arms. Decoded samples are kept on the local disk (keep_decoded), so that a second run
need not decode.

Finally two ranks, processes on this node, read through one cache, twice, and the file server's counters are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import datacache
from benchmarks.datacache import slow_files
from benchmarks.datacache.files_report import OURS, RIVALS, lines, verdicts
from benchmarks.datacache.slow_files import SlowFiles
from benchmarks.reporting import report
from benchmarks.reporting.report import Section
from examples import photographs

Progress = Callable[[str], Any]
LATENCY, IN_FLIGHT = "1ms", 16
_RANKS = 2
_RANKS_RATE = "200MB/s"
_MEMORY = pathlib.Path("/dev/shm")
_ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The extent of a measurement.

    Attributes:
        files: number of files in the data set.
        rates: rates of the link; the targets apply to the first.
        epochs: epochs of training.
        rounds: repetitions of everything; figures are medians over them.
        pairs: additional pairs of epochs at the first rate, one of ours and one on synthetic data.
    """

    files: int = 1500
    rates: tuple[str, ...] = ("50MB/s", "100MB/s", "200MB/s")
    epochs: int = 5
    rounds: int = 2
    pairs: int = 20


WHOLE = Plan()


def measure(folder: pathlib.Path, progress: Progress, plan: Plan = WHOLE) -> Section:
    """Answers what the cache saves on a slow network file system (CommLib 4.1, Fig. 9).

    Args:
        folder: for the caches, on a local disk.
        progress: called with progress messages.
        plan: extent of the measurement.

    Raises:
        RuntimeError: if there can be no slow file system here.
    """
    reason = slow_files.unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    with _data_set(folder, plan, progress) as (source, size):
        figures = _Bench(source, size, folder, plan, progress).run()
    return Section("From a slow network file system to training", lines(figures), figures, verdicts(figures))


class _Bench:
    """One data set, measured."""

    def __init__(self, source: pathlib.Path, size: int, folder: pathlib.Path, plan: Plan, progress: Progress):
        from benchmarks.datacache import training  # TensorFlow is imported here

        self._training, self._source, self._size = training, source, size
        self._folder, self._plan, self._progress = folder, plan, progress
        self._trainer = training.Trainer(len(list(source.iterdir())))

    def run(self) -> dict[str, Any]:
        """All figures; seconds and bytes."""
        links: dict[str, dict[str, list]] = {rate: {} for rate in self._plan.rates}
        for number in range(self._plan.rounds):
            for rate, found in links.items():
                for name, figures in self._round(rate).items():
                    found.setdefault(name, []).append(figures)
                self._progress(f"round {number + 1} of {self._plan.rounds}, {rate}: done")
        return {
            "files": self._plan.files,
            "bytes": self._size,
            "epochs": self._plan.epochs,
            "rounds": self._plan.rounds,
            "latency": LATENCY,
            "in_flight": IN_FLIGHT,
            "parameters": self._trainer.parameters,
            "batch": self._training.BATCH,
            "dropped": slow_files.drop_caches(),
            "links": links,
            "ranks": self._ranks(),
        }

    def _round(self, rate: str) -> dict[str, Any]:
        with self._mounted(rate) as slow:
            found: dict[str, Any] = {"calibration": slow.calibrate()._asdict()}
        found["fill"] = self._fill(rate)
        for name, readers in RIVALS.items():
            found[name] = self._train_rival(rate, readers)
        found[OURS] = self._train_ours(rate)
        return found

    def _fill(self, rate: str) -> dict[str, Any]:
        with self._mounted(rate) as slow, self._local() as local:
            cold = self._filled(slow, local)
            slow_files.drop_caches()
            return {"cold": cold, "warm": self._filled(slow, local)}

    def _filled(self, slow: SlowFiles, local: pathlib.Path) -> dict[str, float]:
        """One run, up to a full memory level: seconds until it is open (listed), and seconds of the epoch."""
        before, began = slow.counted(), time.perf_counter()
        with self._cache(slow, local) as cache:
            opened = time.perf_counter()
            for _ in cache.batches(self._training.BATCH, 0):
                pass
            ended = time.perf_counter()
        return {"open": opened - began, "epoch": ended - opened, **_asked(before, slow.counted())}

    def _train_rival(self, rate: str, readers: int | None) -> dict[str, Any]:
        with self._mounted(rate) as slow:
            began = time.perf_counter()
            batches = self._training.rival(slow.mount, readers)
            opened = time.perf_counter() - began
            epochs = [self._trainer.epoch(batches) for _ in range(self._plan.epochs)]
            counted = _asked(slow_files.Counted({}, 0, 0), slow.counted())
        return {"open": opened, "epochs": [epoch._asdict() for epoch in epochs], **counted}

    def _train_ours(self, rate: str) -> dict[str, Any]:
        epochs, pairs, plan = [], [], self._plan
        more = plan.pairs if rate == plan.rates[0] else 0
        with self._mounted(rate) as slow, self._local() as local:
            began = time.perf_counter()
            with self._cache(slow, local) as cache:
                opened = time.perf_counter() - began
                for number in range(plan.epochs + more):
                    batches = cache.dataset(self._training.BATCH, number, drop_remainder=True)
                    epochs.append(self._trainer.epoch(batches)._asdict())
                    without = self._trainer.epoch(self._training.synthetic(len(batches)))
                    pairs.append([epochs[-1]["seconds"], without.seconds])
            counted = _asked(slow_files.Counted({}, 0, 0), slow.counted())
        return {"open": opened, "epochs": epochs[: plan.epochs], "pairs": pairs[1:], **counted}

    def _ranks(self) -> list[dict[str, float]]:
        """The server's counters for several ranks of one node, in a first and in a second run."""
        with self._mounted(_RANKS_RATE) as slow, self._local() as local:
            runs = []
            for _ in range(2):
                before = slow.counted()
                command = [sys.executable, "-m", "benchmarks.datacache.rank", str(slow.mount), str(local)]
                ranks = [
                    subprocess.Popen([*command, "--rank", str(rank), "--size", str(_RANKS)], cwd=_ROOT, stdout=-1)
                    for rank in range(_RANKS)
                ]
                outputs = [rank.communicate()[0] for rank in ranks]
                if any(rank.returncode for rank in ranks):
                    raise RuntimeError(f"the ranks ended with {[rank.returncode for rank in ranks]}")
                runs.append({**_asked(before, slow.counted()), "outputs": [text.decode().strip() for text in outputs]})
        if runs[0]["outputs"] != runs[1]["outputs"]:
            raise RuntimeError(f"the second run's batches differ from the first run's: {runs}")
        self._progress(f"{_RANKS} ranks: done")
        return runs

    def _cache(self, slow: SlowFiles, local: pathlib.Path) -> datacache.DataCache:
        source, world = datacache.ImageFolder(slow.mount), datacache.World()
        return datacache.DataCache(source, self._training.decode, local, world=world, keep_decoded=True)

    @contextlib.contextmanager
    def _mounted(self, rate: str) -> Iterator[SlowFiles]:
        slow_files.drop_caches()
        with SlowFiles(self._source, rate, LATENCY, IN_FLIGHT) as slow:
            yield slow

    @contextlib.contextmanager
    def _local(self) -> Iterator[pathlib.Path]:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            yield pathlib.Path(name)


@contextlib.contextmanager
def _data_set(folder: pathlib.Path, plan: Plan, progress: Progress) -> Iterator[tuple[pathlib.Path, int]]:
    """The files, in memory if there is room, so that the server's own disk does not matter."""
    wanted = plan.files * 250_000  # with as much again for the memory level
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > wanted
    with tempfile.TemporaryDirectory(dir=_MEMORY if roomy else folder, prefix="slow_files_") as name:
        path = pathlib.Path(name)
        size = photographs.write_like_imagenet(path, plan.files)
        progress(f"{plan.files} JPEG files of {size / plan.files / 1e3:.0f} KB in the mean: made")
        yield path, size


def _asked(before: slow_files.Counted, after: slow_files.Counted) -> dict[str, float]:
    return {"bytes": after.bytes - before.bytes, "operations": after.all_operations - before.all_operations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--files", type=int, default=WHOLE.files, help=f"number of files of the data set (default: {WHOLE.files})"
    )
    parser.add_argument(
        "--rates", default=",".join(WHOLE.rates), help=f"of the link (default: {','.join(WHOLE.rates)})"
    )
    parser.add_argument(
        "--epochs", type=int, default=WHOLE.epochs, help=f"epochs of training (default: {WHOLE.epochs})"
    )
    parser.add_argument(
        "--rounds", type=int, default=WHOLE.rounds, help=f"rounds of all measurements (default: {WHOLE.rounds})"
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, help="for the caches, on a local disk (default: a temporary one)"
    )
    options = parser.parse_args()
    reason = slow_files.unavailable()
    if reason is not None:
        sys.exit(reason)
    if options.files < 64 or options.epochs < 3 or options.rounds < 1:
        parser.error("expected at least 64 files, 3 epochs and 1 round")
    plan = Plan(options.files, tuple(options.rates.split(",")), options.epochs, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        section = measure(pathlib.Path(name), lambda text: print(text, flush=True), plan)
    print("\n".join(["", *report.table(section.verdicts), "", *section.lines]))


if __name__ == "__main__":
    main()

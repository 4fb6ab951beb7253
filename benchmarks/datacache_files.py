"""From a slow network file system to training, datacache against tf.data: `python -m benchmarks.datacache_files`.

JPEG files of 500 x 375 and 110 KB behind benchmarks/slow_files, decoded and resized to 96 x 96 by the same TensorFlow
operations in all arms. In each round, for each rate of the link, one after another, each on a mount of its own:

- the link is calibrated: as many plain readers as there may be operations in flight;
- datacache fills: a first run whose local directory is empty, and a second one that finds it, both up to a full memory
  level, nobody training. Caches of the kernel are dropped before each (as root only; the report says so otherwise);
- a small ResNet trains some epochs fed by tf.data's parallel pipeline, once with AUTOTUNE alone and once with threads
  of its own that read 16 files at a time, and by datacache; caches are dropped before each of them. Between datacache's
  epochs it trains an epoch on one batch that is in memory: synthetic data.

I/O time is the time that the training step waits for its batch. The rival is the better of tf.data's arms. All files
lie in memory on the server's side, and file server, decoding and training share this machine's cores: where the link is
fast they, not the link, decide, for all arms. Decoded samples are kept on the local disk (keep_decoded), so that a
second run need not decode.

Then two ranks, processes of this node, read through one cache, twice, and the file server's counters are looked at.
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

import numpy as np

import datacache
from benchmarks import report, slow_files
from benchmarks.report import Section, Verdict
from benchmarks.slow_files import SlowFiles
from examples import photographs

Progress = Callable[[str], Any]
OURS = "datacache"
RIVALS: dict[str, int | None] = {"tf.data, AUTOTUNE": None, "tf.data, 16 readers": 16}  # files read at a time
LATENCY, IN_FLIGHT = "1ms", 16
_RANKS = 2
_RANKS_RATE = "200MB/s"
_MEMORY = pathlib.Path("/dev/shm")
_ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        files: of the data set.
        rates: of the link; the first is that of the targets.
        epochs: of training.
        rounds: of everything; figures are medians over them.
    """

    files: int = 1500
    rates: tuple[str, ...] = ("50MB/s", "100MB/s", "200MB/s")
    epochs: int = 5
    rounds: int = 2


WHOLE = Plan()


def measure(folder: pathlib.Path, progress: Progress, plan: Plan = WHOLE) -> Section:
    """Answers what the cache saves on a slow network file system (CommLib 4.1, Fig. 9).

    Args:
        folder: for the caches, on a local disk.
        progress: is told what is being done.
        plan: how much is measured.

    Raises:
        RuntimeError: where there can be no slow file system here.
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
        from benchmarks import datacache_training as training  # TensorFlow is imported here

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
        """One run, up to a full memory level: seconds until it is open (listed), and of the epoch."""
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
        epochs, synthetic = [], []
        with self._mounted(rate) as slow, self._local() as local:
            began = time.perf_counter()
            with self._cache(slow, local) as cache:
                opened = time.perf_counter() - began
                for number in range(self._plan.epochs):
                    batches = cache.dataset(self._training.BATCH, number, drop_remainder=True)
                    epochs.append(self._trainer.epoch(batches)._asdict())
                    synthetic.append(self._trainer.epoch(self._training.synthetic(len(batches)))._asdict())
            counted = _asked(slow_files.Counted({}, 0, 0), slow.counted())
        return {"open": opened, "epochs": epochs, "synthetic": synthetic, **counted}

    def _ranks(self) -> list[dict[str, float]]:
        """What several ranks of one node ask the server for, in a first run and in a second one."""
        with self._mounted(_RANKS_RATE) as slow, self._local() as local:
            runs = []
            for _ in range(2):
                before = slow.counted()
                command = [sys.executable, "-m", "benchmarks.datacache_rank", str(slow.mount), str(local)]
                ranks = [
                    subprocess.Popen([*command, "--rank", str(rank), "--size", str(_RANKS)], cwd=_ROOT, stdout=-1)
                    for rank in range(_RANKS)
                ]
                outputs = [rank.communicate()[0] for rank in ranks]
                if any(rank.returncode for rank in ranks):
                    raise RuntimeError(f"the ranks ended with {[rank.returncode for rank in ranks]}")
                runs.append({**_asked(before, slow.counted()), "outputs": [text.decode().strip() for text in outputs]})
        if runs[0]["outputs"] != runs[1]["outputs"]:
            raise RuntimeError(f"the second run's batches are not those of the first: {runs}")
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
    """The files, in memory where there is room: the server's own disk must not matter."""
    wanted = plan.files * 250_000  # with as much again for the memory level
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > wanted
    with tempfile.TemporaryDirectory(dir=_MEMORY if roomy else folder, prefix="slow_files_") as name:
        path = pathlib.Path(name)
        size = photographs.write_like_imagenet(path, plan.files)
        progress(f"{plan.files} JPEG files of {size / plan.files / 1e3:.0f} KB in the mean: made")
        yield path, size


def _asked(before: slow_files.Counted, after: slow_files.Counted) -> dict[str, float]:
    return {"bytes": after.bytes - before.bytes, "operations": after.all_operations - before.all_operations}


# ---- what comes of it ----


def rows_of(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """One row an arm and rate: medians over the rounds, and over the epochs after the first."""
    rows = []
    for rate, link in figures["links"].items():
        for arm in (*RIVALS, OURS):
            runs = link[arm]
            samples = figures["batch"] * sum(epoch["steps"] for epoch in runs[0]["epochs"])
            rows.append(
                {
                    "rate": rate,
                    "arm": arm,
                    "waited_1": _median(run["epochs"][0]["waited"] for run in runs),
                    "waited_2": _median(_later(run, "waited") for run in runs),
                    "epoch_1": _median(run["epochs"][0]["seconds"] for run in runs),
                    "epoch_2": _median(_later(run, "seconds") for run in runs),
                    "samples/s": [
                        samples / (run["open"] + sum(epoch["seconds"] for epoch in run["epochs"])) for run in runs
                    ],
                    "read": max(run["bytes"] for run in runs) / figures["bytes"],
                    "operations": max(run["operations"] for run in runs) / figures["files"],
                }
            )
    return rows


def summary(figures: dict[str, Any], rate: str) -> dict[str, float]:
    """The ratios that the targets are about, at one rate."""
    rows = {row["arm"]: row for row in rows_of(figures) if row["rate"] == rate}
    rivals, ours, link = [rows[arm] for arm in RIVALS], rows[OURS], figures["links"][rate]
    reached = _median(found["rate"] for found in link["calibration"])
    fills = link["fill"]
    return {
        "waiting": min(rival["waited_2"] for rival in rivals) / ours["waited_2"],
        "throughput": _median(ours["samples/s"]) / max(_median(rival["samples/s"]) for rival in rivals),
        "step": _median(
            epoch["seconds"] / without["seconds"]
            for run in link[OURS]
            for epoch, without in zip(run["epochs"][1:], run["synthetic"][1:], strict=True)
        ),
        "cold": _median(figures["bytes"] / fill["cold"]["epoch"] for fill in fills) / reached,
        "warm": _median(
            (fill["cold"]["open"] + fill["cold"]["epoch"]) / (fill["warm"]["open"] + fill["warm"]["epoch"])
            for fill in fills
        ),
    }


def verdicts(figures: dict[str, Any]) -> list[Verdict]:
    """The targets; ratios are those of the first rate."""
    rate = next(iter(figures["links"]))
    found = summary(figures, rate)
    ours = [run for link in figures["links"].values() for run in link[OURS]]
    fills = [fill for link in figures["links"].values() for fill in link["fill"]]
    first, second = figures["ranks"]
    read = max(run["bytes"] for run in [*ours, *(fill["cold"] for fill in fills), first]) / figures["bytes"]
    again = [*(fill["warm"] for fill in fills), second]
    bytes_again, operations_again = (int(max(run[name] for run in again)) for name in ("bytes", "operations"))
    return [
        Verdict("bytes read, times the data set, all ranks and epochs", "<= 1.01", f"{read:.4f}", read <= 1.01),
        Verdict(
            "second run: bytes, operations on the source",
            "0, 0",
            f"{bytes_again}, {operations_again}",
            bytes_again == operations_again == 0,
        ),
        _ratio(f"I/O time after epoch 1, tf.data's over ours, {rate}", found["waiting"], least=10),
        _ratio(f"throughput of training, ours over tf.data's, {rate}, all epochs", found["throughput"], least=2),
        _ratio(f"step after epoch 1, over that with synthetic data, {rate}", found["step"], most=1.05),
        _ratio(f"cold epoch's rate, over the calibrated link's, {rate}", found["cold"], least=0.9),
        _ratio(f"time to a full memory level, first run over second, {rate}", found["warm"], least=5),
    ]


def _ratio(what: str, found: float, least: float | None = None, most: float | None = None) -> Verdict:
    if least is not None:
        return Verdict(what, f">= {least:g}", f"{found:.2f}", found >= least)
    assert most is not None
    return Verdict(what, f"<= {most:g}", f"{found:.3f}", found <= most)


def lines(figures: dict[str, Any]) -> list[str]:
    """The tables as Markdown."""
    size = figures["bytes"]
    text = [
        f"{figures['files']:,} JPEG files of {size / figures['files'] / 1e3:.0f} KB in the mean, {size / 1e6:.0f} MB. "
        f"Each operation has {figures['latency']}, {figures['in_flight']} are in flight at the most. A ResNet of "
        f"{figures['parameters']:,} parameters trains {figures['epochs']} epochs in batches of {figures['batch']}. "
        f"Medians of {figures['rounds']} rounds."
        + ("" if figures["dropped"] else " **Not run as root: caches of the kernel were not dropped.**"),
        "",
        "| link | calibrated MB/s | latency ms | listing s | cold epoch s | MB/s | share of the link | second run s | "
        "times faster |",
        "|---" * 9 + "|",
    ]
    for rate, link in figures["links"].items():
        found, fills = summary(figures, rate), link["fill"]
        reached = _median(each["rate"] for each in link["calibration"])
        latency = _median(each["latency"] for each in link["calibration"])
        cold = _median(fill["cold"]["epoch"] for fill in fills)
        again = _median(fill["warm"]["open"] + fill["warm"]["epoch"] for fill in fills)
        text.append(
            f"| {rate} | {reached / 1e6:.1f} | {1e3 * latency:.2f} | {_median(f['cold']['open'] for f in fills):.2f} | "
            f"{cold:.2f} | {size / cold / 1e6:.1f} | {found['cold']:.0%} | {again:.2f} | {found['warm']:.1f} |"
        )
    text += [
        "",
        "| link | arm | I/O s, epoch 1 | later epochs | epoch s, 1 | later | samples/s, all epochs (least to most) | "
        "read, times the data | operations a file |",
        "|---" * 9 + "|",
    ]
    for row in rows_of(figures):
        speeds = row["samples/s"]
        text.append(
            f"| {row['rate']} | {row['arm']} | {row['waited_1']:.2f} | {row['waited_2']:.3f} | {row['epoch_1']:.2f} | "
            f"{row['epoch_2']:.2f} | {_median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f}) | "
            f"{row['read']:.3f} | {row['operations']:.1f} |"
        )
    text += ["", "| link | I/O time, tf.data's over ours | throughput | step over synthetic |", "|---|---|---|---|"]
    for rate in figures["links"]:
        found = summary(figures, rate)
        text.append(f"| {rate} | {found['waiting']:.1f} | {found['throughput']:.2f} | {found['step']:.3f} |")
    return text


def draw(figures: dict[str, Any], axis: Any) -> None:
    """Seconds of each epoch, by arm, on the first link."""
    rate, link = next(iter(figures["links"].items()))
    numbers = range(1, figures["epochs"] + 1)
    for arm in (*RIVALS, OURS):
        seconds = np.array([[epoch["seconds"] for epoch in run["epochs"]] for run in link[arm]])
        axis.plot(numbers, np.median(seconds, axis=0), "o-", label=arm)
    synthetic = _median(epoch["seconds"] for run in link[OURS] for epoch in run["synthetic"])
    axis.axhline(synthetic, linestyle="--", color="black", label="synthetic data")
    axis.set(title=f"training over {rate}", xlabel="epoch", ylabel="s", xticks=list(numbers), ylim=(0, None))
    axis.legend(fontsize="small")


def _later(run: dict[str, Any], name: str) -> float:
    return _median(epoch[name] for epoch in run["epochs"][1:])


def _median(values: Any) -> float:
    return float(np.median(list(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=WHOLE.files, help=f"of the data set ({WHOLE.files})")
    parser.add_argument("--rates", default=",".join(WHOLE.rates), help=f"of the link ({','.join(WHOLE.rates)})")
    parser.add_argument("--epochs", type=int, default=WHOLE.epochs, help=f"of training ({WHOLE.epochs})")
    parser.add_argument("--rounds", type=int, default=WHOLE.rounds, help=f"of everything ({WHOLE.rounds})")
    parser.add_argument("--folder", type=pathlib.Path, help="for the caches, on a local disk (a temporary one)")
    options = parser.parse_args()
    reason = slow_files.unavailable()
    if reason is not None:
        sys.exit(reason)
    if options.files < 64 or options.epochs < 2 or options.rounds < 1:
        parser.error("expected at least 64 files, 2 epochs and 1 round")
    plan = Plan(options.files, tuple(options.rates.split(",")), options.epochs, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        section = measure(pathlib.Path(name), lambda text: print(text, flush=True), plan)
    print("\n".join(["", *report.table(section.verdicts), "", *section.lines]))


if __name__ == "__main__":
    main()

"""What files.py's figures show: ratios, verdicts, tables and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.reporting.report import Verdict

OURS = "datacache"
RIVALS: dict[str, int | None] = {"tf.data, AUTOTUNE": None, "tf.data, 16 readers": 16}  # files read at a time


def rows_of(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per arm and rate: medians over the rounds, and over the epochs after the first."""
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
    """The ratios of the targets at one rate, with the number of epochs behind the step's ratio and their spread."""
    rows = {row["arm"]: row for row in rows_of(figures) if row["rate"] == rate}
    rivals, ours, link = [rows[arm] for arm in RIVALS], rows[OURS], figures["links"][rate]
    reached = _median(found["rate"] for found in link["calibration"])
    fills = link["fill"]
    return {
        "waiting": min(rival["waited_2"] for rival in rivals) / ours["waited_2"],
        "throughput": _median(ours["samples/s"]) / max(_median(rival["samples/s"]) for rival in rivals),
        "step": _median(ours / without for run in link[OURS] for ours, without in run["pairs"]),
        "spread": _median(_spread([without for _, without in run["pairs"]]) for run in link[OURS]),
        "pairs": sum(len(run["pairs"]) for run in link[OURS]),
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
    text += [
        "",
        "| link | I/O time, tf.data's over ours | throughput | step over synthetic | pairs of epochs | "
        "a synthetic epoch against the one before |",
        "|---" * 6 + "|",
    ]
    for rate in figures["links"]:
        found = summary(figures, rate)
        text.append(
            f"| {rate} | {found['waiting']:.1f} | {found['throughput']:.2f} | {found['step']:.3f} | "
            f"{found['pairs']} | {found['spread']:.1%} |"
        )
    return text


def draw(figures: dict[str, Any], axis: Any) -> None:
    """Seconds of each epoch, by arm, on the first link."""
    rate, link = next(iter(figures["links"].items()))
    numbers = range(1, figures["epochs"] + 1)
    for arm in (*RIVALS, OURS):
        seconds = np.array([[epoch["seconds"] for epoch in run["epochs"]] for run in link[arm]])
        axis.plot(numbers, np.median(seconds, axis=0), "o-", label=arm)
    synthetic = _median(without for run in link[OURS] for _, without in run["pairs"])
    axis.axhline(synthetic, linestyle="--", color="black", label="synthetic data")
    axis.set(title=f"training over {rate}", xlabel="epoch", ylabel="s", xticks=list(numbers), ylim=(0, None))
    axis.legend(fontsize="small")


def _later(run: dict[str, Any], name: str) -> float:
    return _median(epoch[name] for epoch in run["epochs"][1:])


def _spread(seconds: list[float]) -> float:
    """The median difference between consecutive epochs, which do the same."""
    return float(np.median(np.abs(np.diff(np.log(seconds)))))


def _median(values: Any) -> float:
    return float(np.median(list(values)))

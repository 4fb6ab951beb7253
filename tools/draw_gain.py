"""Draws docs/images/gain.png, for docs/benchmarks.md, from the newest reports of bench-exchange and bench-train.

python -m tools.draw_gain
"""

from __future__ import annotations

import json
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.reporting import writing

PICTURE = writing.ROOT / "docs" / "images" / "gain.png"
PLACE = ("2x2", "1gbit", "25M")
BARS = {  # label -> arm and density
    "Horovod": ("horovod.allreduce, A/A", None),
    "torus2d": ("torus2d", None),
    "hitopk, 10%": ("hitopk", 0.1),
    "topk, 1%": ("topk", 0.01),
    "hitopk, 1%": ("hitopk", 0.01),
    "topk, 0.1%": ("topk", 0.001),
}
ARMS = ("torus2d", "topk", "hitopk")
MODELS = {"resnet50": "ResNet-50", "vgg19": "VGG-19", "transformer": "Transformer"}


def load(name: str) -> dict[str, Any]:
    """Loads a summary from benchmarks/results/."""
    return json.loads((writing.RESULTS / f"{name}.json").read_text())


def exchange_times(data: dict[str, Any]) -> dict[str, float]:
    """Milliseconds per exchange, by label of BARS."""
    rows = [dict(zip(data["rows"]["columns"], row, strict=True)) for row in data["rows"]["rows"]]
    here = [row for row in rows if (row["shape"], row["rate"], row["size"]) == PLACE]
    return {
        label: next(row["ms"] for row in here if row["arm"] == arm and density in (None, row["density"]))
        for label, (arm, density) in BARS.items()
    }


def training_gains(data: dict[str, Any]) -> dict[str, list[float]]:
    """Throughput by arm and model relative to Horovod's in the same run, from the newest run that has all arms."""
    runs = [each["rows"] for each in (data, *data.get("earlier", []))]
    rows = next(rows for rows in runs if set(ARMS) <= {row["arm"] for row in rows})
    return {
        arm: [row["times Horovod"] for model in MODELS for row in rows if (row["model"], row["arm"]) == (model, arm)]
        for arm in ARMS
    }


def draw_exchange(axis: Axes, times: dict[str, float]) -> None:
    """Draws bars of milliseconds, the slowest on top."""
    labels = list(times)[::-1]
    bars = axis.barh(labels, [times[label] for label in labels], color=["C1"] * (len(labels) - 1) + ["C7"])
    axis.bar_label(bars, fmt="%.0f ms", padding=3)
    axis.set(title="Exchange of 100 MB of gradients", xlabel="ms", xlim=(0, 1.18 * max(times.values())))


def draw_training(axis: Axes, gains: dict[str, list[float]]) -> None:
    """Draws bars of throughput, grouped by model."""
    for number, (arm, values) in enumerate(gains.items()):
        places = [model + 0.27 * (number - 1) for model in range(len(MODELS))]
        axis.bar_label(axis.bar(places, values, 0.25, label=arm if arm == "torus2d" else f"{arm}, 1%"), fmt="%.2f")
    axis.axhline(1.0, color="C7", linestyle="--", label="Horovod")
    axis.set_xticks(range(len(MODELS)), MODELS.values())
    axis.set(title="Training throughput, times Horovod", ylim=(0, 2.1))
    axis.legend(fontsize="small", loc="upper center", ncols=4)


def main() -> None:
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_exchange(left, exchange_times(load("exchange")))
    draw_training(right, training_gains(load("train")))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("2 nodes of 2 ranks at 1 Gbit/s, which share two cores", fontsize="small")
    PICTURE.parent.mkdir(exist_ok=True)
    writing.save_picture(figure, PICTURE)


if __name__ == "__main__":
    main()

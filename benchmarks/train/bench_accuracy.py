"""How much sooner a large network reaches dense training's accuracy on a slow network: `make bench-accuracy`.

ResNet-50 at half its width (accuracy_rank.py) is trained from scratch on crops of photographs by 2x2 ranks, with
Horovod's own tape in 32 and in 16 bits (`Compression.fp16`), with `hvd.recipes.torus2d` in 16 bits, and with
`hvd.recipes.recommended`, all at the same learning rate. The shaped links need root. `--model small_resnet` is for a
quick look: its gradients are so small that an exchange costs hardly anything.

- Steps: counted in whole trainings. Seed 0 runs behind links of the first rate; the other seeds run on this host's
  loopback, which takes less time. A training has reached an accuracy at the first evaluation on the held-out crops that
  shows it; 95% and 98% are shares of the final accuracy of Horovod's training in 32 bits with the same seed.
- Times: the median step of each arm on a shaped link, measured on the slowest rank, with blocks of all arms in turn. A
  step includes batches, forward and backward pass, exchange, selection and optimizer.
- Seconds to an accuracy: steps times the median step, plus the cost of each evaluation. `recommended` is held against
  Horovod in 32 bits, and, for each seed, against whichever of the dense trainings is there first.
- The whole trainings behind links show how accurate that product is.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machines import cluster, local_ranks
from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Verdict
from benchmarks.train.accuracy_rank import ARMS, DENSE, HOROVOD, MODELS, RECOMMENDED

NODES, LOCAL = 2, 2
LIMIT = 3600.0  # seconds of one launch
SHARES = (0.95, 0.98)  # of the accuracy at which Horovod's training ends
WANTED = {"1gbit": 1.2, "100mbit": 4.0}  # times as soon, to the first of them
NEAR = 0.05  # of the seconds of a whole training, by which steps times the median step may be off


def launch(words: list[str], rate: str | None = None) -> Any:
    """What the ranks have written, on this host's loopback or behind links."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "measured.json")
        command = ["benchmarks.train.accuracy_rank", str(path), "--local", str(LOCAL), *words]
        if rate is None:
            local_ranks.run(NODES * LOCAL, command, LIMIT)
        else:
            with cluster.Cluster(NODES, LOCAL, rate) as nodes:
                statuses = nodes.run([sys.executable, "-m", *command], local_ranks.ONE_THREAD, LIMIT)
            if any(statuses):
                raise RuntimeError(f"The ranks ended with {statuses}; see their output above.")
        return json.loads(path.read_text())


def reached(curve: list[list[float]], accuracy: float) -> list[float] | None:
    """The look, as (step, seconds, accuracy), that first shows an accuracy; None if none does."""
    return next((look for look in curve if look[2] >= accuracy), None)


def steps_to(runs: list[dict[str, Any]], share: float) -> dict[str, list[float | None]]:
    """By arm and seed, the steps until a share of the accuracy at which Horovod's training of that seed ends."""
    ends = {run["seed"]: run["curve"][-1][2] for run in runs if run["arm"] == HOROVOD}
    found: dict[str, list[float | None]] = {arm: [] for arm in ARMS}
    for run in sorted(runs, key=lambda run: run["seed"]):
        look = reached(run["curve"], share * ends[run["seed"]])
        found[run["arm"]].append(None if look is None else look[0])
    return found


def seconds_to(steps: float, arm: str, rate: str, measured: dict[str, Any], every: int) -> float:
    """Steps and looks, each at its median."""
    look = np.median([run["seconds"]["looks"] for run in measured["runs"] if run["arm"] == arm])
    return float(steps * np.median(measured["times"][rate][arm]) + steps // every * look)


def sooner(measured: dict[str, Any], share: float, rate: str, every: int, than: Sequence[str]) -> list[float]:
    """By seed, how many times as soon as the first of other arms; 0 where the accuracy was not reached."""
    steps = steps_to(measured["runs"], share)

    def seconds(arm: str) -> list[float]:
        return [math.inf if each is None else seconds_to(each, arm, rate, measured, every) for each in steps[arm]]

    first = np.min([seconds(arm) for arm in than], axis=0)
    return [float(their / own) for their, own in zip(first, seconds(RECOMMENDED), strict=True)]


def whole_training(measured: dict[str, Any], arm: str, rate: str, every: int) -> tuple[float, float]:
    """Seconds of the training behind links, measured and by the product."""
    run = next(run for run in measured["whole"] if run["arm"] == arm)
    steps, seconds, _ = run["curve"][-1]
    return seconds, seconds_to(steps, arm, rate, measured, every)


def verdicts_of(measured: dict[str, Any], every: int) -> list[Verdict]:
    """The targets, met or missed."""
    found = []
    for rate in measured["times"]:
        for than, wanted in (((HOROVOD,), WANTED.get(rate, 1.0)), (DENSE, 1.0)):
            ratios = sooner(measured, SHARES[0], rate, every, than)
            told = f"{np.mean(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"
            others = HOROVOD if than == (HOROVOD,) else "the first of all dense ones"
            what = f"{SHARES[0]:.0%} of dense's accuracy at {rate}, times as soon as {others}, mean (seeds)"
            found.append(Verdict(what, f">= {wanted}", told, bool(np.mean(ratios) >= wanted)))
    rate = next(iter(measured["times"]))
    for arm in ARMS:
        seconds, product = whole_training(measured, arm, rate, every)
        told = f"{seconds:.0f} s, {product:.0f} s by the product"
        near = abs(seconds / product - 1.0) <= NEAR
        found.append(Verdict(f"{arm}: a whole training at {rate}", f"within {NEAR:.0%} of the product", told, near))
    return found


def render(measured: dict[str, Any], options: argparse.Namespace, seconds: float) -> str:
    """The report as Markdown."""
    about, runs, every = timing.machine(), measured["runs"], options.every
    rows = []
    for share in SHARES:
        for arm, steps in steps_to(runs, share).items():
            told = ", ".join("never" if each is None else f"{each:.0f}" for each in steps)
            costs = []
            for rate in measured["times"]:
                taken = [seconds_to(each, arm, rate, measured, every) for each in steps if each is not None]
                costs.append(f"{np.mean(taken):.0f}" if len(taken) == len(steps) else "")
            rows.append(f"| {share:.0%} | {arm} | {told} | {' | '.join(costs)} |")
    steps_rows = []
    for arm in ARMS:
        ends = [run["curve"][-1][2] for run in runs if run["arm"] == arm]
        milliseconds = [
            "{:.0f} ({:.0f} to {:.0f})".format(*(1e3 * np.percentile(times[arm], [50, 25, 75])))
            for times in measured["times"].values()
        ]
        told = f"{100 * np.mean(ends):.1f} ({', '.join(f'{100 * end:.1f}' for end in ends)})"
        steps_rows.append(f"| {arm} | {told} | {' | '.join(milliseconds)} |")
    rates = list(measured["times"])
    return "\n".join(
        [
            f"# Time to accuracy, {about['date']}",
            "",
            f"`make bench-accuracy` on {about['processor']}; commit {about['commit']}; {options.model}, "
            f"{runs[0]['parameters']:,} parameters, {options.steps} steps, an evaluation every {every}, "
            f"{options.seeds} seeds; {seconds / 60:.0f} minutes. benchmarks/train/bench_accuracy.py describes what is "
            "measured, and how.",
            "",
            "## Targets",
            "",
            *report.table(verdicts_of(measured, every)),
            "",
            "## Accuracy at the end, and a step",
            "",
            f"| | accuracy, mean (seeds) | {' | '.join(f'ms a step at {rate} (quartiles)' for rate in rates)} |",
            f"|---|---|{'---|' * len(rates)}",
            *steps_rows,
            "",
            "## To a share of the accuracy at which Horovod's training ends",
            "",
            f"| share | | steps, by seed | {' | '.join(f'seconds at {rate}, mean' for rate in rates)} |",
            f"|---|---|---|{'---|' * len(rates)}",
            *rows,
            "",
        ]
    )


def draw(measured: dict[str, Any], path: str) -> None:
    """Accuracy against seconds, of the whole trainings behind links."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for run in measured["whole"]:
        _, seconds, accuracies = zip(*run["curve"], strict=True)
        axes.plot(seconds, accuracies, "o-", markersize=3, label=run["arm"])
    rate = next(iter(measured["times"])).replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
    axes.set(xlabel=f"seconds, links of {rate}", ylabel="accuracy on held-out crops")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    writing.save_picture(figure, path)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rates",
        default="1gbit,100mbit",
        help="of the links; the full trainings use the first one (default: %(default)s)",
    )
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1024, help="steps of a full training (default: %(default)s)")
    parser.add_argument(
        "--every", type=int, default=64, help="steps between evaluations on held-out crops (default: %(default)s)"
    )
    parser.add_argument(
        "--blocks", type=int, default=8, help="number of blocks of steps to time for each arm (default: %(default)s)"
    )
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    missing = cluster.unavailable()
    if missing is not None:
        sys.exit(missing)
    began = time.perf_counter()
    words = ["--model", options.model, "--steps", str(options.steps), "--every", str(options.every)]
    rates = options.rates.split(",")
    times = {rate: launch([*words, "--blocks", str(options.blocks)], rate) for rate in rates}
    whole = launch(words, rates[0])
    others = [run for seed in range(1, options.seeds) for run in launch([*words, "--seed", str(seed)])]
    measured = {"times": times, "whole": whole, "runs": [*whole, *others]}
    text = render(measured, options, time.perf_counter() - began)
    print(text)
    if options.dry:
        return
    summary = {"machine": timing.machine(), "options": vars(options), **writing.medians(measured)}
    stem = writing.write_results("accuracy", summary, text, measured)
    draw(measured, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()

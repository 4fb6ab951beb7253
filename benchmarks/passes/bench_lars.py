"""LARS and LAMB as native passes against the same mathematics as a tf.function: `make bench-lars`.

With one process and one thread, all arms run in turn on the variables of ResNet-50 and of a Transformer base. While
they are timed, the norms are compared with NumPy's and whole steps with each other. The floor is the time of plain
passes over the same number of vectors that compute almost nothing. For LARS the norms read 2 vectors, and the update
reads 3 and writes 2; for LAMB the norms read 4, and the update reads 4 and writes 3. "A/A" is a second arm that does
the same, and shows the noise.

Two ranks on this host (benchmarks/passes/lars_rank.py) measure the processor time of the trust ratios, computed by each
rank alone and shared. They also time whole steps with parallel=True, which measures and chooses, and without. "small"
is a network for which sharing can hardly pay.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks.machines import local_ranks
from benchmarks.passes.lars_arms import (
    ALONE,
    BETA_1,
    BETA_2,
    CHOSEN,
    DECAY,
    LAMB_DECAY,
    LAMB_EPSILON,
    LARS_EPSILON,
    RATIO_FORMS,
    SHARED,
    STEP,
    TRUST,
    UNSHARED,
    UNSHARED_AGAIN,
    Floors,
    Layer,
    Tensors,
    elements_of,
    gradients_of,
    layers_of,
    our_optimizer,
    our_ratios,
    our_step,
    probes,
    rival_ratios,
    rival_step,
    step_forms,
)
from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Verdict
from benchmarks.reporting.timing import Arm, Timing

NAMES, SLOTS = ("LARS", "LAMB"), {"LARS": 1, "LAMB": 2}
NORMS, STEPS, AGAIN = "norms, ours", "step, ours", "step, ours, A/A"
FLOOR_NORMS, FLOOR_UPDATE = "floor, norms", "floor, update"
RANKS, RANK_LIMIT = 2, 240.0
MODELS = ("resnet50", "transformer")


# ---- one process ----


class Cell:
    """One model and optimizer: the variables of all arms."""

    def __init__(self, name: str, layers: list[Layer], floors: Floors):
        self.name, self.floors = name, floors
        self.gradients = gradients_of(layers)
        self.still = Tensors(layers, SLOTS[name] if name == "LAMB" else 0)
        self.expected = expected_ratios(name, self.still, self.gradients)
        self.ours = Tensors(layers)
        self.rivals = {form: Tensors(layers, SLOTS[name]).at_rest() for form in step_forms(name)}
        self.last: Any = None

    def arms(self) -> dict[str, Arm]:
        """The arms that are timed in this cell."""
        floors = self.floors.passes(self.name)
        arms = {FLOOR_NORMS: Arm(floors["norms"]), FLOOR_UPDATE: Arm(floors["update"])}
        ours = tf.function(lambda: our_ratios(self.name, self.still, self.gradients), autograph=False)
        arms[NORMS] = Arm(self._kept(ours), self._check_ratios)
        for form, how in RATIO_FORMS.items():
            run = tf.function(
                lambda how=how: rival_ratios(self.name, how.norm, self.still, self.gradients),
                autograph=False,
                jit_compile=how.compiled,
            )
            arms[f"norms, {form}"] = Arm(self._kept(run), self._check_ratios)
        # Twice per round, as each rival takes two steps: the timed one, and one in its check.
        step = our_step(our_optimizer(self.name), self.ours, self.gradients)
        arms[STEPS] = arms[AGAIN] = Arm(step)
        for form, how in step_forms(self.name).items():
            run = rival_step(self.name, how, self.rivals[form], self.gradients)
            arms[f"step, {form}"] = Arm(run, lambda form=form, run=run: self._check_step(form, run))
        return arms

    def _kept(self, run: Any) -> Any:
        def kept() -> None:
            self.last = run()

        return kept

    def _check_ratios(self) -> None:
        np.testing.assert_allclose(np.array(self.last, np.float64), self.expected, rtol=1e-4)

    def _check_step(self, form: str, run: Any) -> None:
        """Compares the weights after a second step, as our step is timed twice per round."""
        run()
        np.testing.assert_allclose(probes(self.rivals[form].weights), probes(self.ours.weights), rtol=1e-3, atol=1e-4)


def expected_ratios(name: str, tensors: Tensors, gradients: list[tf.Tensor]) -> np.ndarray:
    """The trust ratios computed by NumPy, in float64."""
    ratios = []
    for number, adapted in enumerate(tensors.adapted):
        weight, gradient = tensors.weights[number].numpy().astype(np.float64), gradients[number].numpy()
        of_weight = np.linalg.norm(weight)
        if name == "LARS":
            ratio = TRUST * of_weight / (np.linalg.norm(gradient.astype(np.float64)) + DECAY * of_weight + LARS_EPSILON)
        else:
            first, second = (kind[number].numpy().astype(np.float64) for kind in tensors.slots)
            mean = (BETA_1 * first + (1 - BETA_1) * gradient) / (1 - BETA_1**STEP)
            square = (BETA_2 * second + (1 - BETA_2) * np.square(gradient, dtype=np.float64)) / (1 - BETA_2**STEP)
            ratio = of_weight / np.linalg.norm(mean / (np.sqrt(square) + LAMB_EPSILON) + LAMB_DECAY * weight)
        ratios.append(ratio if adapted else 1.0)
    return np.array(ratios)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Times every cell in this process, with progress messages."""
    cells = []
    for model in MODELS:
        layers = layers_of(model)
        floors = Floors(elements_of(layers))
        for name in NAMES:
            print(f"{name}, {model} ...", flush=True)
            times = timing.interleave(Cell(name, layers, floors).arms(), rounds, before=lambda: None)
            cells.append({"model": model, "optimizer": name, "elements": elements_of(layers), "times": times})
    return cells


def measure_ranks(rounds: int, models: tuple[str, ...]) -> list[dict[str, Any]]:
    """Runs the ranks of this host."""
    print(f"{RANKS} ranks ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "cells.json"
        rank = ["benchmarks.passes.lars_rank", str(path), "--rounds", str(rounds), "--models", ",".join(models)]
        local_ranks.run(RANKS, rank, RANK_LIMIT)
        return json.loads(path.read_text())


# ---- the report ----


def best_rival(times: dict[str, Timing], part: str) -> str:
    """The fastest form of the mathematics as a tf.function."""
    return min((arm for arm in times if arm.startswith(f"{part}, tf.function")), key=lambda arm: times[arm].median)


def verdicts_of(cells: list[dict], ranks: list[dict]) -> list[Verdict]:
    """The targets, met or missed."""
    return [verdict for cell in cells for verdict in _one_process(cell)] + [
        verdict for cell in ranks for verdict in _two_ranks(cell)
    ]


def _one_process(cell: dict) -> list[Verdict]:
    times: dict[str, Timing] = cell["times"]
    label = f"{cell['optimizer']}, {cell['model']}"
    floors = {"norms": times[FLOOR_NORMS].median}
    floors["step"] = floors["norms"] + times[FLOOR_UPDATE].median
    found = []
    for part, least in (("norms", 3.0), ("step", 2.0)):
        ours, rival = times[f"{part}, ours"].median, times[best_rival(times, part)].median
        measured = f"{rival / ours:.2f} ({rival:.1f} / {ours:.1f} ms)"
        form = best_rival(times, part).partition(", ")[2]
        found.append(Verdict(f"{label}: {part}, {form} over ours", f">= {least:.0f}", measured, rival / ours >= least))
    for part, floor in floors.items():
        ratio = times[f"{part}, ours"].median / floor
        found.append(
            Verdict(f"{label}: {part}, over the floor of {floor:.1f} ms", "<= 1.3", f"{ratio:.2f}", ratio <= 1.3)
        )
    return found


def _two_ranks(cell: dict) -> list[Verdict]:
    label = f"{cell['optimizer']}, {cell['model']}, {RANKS} ranks"
    found = []
    if cell["model"] in MODELS:
        alone, shared = (np.median(cell["ratios"][arm]["processor"]) for arm in (ALONE, SHARED))
        measured = f"{shared / alone:.2f} ({shared:.1f} / {alone:.1f} ms)"
        what = f"{label}: processor time of the ratios, shared over alone"
        found.append(Verdict(what, "<= 0.6", measured, bool(shared / alone <= 0.6)))
    rounds = {arm: np.array(cell["steps"][arm]["elapsed"]) for arm in cell["steps"]}
    ratio, noise = (float(np.median(rounds[arm] / rounds[UNSHARED])) for arm in (CHOSEN, UNSHARED_AGAIN))
    measured = f"{ratio:.3f} (A/A {noise:.3f}); {cell['way']}"
    found.append(Verdict(f"{label}: step with the choice, over one without", "<= 1.02", measured, ratio <= 1.02))
    return found


def render(cells: list[dict], ranks: list[dict], seconds: float) -> str:
    """The report as Markdown."""
    about = timing.machine()
    return "\n".join(
        [
            f"# LARS and LAMB, {about['date']}",
            "",
            f"`make bench-lars` on {about['processor']}; TensorFlow {tf.__version__}, NumPy {about['numpy']}; commit "
            f"{about['commit']}; {seconds / 60:.0f} minutes. benchmarks/passes/bench_lars.py describes what is "
            "measured, and how.",
            "",
            "## Targets",
            "",
            *report.table(verdicts_of(cells, ranks)),
            "",
            "## One process, one thread",
            "",
            "Medians (95th percentile) in milliseconds.",
            "",
            *_table(cells),
            "",
            f"## {RANKS} ranks on this host, one thread each",
            "",
            "Medians in milliseconds: elapsed, of the slowest rank; processor time, of the busiest one.",
            "",
            *_rank_table(ranks),
            "",
            *(f"- {cell['optimizer']}, {cell['model']}: {cell['choice']}" for cell in ranks),
            "",
        ]
    )


def _table(cells: list[dict]) -> list[str]:
    heads = [f"{cell['optimizer']}, {cell['model']}, {cell['elements'] / 1e6:.1f}M" for cell in cells]
    rows = ["| | " + " | ".join(heads) + " |", "|---" * (len(cells) + 1) + "|"]
    for arm in dict.fromkeys(arm for cell in cells for arm in cell["times"]):
        entries = [_entry(cell["times"].get(arm)) for cell in cells]
        rows.append(f"| {arm} | " + " | ".join(entries) + " |")
    return rows


def _entry(taken: Timing | None) -> str:
    return "" if taken is None else f"{taken.median:.1f} ({taken.p95:.1f})"


def _rank_table(cells: list[dict]) -> list[str]:
    heads = [f"{cell['optimizer']}, {cell['model']}, {cell['elements'] / 1e6:.2g}M" for cell in cells]
    rows = ["| | " + " | ".join(heads) + " |", "|---" * (len(cells) + 1) + "|"]
    for part in ("ratios", "steps"):
        for arm in cells[0][part]:
            for kind in ("elapsed", "processor"):
                entries = [f"{np.median(cell[part][arm][kind]):.2f}" for cell in cells]
                rows.append(f"| {part}: {arm}, {kind} | " + " | ".join(entries) + " |")
    return rows


def draw(cells: list[dict], path: str) -> None:
    """Plots the time of each arm beside the floors, with a panel for each cell."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    for cell, axes in zip(cells, figure.subplots(2, 2).flat, strict=True):
        times: dict[str, Timing] = cell["times"]
        arms = [arm for arm in times if not arm.startswith("floor") and arm != AGAIN]
        axes.barh(range(len(arms)), [times[arm].median for arm in arms])
        norms = times[FLOOR_NORMS].median
        axes.axvline(norms, color="black", linewidth=0.8, linestyle=":", label="floor of the norms")
        axes.axvline(norms + times[FLOOR_UPDATE].median, color="black", linewidth=0.8, label="floor of the step")
        axes.set_yticks(range(len(arms)), arms)
        axes.invert_yaxis()
        axes.set_xlabel("ms, one thread")
        axes.set_title(f"{cell['optimizer']}, {cell['model']}, {cell['elements'] / 1e6:.1f}M parameters")
        axes.legend()
    writing.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    began = time.perf_counter()
    ranks = measure_ranks(options.rounds, (*MODELS, "small"))  # before this process holds memory of its own
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    cells = measure(options.rounds)
    text = render(cells, ranks, time.perf_counter() - began)
    print(text)
    if options.dry:
        return
    plain = [{**cell, "times": {arm: vars(taken) for arm, taken in cell["times"].items()}} for cell in cells]
    summary = {"machine": timing.machine(), "cells": plain, "ranks": writing.medians(ranks)}
    stem = writing.write_results("lars", summary, text, ranks)
    draw(cells, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()

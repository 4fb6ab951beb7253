"""Selection against its rivals, in multiples of one pass that reads the vector: `make bench-topk`.

In every cell all arms run in turn, with one thread each unless stated otherwise, and every result is checked. The
vector is read once before each arm, so that small ones are in a cache for all. The unit is the median time to read the
vector once (the sum of |x|, 4 bytes per element), measured in the same rounds; "A/A" is a second arm that does the
same, and shows the noise. The fused step is given as a multiple of the plain addition of gradient and residual (12
bytes per element), both in place and into another buffer.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks.passes.selection import Kernels, Rivals, aligned
from benchmarks.reporting import timing, writing
from benchmarks.reporting.timing import Arm

try:
    import torch
except ImportError:
    torch = None

SIZES = {"256K": 2**18, "1M": 10**6, "4M": 4 * 10**6, "25M": 25 * 10**6, "128M": 128 * 10**6}
DENSITIES = (0.001, 0.01, 0.1)
# (arm, what it is a multiple of, the most that is wanted for each density); for AVX-512 and vectors from 4M on.
TARGETS = (
    ("exact", "read", (1.2, 1.6, 2.5)),
    ("mstopk", "read", (1.3, 1.8, 3.8)),
    ("feedback exact", "add", (1.15, 1.2, 1.4)),
    ("feedback mstopk", "add", (1.15, 1.2, 1.4)),
    ("feedback exact, in place", "add in place", (1.15, 1.2, 1.4)),
    ("feedback held", "add", (1.05, 1.05, 1.4)),
)
# How many times slower than ours tf.math.top_k has to be at 25M, by density.
SPEEDUPS = {0.001: 15.0, 0.01: 45.0}
INPUTS = {
    "Gaussian": lambda rng, size: rng.standard_normal(size, dtype=np.float32),
    "Laplace": lambda rng, size: rng.laplace(size=size).astype(np.float32),
    "Student-t, 3 degrees": lambda rng, size: rng.standard_t(3, size=size).astype(np.float32),
    "log-normal": lambda rng, size: rng.lognormal(0.0, 2.0, size).astype(np.float32),
    "mixed scales": lambda rng, size: (
        rng.standard_normal(size) * 10.0 ** rng.integers(-4, 1, size // 1000 + 1).repeat(1000)[:size]
    ).astype(np.float32),
}


@tf.function
def _tf_topk(x: tf.Tensor, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    _, indices = tf.math.top_k(tf.abs(x), k)
    return tf.gather(x, indices), indices


def _largest(magnitudes: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k largest, ascending; of equal ones the first."""
    edge = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
    above, equal = np.flatnonzero(magnitudes > edge), np.flatnonzero(magnitudes == edge)
    return np.sort(np.concatenate([above, equal[: k - above.size]])).astype(np.int32)


class Cell:
    """One size and density: the buffers and the arms."""

    def __init__(self, kernels: Kernels, rivals: Rivals, size: int, density: float):
        self.kernels, self.rivals = kernels, rivals
        self.size, self.k = size, max(1, round(size * density))
        rng = np.random.default_rng(0)
        self.x, self.gradient, self.residual = aligned(size), aligned(size), aligned(size)
        self.x[:] = rng.standard_normal(size, dtype=np.float32)
        self.gradient[:] = rng.standard_normal(size, dtype=np.float32)
        self.residual[:] = rng.standard_normal(size, dtype=np.float32)
        self.out, self.in_place = aligned(size), aligned(size)
        self.values, self.indices = aligned(self.k), aligned(self.k, np.int32)
        self.rival_values, self.rival_indices = aligned(self.k), aligned(size + 1, np.int32)
        self.between = aligned(self.k), aligned(self.k, np.int32)
        self.tensor = tf.constant(self.x)
        self.chosen = None
        self.magnitudes = np.abs(self.x)
        self.threshold = float(np.partition(np.abs(self.gradient + self.residual), size - self.k)[size - self.k])
        self.sure = _largest(self.magnitudes, self.k)
        assert rivals.literal_mstopk(self.x, self.k, self.rival_values, self.rival_indices)
        self.approximate = self.rival_indices[: self.k].copy()

    def arms(self, slow_rounds: int) -> dict[str, Arm]:
        """The arms that are timed in this cell."""
        kernels, rivals, x, k = self.kernels, self.rivals, self.x, self.k
        outputs = (self.values, self.indices)
        fused = (self.gradient, self.residual, k, *outputs)
        two = rivals.threads(2)
        arms = {
            "read": Arm(lambda: rivals.read(x)),
            "read, A/A": Arm(lambda: rivals.read(x)),
            "exact": Arm(lambda: kernels.topk(x, k, *outputs), self._check_exact),
            "mstopk": Arm(lambda: kernels.mstopk(x, k, *outputs), self._check_approximate),
            "exact, 2 threads": Arm(lambda: kernels.topk(x, k, *outputs, two), self._check_exact),
            "mstopk, 2 threads": Arm(lambda: kernels.mstopk(x, k, *outputs, two), self._check_approximate),
            "add": Arm(lambda: rivals.add(self.gradient, self.residual, self.out)),
            "add, and move as many": Arm(
                lambda: rivals.add_and_move(self.gradient, self.residual, self.out, self.between, outputs)
            ),
            "feedback exact": Arm(lambda: kernels.feedback_topk(*fused, self.out), self._check_fused),
            "feedback mstopk": Arm(lambda: kernels.feedback_mstopk(*fused, self.out), self._check_fused),
            "feedback held": Arm(self._held, self._check_fused),
            "feedback exact, 2 threads": Arm(lambda: kernels.feedback_topk(*fused, self.out, two), self._check_fused),
            "add in place": Arm(lambda: rivals.add_in_place(self.gradient, self.in_place), self._reset),
            "feedback exact, in place": Arm(
                lambda: kernels.feedback_topk(self.gradient, self.in_place, k, *outputs, self.in_place), self._reset
            ),
            "Algorithm 1, literal": Arm(
                lambda: rivals.literal_mstopk(x, k, self.rival_values, self.rival_indices), rounds=slow_rounds
            ),
            "DGC": Arm(self._dgc, rounds=slow_rounds),
            "numpy.argpartition": Arm(
                lambda: self._keep(np.argpartition(np.abs(x), x.size - k)[x.size - k :]), self._check_kept, slow_rounds
            ),
            "tf.math.top_k": Arm(
                lambda: self._keep(_tf_topk(self.tensor, tf.constant(k))[1].numpy()), self._check_kept, slow_rounds
            ),
        }
        if torch is not None:
            vector = torch.from_numpy(x)
            arms["torch.topk"] = Arm(
                lambda: self._keep(torch.topk(vector.abs(), k).indices.numpy()), self._check_kept, slow_rounds
            )
        return arms

    def _keep(self, indices: np.ndarray) -> None:
        self.chosen = indices

    def _dgc(self) -> None:
        self.rivals.dgc(self.x, self.k, self.rival_values, self.rival_indices)

    def _held(self) -> None:
        """A step between two in which the threshold is taken anew."""
        outputs = (self.values, self.indices, self.out)
        assert self.kernels.feedback_held(self.gradient, self.residual, self.k, self.threshold, *outputs) == self.k

    def _reset(self) -> None:
        """The in-place arms continue from the last result, and now and then restart, so that numbers do not grow."""
        np.copyto(self.in_place, self.residual)

    def _check_exact(self) -> None:
        np.testing.assert_array_equal(self.indices, self.sure)
        np.testing.assert_array_equal(self.values, self.x[self.sure])

    def _check_approximate(self) -> None:
        np.testing.assert_array_equal(self.indices, self.approximate)

    def _check_fused(self) -> None:
        """sent + new residual == residual + gradient."""
        total = self.residual[self.indices] + self.gradient[self.indices]
        np.testing.assert_array_equal(self.values, total)
        assert not self.out[self.indices].any()
        for place in (0, self.size // 3, self.size - 1):
            if place not in self.indices:
                assert self.out[place] == self.residual[place] + self.gradient[place]

    def _check_kept(self) -> None:
        """Rivals may choose others among elements of equal magnitude."""
        assert np.unique(self.chosen).size == self.k
        kept, wanted = np.sort(self.magnitudes[self.chosen]), np.sort(self.magnitudes[self.sure])
        np.testing.assert_array_equal(kept, wanted)


def measure(quick: bool) -> list[dict]:
    """Times every cell, with progress messages."""
    kernels, rivals = Kernels(), Rivals()
    print(f"Instruction set {kernels.isa()}; {timing.machine()['processor']}")
    cells = []
    for name, size in SIZES.items():
        if quick and size > 4 * 10**6:
            continue
        rounds = 5 if quick else 25 if size <= 4 * 10**6 else 11 if size <= 25 * 10**6 else 5
        for density in DENSITIES:
            print(f"d = {name}, k = {density} d ...", flush=True)
            cell = Cell(kernels, rivals, size, density)
            slow_rounds = 2 if quick else 5 if size <= 4 * 10**6 else 2 if size <= 25 * 10**6 else 1
            times = timing.interleave(cell.arms(slow_rounds), rounds, before=lambda cell=cell: rivals.read(cell.x))
            cells.append({"size": name, "density": density, "times": times})
    return cells


def recalls(size: int) -> list[dict]:
    """The share of the k largest that MSTopK and DGC find, on inputs of different shape."""
    kernels, rivals = Kernels(), Rivals()
    rows = []
    for name, make in INPUTS.items():
        x = aligned(size)
        x[:] = make(np.random.default_rng(0), size)
        row: dict = {"input": name}
        for density in DENSITIES[:2]:
            k = round(size * density)
            values, exact, approximate = aligned(k), aligned(k, np.int32), aligned(k, np.int32)
            kernels.topk(x, k, values, exact)
            kernels.mstopk(x, k, values, approximate)
            row[f"mstopk {density}"] = np.intersect1d(exact, approximate).size / k
            sampled = aligned(size + 1, np.int32)
            count = rivals.dgc(x, k, values, sampled)
            row[f"DGC {density}"] = np.intersect1d(exact, sampled[:count]).size / k
        rows.append(row)
    return rows


def render(cells: list[dict], recall: list[dict], isa: str) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    lines = [
        f"# Selection, {about['date']}",
        "",
        f"`make bench-topk` on {about['processor']}, {isa}, one thread unless it says otherwise; TensorFlow "
        f"{tf.__version__}, NumPy {about['numpy']}{', PyTorch ' + torch.__version__ if torch else ', no PyTorch'}; "
        f"commit {about['commit']}; {about['stolen']} of the cores' time stolen by the host. Gaussian input, all "
        "arms in turn, results checked while timed.",
        "",
        "Medians (95th percentile) in multiples of one read pass; the first row is that pass in milliseconds.",
        "",
        *_table(cells),
        "",
        "## Targets",
        "",
        *_verdicts(cells, isa),
        "",
        "## Recall against the exact selection, d = 1M",
        "",
        "| input | " + " | ".join(list(recall[0])[1:]) + " |",
        "|---" * len(recall[0]) + "|",
        *(
            "| " + " | ".join([row["input"], *(f"{value:.3f}" for value in list(row.values())[1:])]) + " |"
            for row in recall
        ),
        "",
    ]
    return "\n".join(lines)


def _table(cells: list[dict]) -> list[str]:
    names = list(cells[0]["times"])
    heads = [f"{cell['size']}, {cell['density']}" for cell in cells]
    rows = ["| | " + " | ".join(heads) + " |", "|---" * (len(cells) + 1) + "|"]
    rows.append("| read pass, ms | " + " | ".join(f"{cell['times']['read'].median:.2f}" for cell in cells) + " |")
    for name in names[1:]:
        entries = []
        for cell in cells:
            unit, taken = cell["times"]["read"].median, cell["times"][name]
            entries.append(f"{taken.median / unit:.2f} ({taken.p95 / unit:.2f})")
        rows.append(f"| {name} | " + " | ".join(entries) + " |")
    return rows


def _verdicts(cells: list[dict], isa: str) -> list[str]:
    rows = ["| what | of | target | met, d >= 4M | missed, d >= 4M |", "|---|---|---|---|---|"]
    large = [cell for cell in cells if SIZES[cell["size"]] >= 4 * 10**6]
    for arm, unit, most in TARGETS:
        for density, limit in zip(DENSITIES, most, strict=True):
            met, missed = [], []
            for cell in (cell for cell in large if cell["density"] == density):
                ratio = cell["times"][arm].median / cell["times"][unit].median
                (met if ratio <= limit else missed).append(f"{cell['size']}: {ratio:.2f}")
            rows.append(f"| {arm}, {density} | {unit} | <= {limit} | {', '.join(met)} | {', '.join(missed)} |")
    for cell in cells:
        wanted = SPEEDUPS.get(cell["density"]) if cell["size"] == "25M" else None
        if wanted is not None:
            ratio = cell["times"]["tf.math.top_k"].median / cell["times"]["exact"].median
            entry = f"{cell['size']}: {ratio:.1f}"
            met, missed = (entry, "") if ratio >= wanted else ("", entry)
            rows.append(f"| tf.math.top_k, {cell['density']} | exact | >= {wanted:.0f} | {met} | {missed} |")
    if isa != "AVX-512":
        rows.append("")
        rows.append("The targets are for AVX-512, which this processor lacks.")
    return rows


def draw(cells: list[dict], path: str) -> None:
    """A bar for each arm at the largest size, in read passes."""
    largest = cells[-1]["size"] if cells[-1]["size"] != "128M" else "25M"
    shown = [cell for cell in cells if cell["size"] == largest]
    names = [name for name in shown[0]["times"] if name not in ("read", "read, A/A")]
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(shown)
    for number, cell in enumerate(shown):
        unit = cell["times"]["read"].median
        widths = [cell["times"][name].median / unit for name in names]
        places = [place + number * height for place in range(len(names))]
        axes.barh(places, widths, height, label=f"k = {cell['density']} d")
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel(f"read passes (d = {largest}, one thread unless it says otherwise)")
    axes.legend()
    writing.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds; writes nothing")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    cells = measure(options.quick)
    recall = recalls(10**6)
    text = render(cells, recall, Kernels().isa())
    print(text)
    if options.quick:
        return
    plain = [{**cell, "times": {name: vars(taken) for name, taken in cell["times"].items()}} for cell in cells]
    stem = writing.write_results("topk", {"machine": timing.machine(), "cells": plain, "recall": recall}, text)
    draw(cells, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()

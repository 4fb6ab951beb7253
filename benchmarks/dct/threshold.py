"""The largest elements of each row, in multiples of one pass that reads the matrix: `--questions threshold`.

All arms run in turn on one thread, and every result is checked; before each arm the matrix is read once. The unit is
the median time to read it once (the sum of |x|). The arms are TensorFlow's operations with their outputs, zeros
included. The rival is what TensorFlow offers: `tf.math.top_k` of the magnitudes, then a scatter of the elements found
into zeros. "A/A" is the reading once more. It takes some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.passes.selection import Kernels, Rivals, aligned
from benchmarks.reporting import timing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.reporting.timing import Arm, Timing
from hvd_sparse import ops
from hvd_sparse.pipeline import rows
from hvd_sparse.pipeline.threshold import kept_of

SHAPES = ((16384, 4096), (1024, 4096))
SPARSITIES = (0.75, 0.9, 0.95, 0.99)
WANTED = 0.95  # the sparsity of the targets
PASSES, TIMES = (
    3.5,
    15.0,
)  # maximum cost, in read passes, for the first shape; minimum speedup over the rival in each
READ, AGAIN, OURS, RIVAL = "read", "read, A/A", "threshold", "tf.math.top_k, scatter"
VALUES, BACKWARD = "values and positions alone", "backward"


@tf.function
def _rival(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """x, with 0 for elements that are not among the k largest magnitudes of their row."""
    places = tf.math.top_k(tf.abs(x), k, sorted=False).indices
    values = tf.gather(x, places, batch_dims=1)
    numbers = tf.broadcast_to(tf.range(tf.shape(x)[0])[:, tf.newaxis], tf.shape(places))
    return tf.scatter_nd(tf.stack([numbers, places], -1), values, tf.shape(x))


def _largest(matrix: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrix with 0 outside the k largest magnitudes of each row, and a mask of rows with a tie at the k-th."""
    magnitudes = np.abs(matrix)
    edges = np.partition(magnitudes, matrix.shape[1] - k)[:, -k, np.newaxis]
    wanted = matrix * (magnitudes >= edges)
    tied = np.count_nonzero(wanted, axis=1) > k
    for row in np.flatnonzero(tied):
        wanted[row, np.argsort(-magnitudes[row], kind="stable")[k:]] = 0
    return wanted, tied


class Cell:
    """One matrix and sparsity: the timed arms, and the expected result."""

    def __init__(self, rivals: Rivals, matrix: np.ndarray, sparsity: float):
        self.rivals, self.matrix = rivals, matrix
        self.k = kept_of(matrix.shape[1], sparsity)
        self.x, self.count = tf.constant(matrix), tf.constant(self.k)
        self.wanted, self.tied = _largest(matrix, self.k)
        self.positions = rows.threshold_rows(self.x, self.k)[1]
        self.given: tf.Tensor | None = None

    def arms(self, slow_rounds: int) -> dict[str, Arm]:
        """The arms that are timed in this cell."""
        x, k = self.x, self.k
        return {
            READ: Arm(self.read),
            AGAIN: Arm(self.read),
            OURS: Arm(lambda: self._keep(rows.threshold_rows(x, k)[0]), self._check),
            VALUES: Arm(lambda: self._keep(rows.largest_rows(x, k)[0]), self._check_values),
            BACKWARD: Arm(lambda: self._keep(rows.mask_rows(x, self.positions)), self._check),
            RIVAL: Arm(lambda: self._keep(_rival(x, self.count)), self._check_rival, slow_rounds),
        }

    def read(self) -> None:
        self.rivals.read(self.matrix.reshape(-1))

    def _keep(self, given: tf.Tensor) -> None:
        self.given = given

    def _check(self) -> None:
        assert np.array_equal(self.given, self.wanted)
        self.given = None  # frees memory for the next cell

    def _check_rival(self) -> None:
        """Checks the rival, which may choose others among elements of equal magnitude."""
        same = np.all(np.equal(self.given, self.wanted), axis=1)
        assert (same | self.tied).all()
        self.given = None

    def _check_values(self) -> None:
        assert np.array_equal(np.reshape(self.given, -1), self.wanted[self.wanted != 0])
        self.given = None


def measure(options: argparse.Namespace, tell: Callable[[str], None]) -> Section:
    """Times all cells.

    Args:
        options: `quick` takes only the smaller matrix, and few rounds.
        tell: receives a line for each cell.
    """
    ops.library()  # loaded before its kernels are called without TensorFlow
    rivals, isa = Rivals(), Kernels().isa()
    cells = []
    for shape in SHAPES[1:] if options.quick else SHAPES:
        matrix = aligned(shape[0] * shape[1]).reshape(shape)
        matrix[:] = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        large = matrix.size > 2**24
        for sparsity in SPARSITIES:
            tell(f"{list(shape)}, {sparsity}")
            cell = Cell(rivals, matrix, sparsity)
            arms = cell.arms(1 if options.quick or large else 3)
            times = timing.interleave(arms, 3 if options.quick else 7 if large else 25, before=cell.read)
            cells.append({"shape": list(shape), "sparsity": sparsity, "times": times})
    figures = [{**cell, "times": {name: vars(taken) for name, taken in cell["times"].items()}} for cell in cells]
    lines = [f"{isa}, one thread, float32, Gaussian; read passes, medians (95th percentile).", "", *_table(cells)]
    return Section("The largest elements of each row", lines, {"isa": isa, "cells": figures}, _verdicts(cells, isa))


def _table(cells: list[dict]) -> list[str]:
    heads = [f"{cell['shape']}, {cell['sparsity']}" for cell in cells]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(cells) + 1) + "|"]
    lines.append("| read pass, ms | " + " | ".join(f"{cell['times'][READ].median:.2f}" for cell in cells) + " |")
    for name in (AGAIN, OURS, VALUES, BACKWARD, RIVAL):
        lines.append(f"| {name} | " + " | ".join(_entry(cell["times"], name) for cell in cells) + " |")
    return lines


def _entry(times: dict[str, Timing], name: str) -> str:
    unit, taken = times[READ].median, times[name]
    return f"{taken.median / unit:.2f} ({taken.p95 / unit:.2f})"


def _verdicts(cells: list[dict], isa: str) -> list[Verdict]:
    verdicts = []
    for cell in cells:
        if cell["sparsity"] != WANTED:
            continue
        times, what = cell["times"], f"{cell['shape']} at {WANTED}, {isa}"
        if tuple(cell["shape"]) == SHAPES[0]:
            passes = times[OURS].median / times[READ].median
            verdicts.append(
                Verdict(f"threshold of {what}, read passes", f"<= {PASSES}", f"{passes:.2f}", passes <= PASSES)
            )
        ratio = times[RIVAL].median / times[OURS].median
        verdicts.append(Verdict(f"times {RIVAL}, {what}", f">= {TIMES:.0f}", f"{ratio:.1f}", ratio >= TIMES))
    return verdicts

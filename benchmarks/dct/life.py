"""The time of a selection by the life of thresholds and by sparsity (Fig. 7): `--questions life`; twenty minutes.

Fig. 7 shows whole trainings; life changes only the time of the selection in them, which is measured here alone. One
rank selects from a gradient of 25M elements, one variable, with error feedback. The arms are `HeldThreshold` with lives
of 1, 10, 100 and 1,000 steps, the exact `TopK`, and the plain addition of gradient and residual. All arms make a step
in turn, a thousand times, on one thread, by TensorFlow's operations and with the state's assignment, so that each life
has its share of steps that take a new threshold. Four Gaussian gradients take turns, and all arms start from a residual
as after hundreds of steps, as a threshold taken with an empty residual is soon too low. Times are means, as a median
would not include the steps that take a new threshold; the medians of these steps and of those between are among the
figures.

In each arm's first step, what was selected and what is left are checked to add up to the gradient. Also reported are
the number of elements sent, as a multiple of the number requested, and how often it was clamped.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks.passes.selection import Rivals, aligned
from benchmarks.reporting import timing, writing
from benchmarks.reporting.report import Section, Verdict
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.held import HeldThreshold, held_count
from hvd_sparse.compression.selection import Steps
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Grid

TITLE = "Selections by the life of thresholds"
SIZE, STEPS, BEFORE = 25_000_000, 1_000, 400  # elements; steps of each arm; steps that lead to the initial residual
FEW_ELEMENTS, FEW_STEPS, FEW_BEFORE = 200_000, 20, 50  # for a quick run
LIVES, SPARSITIES = (1, 10, 100, 1_000), (0.75, 0.9, 0.95, 0.99, 0.995)
JUDGED = 0.95  # the sparsity of Fig. 7 (a)
GRADIENTS = 4
ADD, EXACT = "add", "exact, each step"
PICTURE = pathlib.Path(__file__).parents[1] / "results" / "dct.life.png"


def name_of(life: int) -> str:
    """The name of the arm with this life."""
    return f"life {life:,}"


class Selecting:
    """One arm: a compressor with its state, applied step after step.

    Attributes:
        sent: elements sent in all steps.
    """

    def __init__(self, compressor: Compressor, size: int):
        self._compressor, self.sent = ErrorFeedback(compressor), 0
        self._state: Any = self._compressor.create(Spec(size, Grid.lone()))
        self._run = tf.function(self._selected)

    @property
    def residual(self) -> tf.Variable:
        """The elements that were not sent."""
        return self._state.residual

    def step(self, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Values and positions of the elements sent, out of [1, size]; the rest is kept."""
        values, indices = self._run(gradient)
        self.sent += len(values)
        return values, indices

    def begin(self, residual: tf.Tensor, gradient: tf.Tensor) -> None:
        """Makes a step that takes a new threshold; checks that sent and kept elements add up to gradient and residual.

        The step is number 1,000, as thresholds live shorter in the first steps.
        """
        self.residual.assign(residual)
        if isinstance(self._state.inner, Steps):
            self._state.inner.step.assign(LIVES[-1])
        values, indices = self.step(gradient)
        whole = self.residual.numpy()
        assert not whole[indices.numpy()].any()
        whole[indices.numpy()] = values.numpy()
        assert np.array_equal(whole, gradient[0] + residual)
        self.sent = 0

    @property
    def clamped(self) -> int:
        """How often the number of elements was clamped, to the maximum or the minimum."""
        clamped = getattr(self._state.inner, "clamped", None)
        return 0 if clamped is None else int(clamped)

    def _selected(self, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        selection = self._compressor.compress(gradient, self._state)
        for variable, value in selection.updates:
            variable.assign(value)
        return selection.slices.values, selection.slices.indices


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Times all arms at all sparsities."""
    size, steps, before = (FEW_ELEMENTS, FEW_STEPS, FEW_BEFORE) if options.quick else (SIZE, STEPS, BEFORE)
    random, vectors = np.random.default_rng(0), []
    for _ in range(GRADIENTS):
        vectors.append(aligned(size))
        vectors[-1][:] = random.standard_normal(size, dtype=np.float32)
    cells = {}
    for sparsity in SPARSITIES[1::2] if options.quick else SPARSITIES:
        say(f"{sparsity:.1%} dropped")
        cells[sparsity] = timed(sparsity, vectors, steps, before)
    if not (options.quick or options.dry):
        draw(cells)
    return told(cells, size, steps)


def timed(sparsity: float, vectors: Sequence[np.ndarray], steps: int, before: int) -> dict[str, dict[str, Any]]:
    """The times of each arm, and the number of elements it sent.

    Args:
        sparsity: share of elements not requested.
        vectors: gradients, which take turns.
        steps: steps of each arm that count, after its first one.
        before: number of steps that lead to the residual with which all arms begin.
    """
    size, density, rivals = vectors[0].size, 1.0 - sparsity, Rivals()
    tensors = [tf.constant(each[np.newaxis]) for each in vectors]
    arms = {name_of(life): Selecting(HeldThreshold(density, life=life), size) for life in LIVES}
    arms[EXACT] = Selecting(TopK(density), size)
    residual, out = aligned(size), aligned(size)
    residual[:] = _left_after(tensors, density, before)
    for arm in arms.values():
        arm.begin(tf.constant(residual), tensors[0])
    seconds: dict[str, list[float]] = {name: [] for name in (ADD, *arms)}
    for step in range(1, steps + 1):
        runs = {name: functools.partial(arm.step, tensors[step % GRADIENTS]) for name, arm in arms.items()}
        runs[ADD] = functools.partial(rivals.add, vectors[step % GRADIENTS], residual, out)
        for name in timing.shuffled(runs, step):
            began = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - began)
    asked = steps * held_count(density, size)
    found = {name: {"ms": 1e3 * float(np.mean(taken))} for name, taken in seconds.items()}
    for life in LIVES:
        found[name_of(life)] |= _by_kind(seconds[name_of(life)], life)
    for name, arm in arms.items():
        found[name] |= {"sent": arm.sent / asked, "clamped": arm.clamped}
    return found


def _left_after(tensors: Sequence[tf.Tensor], density: float, steps: int) -> tf.Tensor:
    """The residual after `steps` steps."""
    arm = Selecting(HeldThreshold(density, life=1), tensors[0].shape[1])
    for step in range(steps):
        arm.step(tensors[step % len(tensors)])
    return arm.residual.read_value()


def _by_kind(seconds: Sequence[float], life: int) -> dict[str, float]:
    """Medians of steps that take a new threshold, and of the others, if there are any."""
    kinds: dict[str, list[float]] = {"anew_ms": [], "between_ms": []}
    for step, taken in enumerate(seconds, start=1):
        kinds["between_ms" if step % life else "anew_ms"].append(taken)
    return {kind: 1e3 * float(np.median(taken)) for kind, taken in kinds.items() if taken}


def told(cells: dict[float, dict[str, dict[str, Any]]], size: int, steps: int) -> Section:
    """Tables and the verdict."""
    names = [*map(name_of, LIVES), EXACT]
    lines = [
        f"{size:,} elements, {steps:,} steps of each arm; ms, mean (times the addition).",
        "",
        "| dropped | add | " + " | ".join(names) + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for sparsity, cell in cells.items():
        unit = cell[ADD]["ms"]
        taken = [f"{cell[name]['ms']:.2f} ({cell[name]['ms'] / unit:.2f})" for name in names]
        lines.append(f"| {sparsity:.1%} | {unit:.2f} | {' | '.join(taken)} |")
    lines += ["", "Elements sent, as a multiple of those asked for (steps in which their number was clamped):", ""]
    lines += ["| dropped | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for sparsity, cell in cells.items():
        sent = [f"{cell[name]['sent']:.3f} ({cell[name]['clamped']})" for name in names]
        lines.append(f"| {sparsity:.1%} | {' | '.join(sent)} |")
    verdicts = []
    if JUDGED in cells:
        first, last = (cells[JUDGED][name_of(life)]["ms"] for life in (LIVES[0], LIVES[-1]))
        what = f"time of a selection with a life of {LIVES[0]} over that of {LIVES[-1]:,}, {JUDGED:.0%}"
        verdicts.append(Verdict(what, "> 1", f"{first / last:.2f}", first > last))
    return Section(TITLE, lines, {str(sparsity): cell for sparsity, cell in cells.items()}, verdicts)


def draw(cells: dict[float, dict[str, dict[str, Any]]], path: pathlib.Path = PICTURE) -> None:
    """The picture: times by life, a line for each sparsity, and by sparsity, a line for each life."""
    figure = Figure(figsize=(11.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (sparsity, cell) in enumerate(cells.items()):
        taken = [cell[name_of(life)]["ms"] for life in LIVES]
        left.semilogx(LIVES, taken, "o-", color=f"C{number}", label=f"{sparsity:.1%}")
    for number, name in enumerate([*map(name_of, LIVES), EXACT, ADD]):
        taken = [cell[name]["ms"] for cell in cells.values()]
        right.plot([f"{each:.1%}" for each in cells], taken, "o-", color=f"C{number}", label=name)
    left.set(title="By life, for each sparsity (Fig. 7 a)", xlabel="life, steps", ylabel="ms a step, mean")
    right.set(title="By sparsity, for each life (Fig. 7 c)", xlabel="share dropped")
    for axes in (left, right):
        axes.set_ylim(bottom=0.0)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    writing.save_picture(figure, path)

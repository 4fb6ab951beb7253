"""Thresholds over a training of the recommender (Fig. 2 and 5): `--questions thresholds`.

One process trains the DLRM of examples/recommender.py for one epoch. Every few steps the thresholds of several
sparsities are computed: for the gradient of one layer, whose threshold DCT-DP holds for a thousand steps, and for each
row of the activations after the second layer, whose mean is plotted. For the activations this is done without a
`Threshold` layer, and in separate trainings with one of the same sparsity: four trainings in all, of at least half a
minute each.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks.reporting import writing
from benchmarks.reporting.report import Section
from examples import recommender
from hvd_sparse.pipeline.threshold import kept_of

OF_GRADIENTS, OF_ACTIVATIONS = (0.75, 0.9, 0.95, 0.99), (0.75, 0.9, 0.95)
LAYER, SPLIT = "top_1", "bottom_2"
EVERY = 20  # steps
PICTURE = pathlib.Path(__file__).parents[1] / "results" / "dct.png"


class Watch(keras.callbacks.Callback):
    """Computes thresholds before some of the steps, always on the same batch."""

    def __init__(self, batch: Any):
        super().__init__()
        self._batch, self.steps = batch, []
        self.gradients: dict[float, list[float]] = {each: [] for each in OF_GRADIENTS}
        self.activations: dict[float, list[float]] = {each: [] for each in OF_ACTIVATIONS}
        self._ahead: Any = None

    def set_model(self, model):
        super().set_model(model)
        layer = model.get_layer(SPLIT)
        self._until = keras.Model(model.inputs, layer.output)
        self._ahead = tf.function(self._gradient)

    def on_train_batch_begin(self, batch, logs=None):
        if batch % EVERY:
            return
        self.steps.append(batch)
        gradient = np.sort(np.abs(self._ahead().numpy()).ravel())[::-1]
        for sparsity, told in self.gradients.items():
            told.append(float(gradient[kept_of(len(gradient), sparsity) - 1]))
        numbers, categories, _ = self._batch
        rows = -np.sort(-np.abs(self._until([numbers, categories], training=False).numpy()), axis=1)
        for sparsity, told in self.activations.items():
            told.append(float(rows[:, kept_of(rows.shape[1], sparsity) - 1].mean()))

    def _gradient(self) -> tf.Tensor:
        numbers, categories, labels = self._batch
        kernel = self.model.get_layer(LAYER).kernel
        with tf.GradientTape() as tape:
            logits = self.model([numbers, categories], training=True)
            loss = keras.losses.BinaryCrossentropy(from_logits=True)(labels[:, None], logits)
        return tape.gradient(loss, kernel.value)


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Trains, and draws the picture."""
    title = "Thresholds over a training"
    try:
        task = recommender.prepare(recommender.parse([]))
    except RuntimeError as problem:
        return Section(title, [f"Not measured: {problem}"], {}, [])
    say("without thresholds")
    free = watched(task, [])
    held = {}
    for sparsity in OF_ACTIVATIONS[:1] if options.quick else OF_ACTIVATIONS:
        say(f"{sparsity:.0%} of activations dropped")
        words = ["--sparsity", str(sparsity), "--split-after", SPLIT]
        held[sparsity] = watched(task, words).activations[sparsity]
    if not (options.quick or options.dry):
        draw(free, held)
    return told(title, free, held)


def watched(task: Any, words: Sequence[str]) -> Watch:
    """Runs one training with `Watch`."""
    options = recommender.parse([*words])
    first = next(iter(task.train.epoch(0, options.batch_size, 0, 1, options.seed)))
    watch = Watch((first.numbers, first.categories, first.labels))
    recommender.trained(options, task, callbacks=[watch])
    return watch


def told(title: str, free: Watch, held: dict[float, list[float]]) -> Section:
    """Tables of how far thresholds deviate from their mean, and what is left of the activations' in the end."""
    lines = [f"Of the gradient of {LAYER} (Fig. 2), after the first tenth of the steps:", ""]
    lines += ["| sparsity | mean | farthest from it |", "|---|---|---|"]
    figures: dict[str, Any] = {"steps": free.steps, "gradients": free.gradients, "activations": free.activations}
    later = len(free.steps) // 10
    for sparsity, thresholds in free.gradients.items():
        own = np.array(thresholds[later:])
        lines.append(f"| {sparsity:.0%} | {own.mean():.2e} | {np.abs(own / own.mean() - 1).max():.0%} |")
    lines += ["", f"Of the activations after {SPLIT} (Fig. 5), mean of the last tenth of the steps:", ""]
    lines += ["| sparsity | nothing dropped | as much dropped |", "|---|---|---|"]
    for sparsity, thresholds in held.items():
        ends = [np.mean(each[-max(1, later) :]) for each in (free.activations[sparsity], thresholds)]
        lines.append(f"| {sparsity:.0%} | {ends[0]:.3f} | {ends[1]:.3f} |")
    figures["activations_when_dropped"] = {str(each): values for each, values in held.items()}
    return Section(title, lines, figures, [])


def draw(free: Watch, held: dict[float, list[float]], path: pathlib.Path = PICTURE) -> None:
    """Draws the picture of both."""
    figure = Figure(figsize=(13.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (sparsity, thresholds) in enumerate(free.gradients.items()):
        left.semilogy(free.steps, thresholds, color=f"C{number}", label=f"{sparsity:.0%}")
    left.set(title=f"Gradient of {LAYER} (Fig. 2)", xlabel="step", ylabel="threshold")
    for number, (sparsity, thresholds) in enumerate(held.items()):
        right.plot(free.steps, free.activations[sparsity], color=f"C{number}", label=f"{sparsity:.0%}, nothing dropped")
        right.plot(free.steps, thresholds, "--", color=f"C{number}", label=f"{sparsity:.0%}, as much dropped")
    right.set(title=f"Activations after {SPLIT} (Fig. 5)", xlabel="step", ylabel="mean threshold of a row")
    left.legend(fontsize=8)
    right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    writing.save_picture(figure, path)

"""Other schemes that send as many bytes at a split as DCT-MP (appendix A): `--questions appendix`; three minutes.

A perceptron of four layers learns scikit-learn's digits, split after its second layer, where a row has 256 elements.
DCT-MP at 50, 75 and 90% sends the largest elements of each row forward and the gradient at the same places backward. It
is compared with schemes that send as many bytes in both directions together:

- Gaussian sketch of activations (Table 6): X S goes forward, with S normal with variance 1 / m, drawn once, and the
  receiver computes X S S^T. The paper does not say how rows get their original length back, nor whether S is drawn
  anew, and does not compress the gradient; the gradient of this computation has m elements as well, and is exact;
- forward as DCT-MP, and backward the largest elements of the whole gradient, with error feedback;

and with schemes that send everything forward, as in Table 7, and backward as many bytes as DCT-MP does there:

- the largest elements of the gradient, with and without error feedback. The feedback belongs to a place in the batch,
  as the rows of a split's gradient are different samples in each step; the paper says only that there is feedback;
- count sketch of the gradient, with three rows of counters, from which the receiver takes the largest estimates, as
  many as a row has counters. It is not in the paper, but is the nearest thing to a sketch for the backward direction.

Further rivals send all elements in fewer bits, with about as many bytes as DCT-MP at the sparsity of their row:
integers of 8 and 4 bits with a scale for each row, and 4 bits of the change of a sample's activations since it was last
sent, as AQ-SGD does (Wang et al. 2022). AQ-SGD sends a sample whole the first time, in one epoch of 25, which its bytes
do not include; both sides keep the activations of all samples, and the gradient is rounded directly.

Bytes include positions, which the paper's factors leave out. The data is small and easy: its images have 64 pixels, so
that activations may well be of low rank, and what costs nothing here may cost something elsewhere.

With the same seed all schemes start from the same weights and see the same batches. All use Adam's default rate, which
is dense training's. Models of all seeds are trained side by side, as one. Differences are paired by seed, with
Student's 95% interval; "A/A" is dense training with a rate 1% larger.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from benchmarks.dct.schemes import (
    AS_MANY,
    BACKWARD,
    BATCH,
    IN_FEWER_BITS,
    JUDGED,
    OURS,
    SCHEMES,
    SPARSITIES,
    WIDTH,
    Dense,
    Scheme,
)
from benchmarks.reporting.report import Section, Verdict
from benchmarks.studies.paired import difference
from examples import digits

TITLE = "Other schemes with as many bytes"
WIDTHS, SPLIT = (64, 128, WIDTH, 128, 10), 2  # units of the layers, and number of layers before the split
SEEDS, EPOCHS = 8, 25
FEW_SEEDS, FEW_EPOCHS = 2, 3  # for a quick run
RATE = 1e-3
DENSE, AGAIN = "dense", "dense, A/A"


# ---- training ----


class Ends(NamedTuple):
    """Final results of models, a value for each seed.

    Attributes:
        loss: test loss.
        accuracy: test accuracy, in percent.
        fitted: loss on the training data.
    """

    loss: list[float]
    accuracy: list[float]
    fitted: list[float]


class Models:
    """A perceptron for each seed, all of them trained at once."""

    def __init__(self, scheme: Scheme, seeds: int):
        self._scheme = scheme
        self.layers = [
            [keras.Variable(_first(seeds, number, each)), keras.Variable(np.zeros([seeds, 1, each[1]], np.float32))]
            for number, each in enumerate(itertools.pairwise(WIDTHS))
        ]

    def gradients(self, images: tf.Tensor, labels: tf.Tensor, samples: tf.Tensor | None = None) -> list[tf.Tensor]:
        """The gradients of all variables, layer by layer.

        Args:
            images: [seeds, rows, 64].
            labels: [seeds, rows].
            samples: [seeds, rows], their numbers in the training data.
        """
        before, after = (
            [variable.value for layer in part for variable in layer]
            for part in (self.layers[:SPLIT], self.layers[SPLIT:])
        )
        with tf.GradientTape() as tape_before:
            x = self._through(images, self.layers[:SPLIT])
        arrived, kept = self._scheme.forward(x, samples)
        with tf.GradientTape() as tape_after:
            tape_after.watch(arrived)
            loss = tf.reduce_sum(self._losses(arrived, labels))
        gradient, *of_after = tape_after.gradient(loss, [arrived, *after])
        came_back = self._scheme.backward(gradient, kept)
        return [*tape_before.gradient(x, before, came_back), *of_after]

    def judge(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss and accuracy of each seed, with the scheme applied as in training."""
        arrived, _ = self._scheme.forward(self._through(images, self.layers[:SPLIT]))
        right = tf.argmax(self._through(arrived, self.layers[SPLIT:]), -1) == tf.cast(labels, tf.int64)
        return self._losses(arrived, labels), tf.reduce_mean(tf.cast(right, tf.float32), 1)

    def _losses(self, arrived: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = self._through(arrived, self.layers[SPLIT:])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), 1)

    def _through(self, x: tf.Tensor, layers: Sequence[Sequence[keras.Variable]]) -> tf.Tensor:
        for kernel, bias in layers:
            x = x @ kernel + bias
            x = x if kernel is self.layers[-1][0] else tf.nn.relu(x)
        return x


def _first(seeds: int, number: int, shape: tuple[int, int]) -> tf.Tensor:
    return tf.stack([keras.initializers.GlorotUniform(seed=100 * seed + number)(shape) for seed in range(seeds)])


@functools.cache
def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    read = digits.load(seed=0)
    flat = [each.reshape(len(each), -1) for each in (read.train_images, read.test_images)]
    return flat[0], read.train_labels.astype(np.int32), flat[1], read.test_labels.astype(np.int32)


def train(scheme: Scheme, seeds: int, epochs: int, rate: float = RATE) -> Ends:
    """Trains models of all seeds.

    Args:
        scheme: scheme at the split.
        seeds: number of seeds.
        epochs: of each.
        rate: Adam's learning rate.
    """
    images, labels, test_images, test_labels = _data()
    models, optimizer = Models(scheme, seeds), keras.optimizers.Adam(rate)
    variables = [variable for layer in models.layers for variable in layer]
    optimizer.build(variables)

    @tf.function
    def step(chosen: tf.Tensor) -> None:
        found = models.gradients(tf.gather(images, chosen), tf.gather(labels, chosen), chosen)
        optimizer.apply(found, variables)

    random = [np.random.default_rng(1000 + seed) for seed in range(seeds)]
    for _ in range(epochs):
        orders = np.stack([each.permutation(len(labels)) for each in random])
        for begin in range(0, len(labels) - BATCH + 1, BATCH):
            step(tf.constant(orders[:, begin : begin + BATCH]))
    told = [models.judge(*_for_all(*each, seeds)) for each in ((test_images, test_labels), (images, labels))]
    (loss, accuracy), (fitted, _) = told
    return Ends(loss.numpy().tolist(), (100.0 * accuracy.numpy()).tolist(), fitted.numpy().tolist())


def _for_all(images: np.ndarray, labels: np.ndarray, seeds: int) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.tile(images[None], [seeds, 1, 1]), tf.tile(labels[None], [seeds, 1])


# ---- results ----


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Trains with all schemes at all numbers of bytes."""
    seeds, epochs = (FEW_SEEDS, FEW_EPOCHS) if options.quick else (options.seeds or SEEDS, EPOCHS)
    cells = []
    for name, rate in ((DENSE, RATE), (AGAIN, 1.01 * RATE)):
        say(name)
        cells.append(_cell(name, 0.0, Dense(), train(Dense(), seeds, epochs, rate)))
    for sparsity in SPARSITIES[-1:] if options.quick else SPARSITIES:
        for name, make in SCHEMES.items():
            say(f"{name}, bytes of {sparsity:.0%}")
            scheme = make(sparsity, seeds)
            cells.append(_cell(name, sparsity, scheme, train(scheme, seeds, epochs)))
    for name, (sparsity, make_rival) in IN_FEWER_BITS.items():
        say(name)
        scheme = make_rival(seeds, len(_data()[1]))
        cells.append(_cell(name, sparsity, scheme, train(scheme, seeds, epochs)))
    return told(cells)


def _cell(name: str, sparsity: float, scheme: Scheme, ends: Ends) -> dict[str, Any]:
    return {"name": name, "sparsity": sparsity, "bytes": list(scheme.bytes_of_row), **ends._asdict()}


def told(cells: list[dict[str, Any]]) -> Section:
    """The table and the verdicts."""
    dense = cells[0]
    seeds = len(dense["loss"])
    lines = [
        f"Rows of {WIDTH} elements, {seeds} seeds; bytes are those of a row at the split, forward and backward.",
        "",
        "| | bytes of | forward | backward | test loss | minus dense | accuracy, % | minus dense "
        "| loss minus DCT-MP's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    verdicts, rivals = [], {*AS_MANY, *IN_FEWER_BITS}
    ours = {each["sparsity"]: each for each in cells if each["name"] == OURS}
    for each in cells:
        is_dense, rival = each is dense, ours.get(each["sparsity"]) if each["name"] in rivals else None
        more = [difference(each[what], dense[what]) for what in ("loss", "accuracy")]
        beyond = difference(each["loss"], rival["loss"]) if rival else None
        shown = [
            each["name"],
            f"{each['sparsity']:.0%}" if each["sparsity"] else "all",
            *map(str, each["bytes"]),
            f"{np.mean(each['loss']):.4f}",
            "" if is_dense else more[0].told(4),
            f"{np.mean(each['accuracy']):.2f}",
            "" if is_dense else more[1].told(2),
            beyond.told(4) if beyond else "",
        ]
        lines.append(f"| {' | '.join(shown)} |")
        if each["sparsity"] == JUDGED and each["name"] in {*AS_MANY, *BACKWARD}:
            gap, against = (beyond, OURS) if beyond else (more[0], "dense training")
            what = f"test loss, {each['name']} with the bytes of {JUDGED:.0%}, minus that of {against}"
            verdicts.append(Verdict(what, "> 0", gap.told(4), gap.low > 0.0))
    return Section(TITLE, lines, {"cells": cells}, verdicts)

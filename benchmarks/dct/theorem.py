"""Whether a threshold per sample trains like their mean (appendix B, Theorem 1): `--questions theorem`; seconds.

Theorem 1 says that the gradient's mean over samples is "up to first order" the same whether each sample's activation
passes its own threshold or all pass the mean of these thresholds, if (1) the mean of what passes is the same for both.
The paper proves this by a Taylor series and has no case in which both sides are known. This module has such a case,
derived here: activations are d independent exponential variables, positive as after a ReLU, and a sample's threshold is
its k-th largest element. By Renyi's representation the sum S of those that pass, and the mean threshold t, have

    E S = k (1 + H_d - H_k),   Var S = k + k^2 (1 / (k + 1)^2 + ... + 1 / d^2),   t = 1 / k + ... + 1 / d,

where H are the harmonic numbers. The sum of what passes the mean threshold instead has

    E S = d m_1,   Var S = d (m_2 - m_1^2),   m_1 = (1 + t) exp(-t),   m_2 = (t^2 + 2 t + 2) exp(-t).

The layer before scales activations by u = 1, the layer after adds what passes with equal weights w, so that the mean is
1, and the loss is (w S - c)^2 / 2 for a target c. Its derivative with respect to u has the mean w^2 (Var S + (E S)^2) -
c w E S. Both means are compared with samples; those of Theorem 1 use the `Threshold` layer and its backward pass.

The proof needs more than (1): it takes the mean of the loss's second derivative times the difference of what passes to
be 0 because the difference has mean 0. If the second derivative differs between samples, the two must also be
uncorrelated. Here they are not: what passes varies less if each sample has its own threshold.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.reporting.report import Section, Verdict
from hvd_sparse.pipeline.threshold import Threshold, kept_of

TITLE = "Thresholds of samples and their mean"
WIDTHS, SPARSITIES, TARGETS = (64, 1024), (0.5, 0.75, 0.9, 0.95), (0.5, 1.0)
SAMPLES, FEW, AT_ONCE = 40_000, 4_000, 4_000
MOST = 3.0  # standard errors


class Passing(NamedTuple):
    """The sum of what passes in a sample.

    Attributes:
        mean: mean of the sum.
        variance: variance of the sum.
    """

    mean: float
    variance: float

    def gradient(self, weight: float, target: float) -> float:
        """The mean derivative of the loss by the scale of the layer before."""
        return weight**2 * (self.variance + self.mean**2) - target * weight * self.mean


def mean_threshold(width: int, kept: int) -> float:
    """The mean of the k-th largest of exponential variables."""
    return math.fsum(1.0 / number for number in range(kept, width + 1))


def by_sample(width: int, kept: int) -> Passing:
    """The moments if the k largest of each sample pass."""
    later = range(kept + 1, width + 1)
    mean = kept * (1.0 + math.fsum(1.0 / number for number in later))
    return Passing(mean, kept + kept**2 * math.fsum(1.0 / number**2 for number in later))


def by_mean(width: int, threshold: float) -> Passing:
    """The moments if all that reach one threshold pass."""
    share = math.exp(-threshold)
    first, second = (1.0 + threshold) * share, (threshold**2 + 2.0 * threshold + 2.0) * share
    return Passing(width * first, width * (second - first**2))


class Sampled(NamedTuple):
    """An estimate from samples.

    Attributes:
        mean: over them.
        error: standard error of the mean.
    """

    mean: float
    error: float

    def errors_from(self, expected: float) -> float:
        """The distance from an expected value, in standard errors."""
        return abs(self.mean - expected) / self.error


def _sampled(values: np.ndarray) -> Sampled:
    return Sampled(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))


def sample(width: int, sparsity: float, targets: tuple[float, ...], count: int, seed: int) -> dict[str, Any]:
    """Samples of one case.

    Args:
        width: d.
        sparsity: share that does not pass.
        targets: targets c of the losses.
        count: number of samples.
        seed: seed of the samples.

    Returns:
        Sampled "threshold", and under "by_sample" and "by_mean" the gradients of each target.
    """
    random, kept = np.random.default_rng(seed), kept_of(width, sparsity)
    threshold, weight = mean_threshold(width, kept), 1.0 / by_sample(width, kept).mean
    layer = Threshold(sparsity)
    ways = {"by_sample": layer, "by_mean": lambda x: tf.where(x >= threshold, x, 0.0)}
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("threshold", *ways)}
    for begin in range(0, count, AT_ONCE):
        drawn = random.exponential(size=(min(AT_ONCE, count - begin), width)).astype(np.float32)
        found["threshold"].append(-np.partition(-drawn, kept - 1)[:, kept - 1])
        for name, way in ways.items():
            found[name].append(_gradients(tf.constant(drawn), way, weight, targets))
    thresholds = np.concatenate(found.pop("threshold")).astype(np.float64)
    gradients = {name: np.concatenate(each, 1).astype(np.float64) for name, each in found.items()}
    told = {name: [_sampled(of_target) for of_target in each] for name, each in gradients.items()}
    return {"threshold": _sampled(thresholds), **told}


def _gradients(drawn: tf.Tensor, way: Callable[[Any], Any], weight: float, targets: tuple[float, ...]) -> np.ndarray:
    """The derivative of each target's loss by the scale of each sample, [targets, samples]."""
    scales = tf.ones([len(drawn), 1])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(scales)
        output = weight * tf.reduce_sum(way(scales * drawn), 1)
        losses = [0.5 * tf.reduce_sum((output - target) ** 2) for target in targets]
    return np.stack([tape.gradient(loss, scales).numpy()[:, 0] for loss in losses])


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Samples all cases."""
    count, cases = FEW if options.quick else SAMPLES, []
    for width in WIDTHS[:1] if options.quick else WIDTHS:
        for sparsity in SPARSITIES:
            say(f"{width} activations, {sparsity:.0%}")
            cases.append(case(width, sparsity, count, len(cases)))
    return told(cases, count)


def case(width: int, sparsity: float, count: int, seed: int) -> dict[str, Any]:
    """Both sides of one case, exact and sampled."""
    kept, found = kept_of(width, sparsity), sample(width, sparsity, TARGETS, count, seed)
    threshold = mean_threshold(width, kept)
    ways = {"by_sample": by_sample(width, kept), "by_mean": by_mean(width, threshold)}
    weight = 1.0 / ways["by_sample"].mean
    gradients = {name: [way.gradient(weight, target) for target in TARGETS] for name, way in ways.items()}
    distances = [found["threshold"].errors_from(threshold)]
    for name, expected in gradients.items():
        distances += [each.errors_from(value) for each, value in zip(found[name], expected, strict=True)]
    sampled = {name: [each._asdict() for each in found[name]] for name in gradients}
    return {
        "width": width,
        "sparsity": sparsity,
        "threshold": threshold,
        "passing": {name: way.mean / width for name, way in ways.items()},
        "gradients": gradients,
        "sampled": sampled,
        "errors": distances,
    }


def told(cases: list[dict[str, Any]], count: int) -> Section:
    """The table and the verdict."""
    lines = [
        f"Means of {count:,} samples, ± their standard errors, and what they should be; (1) is the mean of what passes "
        "by samples' own thresholds over that by their mean, 1 where the assumption holds.",
        "",
        "| activations | dropped | (1) | target | gradient, own thresholds | should be | gradient, mean threshold "
        "| should be | one over the other |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in cases:
        assumed = each["passing"]["by_sample"] / each["passing"]["by_mean"]
        for number, target in enumerate(TARGETS):
            entries, expected = [], [each["gradients"][name][number] for name in ("by_sample", "by_mean")]
            for name, value in zip(("by_sample", "by_mean"), expected, strict=True):
                found = each["sampled"][name][number]
                entries += [f"{found['mean']:.5f} ± {found['error']:.5f}", f"{value:.5f}"]
            shown = [str(each["width"]), f"{each['sparsity']:.0%}", f"{assumed:.4f}", f"{target:g}", *entries]
            lines.append(f"| {' | '.join(shown)} | {expected[0] / expected[1]:.3f} |")
    lines += [
        "",
        "With a target of 1 what passes is right on average, and the gradient is the variance of the sum alone, of "
        "which (1) says nothing.",
    ]
    distances = [distance for each in cases for distance in each["errors"]]
    what = f"largest of {len(distances)} distances of sampled means from closed forms, in standard errors"
    verdict = Verdict(what, f"<= {MOST:g}", f"{max(distances):.2f}", max(distances) <= MOST)
    return Section(TITLE, lines, {"samples": count, "cases": cases}, [verdict])

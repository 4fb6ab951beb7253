"""The task: a small model learns the characters of Python's own library, on nodes that are threads."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import sysconfig
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence.threads import FlatModel, Rank
from benchmarks.nodes import arms
from benchmarks.studies.sources import fingerprint_of
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.spec import describe
from tests import threads

LENGTH, CHARACTERS, WIDTH, LAYERS, HEADS = 48, 128, 64, 2, 4
FILES, TRAINED = 120, 100
BATCH = 64  # pieces in a step, of all nodes together
RATES = {"transformer": 3e-3, "convolutions": 0.1}  # of Adam, and of SGD with momentum, times that of a run
EVALUATED = 1024


@dataclasses.dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
        arm: a key of `ARMS`.
        model: "transformer", which Adam trains, or "convolutions", which SGD with momentum does.
        nodes: number of nodes N; each takes 64 / N pieces a step.
        steps: of the training, of which the first tenth is warm-up; then the rate falls as a cosine.
        rate: in units of the model's in `RATES`.
        seed: of the weights and of the pieces.
    """

    arm: str
    model: str
    nodes: int
    steps: int
    rate: float
    seed: int = 0

    def fingerprint(self) -> str:
        """What identifies the run, of which the recipe and the sources are part."""
        run = {**dataclasses.asdict(self), "recipe": describe(arms.made(self.arm))}
        return fingerprint_of(run, ["benchmarks/nodes/characters.py"])


@functools.cache
def texts() -> tuple[np.ndarray, np.ndarray]:
    """The characters to train on, and those held out."""
    paths = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:FILES]
    read = [np.frombuffer(path.read_bytes(), np.uint8).clip(0, CHARACTERS - 1).astype(np.int32) for path in paths]
    return np.concatenate(read[:TRAINED]), np.concatenate(read[TRAINED:])


def pieces(text: np.ndarray, random: np.random.Generator, count: int) -> np.ndarray:
    """Random pieces [count, LENGTH + 1] of a text."""
    starts = random.integers(0, len(text) - LENGTH - 1, count)
    return np.stack([text[start : start + LENGTH + 1] for start in starts])


def make_model(name: str) -> keras.Model:
    """A Transformer of 117,000 parameters, or dilated convolutions of 83,000."""
    layers = keras.layers
    ids = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(CHARACTERS, WIDTH)(ids) + layers.Embedding(LENGTH, WIDTH)(keras.ops.arange(LENGTH)[None])
    x = {"transformer": _attended, "convolutions": _convolved}[name](x)
    return keras.Model(ids, layers.Dense(CHARACTERS)(layers.LayerNormalization()(x)))


def _attended(x: Any) -> Any:
    layers = keras.layers
    for _ in range(LAYERS):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normed, normed, use_causal_mask=True)
        normed = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(normed))
    return x


def _convolved(x: Any) -> Any:
    layers = keras.layers
    for dilation in (1, 2, 4, 8):
        near = layers.Conv1D(WIDTH, 3, padding="causal", dilation_rate=dilation, activation="relu")
        x = x + layers.Conv1D(WIDTH, 1)(near(layers.LayerNormalization()(x)))
    return x


def train(run: Run) -> dict[str, Any]:
    """Trains; returns the bits a character on held-out text, and the bytes that a node sends in a step.

    Raises:
        AssertionError: if the nodes do not end with the same weights.
    """
    keras.utils.clear_session()
    keras.utils.set_random_seed(run.seed)
    model, recipe = make_model(run.model), arms.made(run.arm)
    flat = FlatModel(model, recipe.sends_all)
    everyone = threads.grids(run.nodes, 1, in_order=False)
    ranks = [Rank(grid, flat.packed(), functools.partial(_optimizer, run, recipe)) for grid in everyone]
    threads.run_on(everyone, lambda grid: ranks[grid.world.rank].agree())
    gradient, signature = _gradient(flat, BATCH // run.nodes)
    for each in ranks:
        each.compile(gradient, signature)

    def taken(grid: Any) -> None:
        random = np.random.default_rng([run.seed, grid.world.rank])
        drawn = (pieces(texts()[0], random, BATCH // run.nodes) for _ in range(run.steps))
        ranks[grid.world.rank].train(0, ([tf.constant(each)] for each in drawn))

    threads.run_on(everyone, taken)
    ends = [[each.numpy() for each in rank.weights] for rank in ranks]
    assert all(np.array_equal(*pair) for end in ends for pair in zip(end, ends[0], strict=True)), "nodes differ"
    flat.assign(ends[0])
    sent = sum(rank.telemetry.total_bytes_across for rank in ranks) / run.nodes / run.steps
    return {"bits": _bits(model), "sent": sent, "parameters": int(sum(each.size for each in ends[0]))}


def _optimizer(run: Run, recipe: Aggregator, telemetry: hvd.Telemetry) -> Any:
    warm = run.steps // 10
    peak = RATES[run.model] * run.rate
    rate = keras.optimizers.schedules.CosineDecay(1e-5, run.steps - warm, warmup_target=peak, warmup_steps=warm)
    adam = run.model == "transformer"
    optimizer = keras.optimizers.Adam(rate) if adam else keras.optimizers.SGD(rate, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, aggregator=recipe, telemetry=telemetry)


def _loss(model: keras.Model, values: Any, batch: Any) -> tf.Tensor:
    logits, _ = model.stateless_call(values, [], batch[:, :-1])
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(batch[:, 1:], logits)


def _gradient(flat: FlatModel, count: int) -> tuple[Any, list[tf.TensorSpec]]:
    """The compiled gradient of the flat weights for pieces [count, LENGTH + 1], and their signature."""

    def gradient(vectors, batch):
        return flat.gradients(vectors, lambda values: _loss(flat.model, values, batch))

    begin = [tf.TensorSpec(each.shape, tf.float32) for each in flat.packed()]
    signature = [tf.TensorSpec([count, LENGTH + 1], tf.int32)]
    return tf.function(gradient, autograph=False).get_concrete_function(begin, *signature), signature


def _bits(model: keras.Model) -> float:
    """Bits a character on pieces of the held-out text, the same for all runs."""
    values = [each.value for each in model.trainable_variables]
    held_out = pieces(texts()[1], np.random.default_rng(9), EVALUATED)
    losses = [float(_loss(model, values, tf.constant(part))) for part in np.split(held_out, EVALUATED // BATCH)]
    return float(np.mean(losses)) / math.log(2)

"""What each rank of bench_accuracy.py does: trains a large network from scratch, or times its steps.

All arms start from the same weights and see the same crops in the same order, with the same noise.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import time
from typing import Any

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence import data as convergence_data
from benchmarks.exchange import arm_recipes
from examples.models.images import Images, resnet50
from examples.models.small import small_resnet
from hvd_sparse import topology

HOROVOD, HOROVOD_FP16, TORUS_FP16, RECOMMENDED = "Horovod", "Horovod-fp16", "torus2d-fp16", "recommended"
DENSE = (HOROVOD, HOROVOD_FP16, TORUS_FP16)  # send the whole gradient
ARMS = (*DENSE, RECOMMENDED)
COMPRESSIONS = {HOROVOD: horovod.Compression.none, HOROVOD_FP16: horovod.Compression.fp16}
DENSITY = 0.01  # of recipes that take one
WIDTH, BATCH = 0.5, 16
TRAINING, HELD_OUT = 8192, 2048  # crops
NOISE, DECAY, MOMENTUM = 0.1, 5e-4, 0.9
RATE, WARM_UP = 0.1, 0.1  # the highest learning rate, and the share of the training until it is reached
EVALUATED = 256  # crops at a time
WARM, BLOCK = 3, 4  # steps that are not counted, and consecutive steps of one arm


def half_resnet50(classes: int) -> keras.Model:
    """The ResNet-50 of half the width of bench_train.py, for grey crops; 5.9M parameters with 20 classes."""
    grey = keras.Input((convergence_data.SIDE, convergence_data.SIDE, 1))
    network = resnet50(Images(WIDTH, convergence_data.SIDE, BATCH, classes), last_gamma="zeros")
    return keras.Model(grey, network(keras.layers.Concatenate()([grey] * 3)))


MODELS = {"resnet50": half_resnet50, "small_resnet": small_resnet}


@functools.cache
def _crops(half: str, count: int) -> convergence_data.Crops:
    """Crops of one half, the same for all learners."""
    return convergence_data.crops(half, count, 0)


class Learner:
    """A model, its optimizer and its exchange.

    Args:
        arm: `HOROVOD` or `HOROVOD_FP16`, whose tape averages dense gradients, or the name of a recipe, by
            exchange/arm_recipes.py.
        model: one of `MODELS`.
        seed: for weights, order and noise.
        steps: length of the whole training, over which the learning rate falls.
    """

    def __init__(self, arm: str, model: str, seed: int, steps: int):
        self._data = _crops("left", TRAINING)
        held_out = _crops("right", HELD_OUT)
        noisy = convergence_data.noisy(held_out.images, NOISE, np.random.default_rng(1))
        self._held_out = held_out._replace(images=noisy).part(hvd.rank(), hvd.size())
        keras.utils.set_random_seed(seed)
        self.model = MODELS[model](int(self._data.labels.max()) + 1)
        self._order, self._noise = np.random.default_rng(seed), np.random.default_rng([seed, hvd.rank()])
        warm_up = int(WARM_UP * steps)
        rate = keras.optimizers.schedules.CosineDecay(0.0, steps - warm_up, warmup_target=RATE, warmup_steps=warm_up)
        optimizer: Any = keras.optimizers.SGD(rate, MOMENTUM)
        self._compression = COMPRESSIONS.get(arm)
        if self._compression is None:
            optimizer = hvd.DistributedOptimizer(optimizer, aggregator=arm_recipes.recipe(arm, DENSITY))
        self._optimizer = optimizer
        self._optimizer.build(self.model.trainable_variables)
        images = tf.TensorSpec([BATCH, convergence_data.SIDE, convergence_data.SIDE, 1])
        self._update = tf.function(self._updated).get_concrete_function(images, tf.TensorSpec([BATCH], tf.int32))
        self._right = tf.function(self._counted)

    def step(self) -> float:
        """Takes one step; returns its seconds, its batch included."""
        began = time.perf_counter()
        chosen = self._order.integers(TRAINING, size=[hvd.size(), BATCH])[hvd.rank()]
        images = convergence_data.noisy(self._data.images[chosen], NOISE, self._noise)
        float(self._update(tf.constant(images), tf.constant(self._data.labels[chosen])))
        return time.perf_counter() - began

    def accuracy(self) -> float:
        """The accuracy on the held-out crops, shared among ranks, with averaged batch normalisation statistics."""
        world, right = topology.world(), 0.0
        for number, variable in enumerate(self.model.non_trainable_variables):
            if variable.dtype == "float32":
                variable.assign(world.allreduce(variable.value, "sum", f"accuracy.statistics.{number}") / world.size)
        for begin in range(0, len(self._held_out.labels), EVALUATED):
            part = slice(begin, begin + EVALUATED)
            right += float(self._right(self._held_out.images[part], self._held_out.labels[part]))
        return float(world.allreduce(tf.constant(right), "sum", "accuracy.right")) / HELD_OUT

    def _updated(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self.model.trainable_variables
        values = [variable.value for variable in variables]
        with hvd.looking_ahead(self._optimizer), tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            loss += DECAY * tf.add_n([tf.nn.l2_loss(value) for value in values if len(value.shape) > 1])
        if self._compression is not None:
            tape = horovod.DistributedGradientTape(tape, compression=self._compression)
        self._optimizer.apply(tape.gradient(loss, values), variables)
        return loss

    def _counted(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = self.model(images, training=False)
        return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), labels), tf.float32))


def train(arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """A whole training: the accuracy curve by steps, with the slowest rank's seconds up to each evaluation."""
    learner = Learner(arm, options.model, options.seed, options.steps)
    curve, seconds = [], {"steps": [], "looks": []}
    for number in range(1, options.steps + 1):
        seconds["steps"].append(learner.step())
        if number % options.every:
            continue
        began = time.perf_counter()
        accuracy = learner.accuracy()
        seconds["looks"].append(time.perf_counter() - began)
        curve.append((number, _slowest(sum(map(sum, seconds.values()))), accuracy))
        if hvd.rank() == 0:
            print(f"{arm}, seed {options.seed}: step {number} of {options.steps}, accuracy {accuracy:.3f}", flush=True)
    medians = {what: _slowest(float(np.median(each))) for what, each in seconds.items()}
    parameters = learner.model.count_params()
    return {"arm": arm, "seed": options.seed, "curve": curve, "seconds": medians, "parameters": parameters}


def times(options: argparse.Namespace) -> dict[str, list[float]]:
    """The slowest rank's seconds of each step, by arm; blocks of the arms take turns."""
    learners = {arm: Learner(arm, options.model, options.seed, options.steps) for arm in ARMS}
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for learner in learners.values():
        for _ in range(WARM):
            learner.step()
    for _ in range(options.blocks):
        for arm, learner in learners.items():
            found[arm] += [_slowest(learner.step()) for _ in range(BLOCK)]
    return found


def _slowest(seconds: float) -> float:
    return float(topology.world().allreduce(tf.constant(seconds, tf.float64), "max", "accuracy.seconds"))


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=pathlib.Path, help="file in which the first rank writes the measurements")
    parser.add_argument("--local", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1024, help="steps of a full training (default: %(default)s)")
    parser.add_argument(
        "--every", type=int, default=64, help="steps between evaluations on held-out crops (default: %(default)s)"
    )
    parser.add_argument("--blocks", type=int, default=0, help=f"number of blocks of {BLOCK} steps to time; 0 trains")
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=options.local)
    measured = times(options) if options.blocks else [train(arm, options) for arm in ARMS]
    if hvd.rank() == 0:
        options.path.write_text(json.dumps(measured))
    hvd.shutdown()


if __name__ == "__main__":
    main()

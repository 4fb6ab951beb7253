"""What one rank does for steps.py: python -m benchmarks.averaging.rank JOB RESULTS.

JOB is a JSON file: {"rate": bits per second of a rank, "offload": whether the system segments and joins datagrams,
"meeting": path of a file, "parts": [...]}, with parts as `averaging_steps.Steps` and `averaging_steps.Training`. Rank 0
writes RESULTS: for each part, by name, what every rank reports.

Every result is checked, outside the timed section. Without loss it is the mean of all vectors, with datagrams to the
bit. After a round with loss each value of a rank lies between the smallest and the largest of all vectors, or is its
own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange.arms import horovod_allreduce
from benchmarks.exchange.rank import job_and_results, sent_bytes, write_json
from benchmarks.reporting import timing
from examples import digits
from hvd_sparse.averaging.blocks import Blocks

HOROVOD, DATAGRAMS = "Horovod", "datagrams"
ARMS = (HOROVOD, DATAGRAMS)
_NEAR = 1e-5  # tolerance for a mean that is summed in another order
_LOOK = 2e-4  # seconds between two checks of which ranks have come


class Meeting:
    """A barrier that can also add up a number over ranks, by a file, so that no link is used."""

    def __init__(self, path: str, rank: int, ranks: int):
        """Opens a file of zeros, [2, ranks] int64."""
        self._there, self._told = np.memmap(path, np.int64, "r+", shape=(2, ranks))
        self._rank = rank

    def __call__(self) -> None:
        """Returns when all ranks have come as often as this one."""
        self._there[self._rank] += 1
        while self._there.min() < self._there[self._rank]:
            time.sleep(_LOOK)

    def add(self, own: int) -> int:
        """The sum of all ranks' numbers."""
        self._told[self._rank] = own
        self()
        total = int(self._told.sum())
        self()
        return total


class Vectors:
    """This rank's vector, and checks of the average over all ranks.

    Attributes:
        own: [d] float32.
    """

    def __init__(self, size: int, rank: int, ranks: int):
        self.own = _vector(size, rank)
        self._blocks = Blocks(size, ranks)
        self._low, self._high, self._mean = self.own.copy(), self.own.copy(), _vector(size, 0)
        for other in range(ranks):
            vector = _vector(size, other)
            np.minimum(self._low, vector, out=self._low)
            np.maximum(self._high, vector, out=self._high)
            if other > 0:
                self._mean += vector
        self._mean /= np.float32(ranks)

    def require_mean(self, result: np.ndarray) -> None:
        """Checks a mean that may have been summed in another order."""
        if not np.abs(result - self._mean).max() < _NEAR:
            raise AssertionError("Horovod's result is not the mean of all vectors.")

    def require_averaged(self, result: np.ndarray, lost: int, came: np.ndarray, segment: int) -> None:
        """Checks the result of a round by datagrams.

        Args:
            result: [d].
            lost: number of segments that did not arrive at some rank.
            came: [P, maximum segments per block] bool, by block: whether this rank has the mean of a segment.
            segment: elements per segment.
        """
        if lost == 0:
            if not np.array_equal(result, self._mean):
                raise AssertionError("Nothing was lost, but the result is not bit for bit the mean of all vectors.")
            return
        slack = np.float32(_NEAR)
        if (result < self._low - slack).any() or (result > self._high + slack).any():
            raise AssertionError("The result of a round with loss is not a mean of some ranks' vectors.")
        length = self._blocks.length
        kept = np.concatenate([np.repeat(~of_block, segment)[:length] for of_block in came])[: len(result)]
        if not np.array_equal(result[kept], self.own[kept]):
            raise AssertionError("A rank that received no mean does not have its own vector there.")


def _vector(size: int, rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(size, np.float32)


class Used(NamedTuple):
    """The cost of a call on a rank: seconds, processor seconds of all threads, bytes that its interface sent."""

    seconds: float
    processor: float
    sent: int


def measured(run: Callable[[], Any], meet: Callable[[], None]) -> tuple[Any, Used]:
    """Makes a call when all ranks are ready; returns its result and its cost."""
    meet()
    processor, sent, began = time.process_time(), sent_bytes(), time.perf_counter()
    result = run()
    seconds = time.perf_counter() - began
    processor = time.process_time() - processor
    meet()
    return result, Used(seconds, processor, sent_bytes() - sent)


class Rivals:
    """Both arms of a part, on the same vector."""

    def __init__(self, part: dict, job: dict, meet: Meeting):
        world = hvd.topology.world()
        self._vectors, self._meet = Vectors(part["size"], world.rank, world.size), meet
        self._vector = tf.constant(self._vectors.own)
        self._allreduce = horovod_allreduce()
        self._channel = _transport(job).open(part["size"], world, True, part["name"])
        self._average = tf.function(self._channel.average, autograph=False, jit_compile=False)
        self._round = 0

    def step(self, arm: str) -> dict[str, Any]:
        """Makes one step of an arm and checks it; returns its cost and, for datagrams, losses and phases."""
        return self._by_horovod() if arm == HOROVOD else self._by_datagrams()

    def close(self) -> None:
        self._channel.close()

    def _by_horovod(self) -> dict[str, Any]:
        (result,), used = measured(lambda: self._allreduce(self._vector), self._meet)
        self._vectors.require_mean(result.numpy())
        return used._asdict()

    def _by_datagrams(self) -> dict[str, Any]:
        round, self._round = tf.constant(self._round, tf.int64), self._round + 1
        averaged, used = measured(lambda: self._average(self._vector, round), self._meet)
        told, recorded = self._channel.report(), self._channel.recorded()
        expected, arrived = (int(counts.numpy().sum()) for counts in (averaged.expected, averaged.arrived))
        lost = self._meet.add(expected - arrived)
        self._vectors.require_averaged(averaged.vector.numpy(), lost, recorded.came, recorded.segment)
        return {
            **used._asdict(),
            "expected": expected,
            "arrived": arrived,
            "phases": [told["reduce_scatter"], told["all_gather"]],
            "waited": told["waited"],
        }


def run_steps(part: dict, job: dict, meet: Meeting) -> dict[str, list[dict[str, Any]]]:
    """Makes steps of both arms in turn, after an uncounted one of each; returns this rank's report on each step."""
    rivals = Rivals(part, job, meet)
    told: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for number in range(-1, part["rounds"]):
        for arm in timing.shuffled(ARMS, number):
            step = rivals.step(arm)
            if number >= 0:
                told[arm].append(step)
    meet()
    rivals.close()
    return told


def run_training(part: dict, job: dict, meet: Meeting) -> dict[str, Any]:
    """Trains on the digits with each seed; returns the score of the mean of all models, the seconds, and the losses."""
    data = digits.load(seed=0)
    model, telemetry = digits.make_model(), hvd.averaging.Telemetry()
    optimizer = hvd.averaging.ModelAveraging(keras.optimizers.SGD(part["step"]), _transport(job), telemetry=telemetry)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    scores, seconds = [], []
    for seed in range(part["seeds"]):
        keras.utils.set_random_seed(seed)
        model.set_weights(digits.make_model().get_weights())
        began = time.perf_counter()
        _train(model, *digits.share(data, hvd.rank(), hvd.size()), part, np.random.default_rng([seed, hvd.rank()]))
        seconds.append(time.perf_counter() - began)
        with hvd.averaging.mean(model):
            _, accuracy = model.evaluate(data.test_images, data.test_labels, batch_size=1024, verbose=0)
        scores.append(100.0 * accuracy)
    lost = telemetry.read()["total_lost"]
    meet()
    hvd.averaging.close(optimizer)
    return {"scores": scores, "seconds": seconds, "lost": lost}


def _train(model: keras.Model, images: np.ndarray, labels: np.ndarray, part: dict, random: np.random.Generator) -> None:
    for _ in range(part["epochs"]):
        order = random.permutation(len(labels))
        for at in range(0, len(order) - part["batch"] + 1, part["batch"]):
            chosen = order[at : at + part["batch"]]
            model.train_on_batch(images[chosen], labels[chosen])


def _transport(job: dict) -> hvd.averaging.Datagrams:
    return hvd.averaging.Datagrams("eth0", rate=job["rate"], offload=job["offload"])


def main() -> None:
    job, path = job_and_results(__doc__)
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=1)
    meet = Meeting(job["meeting"], hvd.rank(), hvd.size())
    makers = {"steps": run_steps, "training": run_training}
    results = {}
    for part in job["parts"]:
        own = makers[part["kind"]](part, job, meet)
        results[part["name"]] = hvd.topology.world().gather_descriptions(own, "part")
        if hvd.rank() == 0:
            write_json(path, results)


if __name__ == "__main__":
    main()

"""What one rank does for training.py: python -m benchmarks.dct.rank JOB RESULTS.

JOB is a JSON file: {"trainers": 2, "stages": 2, "batch": B, "micro": M, "steps": n, "rounds": [[arm, ...], ...]}, with
arms as `dct_training.Arm` or, if they have a "row_wire", `dct_training.Sharded`. Rank 0 writes RESULTS: for each arm of
each round what every rank did. At the end, ranks that should have the same weights compare them.
"""

from __future__ import annotations

import time
import zlib
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange.rank import Clock, job_and_results, sent_bytes, write_json
from examples.recommenders.dlrm import BOTTOM, dlrm

FEATURES, TABLES, ROWS = 13, 26, 4096
AFTER = {2: ["bottom_2"], 3: ["bottom_2", "top_2"]}
BATCHES = 8  # different ones
WARM = 3  # steps that do not count
NEVER = 2**31 - 1  # steps until telemetry computes a norm of gradients


def made_up(batch: int, seed: int) -> tuple[dict[str, Any], Any]:
    """A synthetic batch in Criteo's form; few categories are frequent, and most are rare."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal((batch, FEATURES), np.float32)
    categories = np.minimum(random.zipf(1.3, (batch, TABLES)) - 1, ROWS - 1).astype(np.int32)
    labels = (numbers[:, 0] + 0.1 * (categories[:, 0] % 7) > 0.3).astype(np.float32)
    return {"numbers": tf.constant(numbers), "categories": tf.constant(categories)}, tf.constant(labels[:, None])


class Trained(Protocol):
    """One arm's model, and its batches."""

    losses: list[float]

    def step(self, number: int) -> None:
        """One step, as `fit` makes it."""

    def begin(self) -> None:
        """Forgets the metrics so far, as `fit` does at the end of an epoch."""

    def split_bytes(self) -> int:
        """Payload bytes of activations and their gradients that this rank has sent."""

    def embedding_bytes(self, number: int) -> int:
        """Payload bytes of embeddings, their gradients and their row numbers that this rank sends in a step."""

    def gradient_bytes(self) -> int:
        """Payload bytes of the gradients of all other variables that this rank has sent."""

    def own_weights(self) -> bytes:
        """The weights that other ranks hold as well."""

    def others(self) -> list[int]:
        """The ranks that hold the same weights."""


class InStages:
    """DLRM in stages, with whole tables."""

    def __init__(self, arm: dict, job: dict, grid: hvd.pipeline.Grid):
        whole = dlrm(FEATURES, [ROWS] * TABLES)
        parts = hvd.pipeline.split(whole, AFTER[grid.stages])
        self._model = hvd.pipeline.Stages(
            parts, job["micro"], sparsity=arm["sparsity"], wire_dtype=arm["wire"], grid=grid
        )
        self._telemetry = hvd.Telemetry(norms_every=NEVER)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1),
            aggregator=recipe_of(arm),
            process_set=grid.process_set,
            telemetry=self._telemetry,
        )
        self._model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
        self._grid = grid
        trainer = grid.trainer_of(hvd.rank())
        self._batches = [made_up(job["batch"], 100 * trainer + number) for number in range(BATCHES)]
        self._row_bytes = 0  # sent so far
        self.losses: list[float] = []

    def step(self, number: int) -> None:
        """See `Trained`; the loss is the mean since `begin`."""
        self.losses.append(float(self._model.train_step(self._batches[number % BATCHES])["loss"]))
        self._row_bytes += self.embedding_bytes(number)

    def begin(self) -> None:
        """See `Trained`."""
        self._model.reset_metrics()

    def split_bytes(self) -> int:
        """See `Trained`."""
        told = self._model.telemetry()
        return told["activation_bytes"] + told["gradient_bytes"]

    def embedding_bytes(self, number: int) -> int:
        """The rows that a trainer's batch has touched go to the other trainers, each with its number."""
        if self._model.stage < self._model.stages - 1:
            return 0  # the tables are in the last one
        touched = len(np.unique(row_numbers(self._batches[number % BATCHES])))
        return (self._grid.trainers - 1) * touched * 4 * (1 + BOTTOM[-1])

    def gradient_bytes(self) -> int:
        """See `Trained`; telemetry counts the rows as well."""
        return self._telemetry.total_bytes_across - self._row_bytes

    def own_weights(self) -> bytes:
        """See `Trained`."""
        return b"".join(each.numpy().tobytes() for each in self._model.weights)

    def others(self) -> list[int]:
        """See `Trained`."""
        return self._grid.ranks_of_stage(self._model.stage)


class WithShardedTables:
    """DLRM on all ranks, each with its share of the samples, and of the rows of all tables."""

    def __init__(self, arm: dict, job: dict, grid: hvd.pipeline.Grid):
        self._tables = hvd.pipeline.ShardedTables([ROWS] * TABLES, BOTTOM[-1], wire_dtype=arm["row_wire"])
        self._model = with_tables(self._tables)
        self._telemetry = hvd.Telemetry(norms_every=NEVER)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1),
            aggregator=recipe_of(arm),
            local_layers=[self._tables],
            telemetry=self._telemetry,
        )
        self._model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False)
        rows = job["batch"] * grid.trainers // grid.size
        self._batches = [[made_up(rows, 100 * rank + number) for number in range(BATCHES)] for rank in range(grid.size)]
        self._value_bytes = tf.as_dtype(arm["row_wire"]).size
        self.losses: list[float] = []

    def step(self, number: int) -> None:
        """See `Trained`; the loss is the mean since `begin`."""
        inputs, labels = self._batches[hvd.rank()][number % BATCHES]
        self.losses.append(float(self._model.train_on_batch(inputs, labels)))

    def begin(self) -> None:
        """See `Trained`."""
        self._model.reset_metrics()

    def split_bytes(self) -> int:
        """Zero: each rank computes the whole model."""
        return 0

    def embedding_bytes(self, number: int) -> int:
        """As `ShardedTables` tells it: the numbers of rows, rows that others look up here, and gradients of theirs."""
        world, own = hvd.size(), hvd.rank()
        wanted = [np.unique(row_numbers(batches[number % BATCHES])) % world for batches in self._batches]
        elsewhere = int(np.sum(wanted[own] != own))
        of_others = sum(int(np.sum(each == own)) for rank, each in enumerate(wanted) if rank != own)
        return 4 * (world - 1 + elsewhere) + (elsewhere + of_others) * BOTTOM[-1] * self._value_bytes

    def gradient_bytes(self) -> int:
        """See `Trained`."""
        return self._telemetry.total_bytes_across

    def own_weights(self) -> bytes:
        """See `Trained`; each row is on a single rank."""
        return b"".join(each.numpy().tobytes() for each in self._model.weights if each is not self._tables.shard)

    def others(self) -> list[int]:
        """See `Trained`."""
        return list(range(hvd.size()))


def recipe_of(arm: dict) -> Any:
    """How an arm's gradients are exchanged."""
    return hvd.recipes.dense() if arm["density"] is None else hvd.recipes.dct(sparsity=1.0 - arm["density"])


def with_tables(tables: hvd.pipeline.ShardedTables) -> keras.Model:
    """DLRM with embeddings looked up in these tables."""
    whole = dlrm(FEATURES, [1] * TABLES)  # whole tables are never there
    inputs = [keras.Input(each.shape[1:], dtype=each.dtype, name=each.name) for each in whole.inputs]
    vectors = tables(inputs[1])
    order = {f"table_{number + 1}": number for number in range(TABLES)}

    def called(layer: Any, *given: Any, **how: Any) -> Any:
        return vectors[:, order[layer.name]] if layer.name in order else layer(*given, **how)

    return keras.models.clone_model(whole, inputs, clone_function=lambda own: own, call_function=called)


def row_numbers(batch: tuple[dict[str, Any], Any]) -> np.ndarray:
    """The rows that a batch looks up, numbered consecutively over all tables."""
    return batch[0]["categories"].numpy() + ROWS * np.arange(TABLES)


def check(trained: Trained, name: str) -> None:
    """Checks that the loss falls, and that ranks that should hold the same weights do.

    Raises:
        AssertionError: on every rank, if not.
    """
    losses = trained.losses
    told = hvd.topology.world().gather_descriptions(zlib.crc32(trained.own_weights()), "weights")
    if not np.mean(losses[-5:]) < np.mean(losses[:5]):
        raise AssertionError(f"{name}: the loss does not fall: {losses}")
    if len({told[rank] for rank in trained.others()}) > 1:
        raise AssertionError(f"{name}: ranks {trained.others()} differ in what they are to have alike: {told}")


def run_arm(trained: Trained, steps: int, clock: Clock) -> dict[str, Any]:
    """Seconds, bytes by the interface and by kind, and processor time of some steps."""
    trained.begin()
    clock.meet()
    split, gradients = trained.split_bytes(), trained.gradient_bytes()
    processor, before = time.process_time(), sent_bytes()
    began = time.monotonic()
    for number in range(steps):
        trained.step(number)
    seconds = time.monotonic() - began
    clock.meet()
    return {
        "steps": steps,
        "seconds": seconds,
        "processor": time.process_time() - processor,
        "counted": sent_bytes() - before,
        "split": trained.split_bytes() - split,
        "embeddings": sum(trained.embedding_bytes(number) for number in range(steps)),
        "gradients": trained.gradient_bytes() - gradients,
    }


def main() -> None:
    job, path = job_and_results(__doc__)
    tf.get_logger().setLevel("ERROR")
    grid = hvd.pipeline.Grid(job["trainers"], job["stages"])
    hvd.init(process_sets=grid.process_sets, local_size=1)
    clock = Clock()
    arms: dict[str, Trained] = {
        arm["name"]: (WithShardedTables if "row_wire" in arm else InStages)(arm, job, grid) for arm in job["rounds"][0]
    }
    for trained in arms.values():
        for number in range(WARM):
            trained.step(number)
    results = []
    for order in job["rounds"]:
        for arm in order:
            own = run_arm(arms[arm["name"]], job["steps"], clock)
            results.append({"arm": arm["name"], "ranks": hvd.topology.world().gather_descriptions(own, "arm")})
    for name, trained in arms.items():
        check(trained, name)
    if hvd.rank() == 0:
        write_json(path, results)


if __name__ == "__main__":
    main()

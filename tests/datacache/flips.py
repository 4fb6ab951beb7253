"""Flips single bits of checkpoints of `DataCache.training` and checks what is loaded, on 1 and on 3 ranks.

    .venv/bin/python -m tests.datacache.flips 300

Each trial is determined by its number. It passes if all ranks resume from the same checkpoint and model, optimizer and
position equal the saved ones bit for bit. It uses only public names, so it can also run against other commits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

import datacache
from tests.parallel.launch import horovodrun

COUNT, BATCH, SAVED = 40, 5, (3, 6)  # SAVED: the batches after which a checkpoint is saved
LIMIT = 900  # seconds per launch


def cache_in(folder: Path, world: datacache.World) -> datacache.DataCache:
    """A cache whose samples are numbers."""
    source = datacache.Indexed(lambda index: np.int64(index).tobytes(), COUNT, "numbers", labels=range(COUNT))
    options: dict[str, Any] = {"memory_bytes": 0, "world": world}
    return datacache.DataCache(source, lambda payload: np.frombuffer(payload, np.int64), folder, **options)


def built() -> keras.Model:
    """A model whose file consists mostly of weights and momentum."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([1], dtype="int64"), keras.layers.Embedding(COUNT, 50)])
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(50))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
    return model


def state(model: keras.Model) -> list[str]:
    """The bits that were saved or loaded."""
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(each.numpy()).tobytes().hex() for each in variables]


class Look(keras.callbacks.Callback):
    """Records the model's state when it is saved, and stops after the last checkpoint."""

    def __init__(self, seen: dict[int, list[str]]):
        super().__init__()
        self.seen = seen

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 in SAVED:
            self.seen[(batch + 1) * BATCH] = state(self.model)
        if batch + 1 == SAVED[-1]:
            raise KeyboardInterrupt


def save(folder: Path) -> dict[int, list[str]]:
    """Trains until there are two checkpoints; returns the model's state by position."""
    seen: dict[int, list[str]] = {}
    with cache_in(folder / "cache-whole", datacache.World()) as cache:
        training = cache.training(folder / "whole", BATCH, save_every=SAVED[0])
        try:
            built().fit(
                training.dataset(),
                steps_per_epoch=training.steps_per_epoch,
                callbacks=[training, Look(seen)],
                verbose=0,
            )
        except KeyboardInterrupt:
            pass
    assert len(list((folder / "whole").iterdir())) == len(SAVED)
    return seen


def load(directory: Path, cache: datacache.DataCache, model: keras.Model, broadcast: Any) -> tuple[int, list[str]]:
    """The position and state with which a resumed script begins its first batch."""
    for variable in (*model.variables, *model.optimizer.variables):
        variable.assign(np.zeros(variable.shape))
    training = cache.training(directory, BATCH, save_every=SAVED[0], broadcast=broadcast)
    training.set_model(model)
    training.set_params({"steps": training.steps_per_epoch})
    training.on_train_begin()
    return training.epoch * COUNT + training.position, state(model)


def trial(number: int, folder: Path, own: Path) -> Path:
    """Makes a copy of the checkpoints for one rank, with one bit of the newest flipped."""
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(folder / "whole", own)
    newest = max(own.iterdir())
    content = bytearray(newest.read_bytes())
    position = int(np.random.default_rng([number, 3]).integers(8 * len(content)))
    content[position // 8] ^= 1 << position % 8
    newest.write_bytes(bytes(content))
    return own


def loads(folder: Path, count: int) -> None:
    """Runs on a rank: for each trial it writes what it has loaded, or the error that was raised."""
    rank, ranks = (int(os.environ.get(f"HOROVOD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
    if ranks > 1:
        import horovod.tensorflow as hvd

        hvd.init()
    model, told = built(), []
    model.optimizer.build(model.trainable_variables)
    with cache_in(folder / f"cache-{rank}", datacache.World(rank, ranks)) as cache:
        for number in range(count):
            broadcast = hvd.broadcast_object if ranks > 1 and number % 2 else None  # None: each rank reads for itself
            directory = trial(number, folder, folder / f"flipped-{rank}")
            try:
                told.append(load(directory, cache, model, broadcast))
            except Exception as error:
                told.append((-1, [f"{type(error).__name__}: {error}"]))
    (folder / f"loaded-{ranks}-{rank}.json").write_text(json.dumps(told))


def run(count: int, ranks: int) -> list[str]:
    """Runs the trials; returns error messages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = save(folder)
        if ranks == 1:
            loads(folder, count)
        else:
            ended = horovodrun(ranks, ["-m", "tests.datacache.flips", str(count), "--within", name], LIMIT)
            assert ended.status == 0, ended.output
        told = [json.loads((folder / f"loaded-{ranks}-{rank}.json").read_text()) for rank in range(ranks)]
    wrong = []
    for number, outcomes in enumerate(zip(*told, strict=True)):
        if any(each != outcomes[0] for each in outcomes):
            wrong.append(f"flip {number}: ranks differ, positions {[position for position, _ in outcomes]}")
        position, loaded = outcomes[0]
        if seen.get(position) != loaded:
            what = loaded[0] if position < 0 else f"wrong weights at position {position}"
            wrong.append(f"flip {number}: {what}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Flips bits of checkpoints, and loads them.")
    parser.add_argument("count", type=int, help="how many flips")
    parser.add_argument("--within", type=Path, help="what a rank is told: the folder of the checkpoints")
    options = parser.parse_args()
    if options.within is not None:
        loads(options.within, options.count)
        return 0
    found = 0
    for ranks in (1, 3):
        wrong = run(options.count, ranks)
        found += len(wrong)
        print(*wrong, f"{options.count} flips, {ranks} ranks: {len(wrong)} failures", sep="\n", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

"""A rank that trains until another one is harmed: python -m tests.faults.mortal_rank FOLDER --harm kill --rank 3.

How its script ends goes to FOLDER/end.rankR.json: the type and the text of the error, and the time.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import sys
import time

HARMS = ("kill", "stop", "raise", "exit", "finish", "none")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--harm", choices=HARMS, default="none")
    parser.add_argument("--rank", type=int, default=-1, help="the rank that is harmed (default: none)")
    parser.add_argument("--step", type=int, default=8, help="the step of fit before which that happens")
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument(
        "--recipe", default="dense", help="dense (default), a recipe, servers, lone_servers, datagrams, or tape"
    )
    parser.add_argument("--checkpoints", help="the directory of checkpoints (default: none are saved)")
    parser.add_argument("--before", default="", help="before init: sleep:RANK:SECONDS, fail:RANK or vanish:RANK")
    options = parser.parse_args()
    rank = int(os.environ["HOROVOD_RANK"])
    end = {"error": None, "text": "", "finally": False}
    try:
        try:
            before(rank, options.before)
            train(rank, options)
        finally:
            end["finally"] = True
    except BaseException as error:
        end |= {"error": type(error).__name__, "text": str(error)}
        raise
    finally:
        end["at"] = time.time()
        written(options.folder / f"end.rank{rank}.json", json.dumps(end))


def before(rank: int, what: str) -> None:
    """Does harm before `init`."""
    kind, _, rest = what.partition(":")
    if kind and rank == int(rest.partition(":")[0]):
        if kind == "fail":
            raise OSError("the data are not there")
        if kind == "vanish":  # after all ranks have met, and before they connect
            import horovod.tensorflow

            horovod.tensorflow.init = lambda **_: os._exit(0)
            return
        time.sleep(float(rest.partition(":")[2]))


def train(rank: int, options: argparse.Namespace) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import hvd_sparse as hvd
    from hvd_sparse.transport import process_sets

    hvd.init()
    print("process sets can be added:", process_sets.is_dynamic(), flush=True)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(256), keras.layers.Dense(2)])

    class Harm(keras.callbacks.Callback):
        """Does this rank harm before a step, and notes when it has begun."""

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                written(options.folder / f"began.rank{rank}", "")
            if batch == options.step and rank == options.rank:
                harm(options.folder, options.harm)
            time.sleep(0.01)

    data = tf.data.Dataset.from_tensors((np.ones((4, 16), "f4"), np.ones((4, 2), "f4"))).repeat()
    if options.recipe == "tape":
        with_a_tape(hvd, model, data, Harm(), options.steps)
        return
    model.compile(optimizer_of(hvd, keras.optimizers.SGD(1e-4, momentum=0.9), options.recipe), "mse")
    saving = (
        hvd.callbacks.ServersCheckpointCallback if options.recipe == "servers" else hvd.callbacks.CheckpointCallback
    )
    callbacks = [Harm(), *([saving(options.checkpoints)] if options.checkpoints else [])]
    model.fit(data, steps_per_epoch=options.steps, epochs=1, verbose=0, callbacks=callbacks)
    written(options.folder / f"done.rank{rank}", json.dumps([float(each.sum()) for each in model.get_weights()]))


def optimizer_of(hvd, optimizer, recipe: str):
    if recipe in ("servers", "lone_servers"):
        return hvd.servers.ShardedServers(optimizer, **({"replicas": 1} if recipe == "servers" else {}))
    if recipe == "datagrams":
        return hvd.averaging.ModelAveraging(optimizer, hvd.averaging.Datagrams("127.0.0.1", rate=1e9))
    aggregator = None if recipe == "dense" else getattr(hvd.recipes, recipe)(0.1)
    return hvd.DistributedOptimizer(optimizer, aggregator=aggregator)


def with_a_tape(hvd, model, data, callback, steps: int) -> None:
    """The steps of a loop of one's own."""
    import tensorflow as tf

    @tf.function
    def step(x, y):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(1e-4 * gradient)

    for number, (x, y) in zip(range(steps), data, strict=False):
        callback.on_train_batch_begin(number)
        step(x, y)


def harm(folder: pathlib.Path, what: str) -> None:
    written(folder / "struck", str(time.time()))
    if what in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    if what == "raise":
        raise OSError("the disk is full")
    if what == "exit":
        sys.exit(3)
    if what == "finish":
        os._exit(0)


def written(path: pathlib.Path, text: str) -> None:
    """Writes a file that is complete as soon as it is there."""
    part = path.with_suffix(".part" + path.suffix)
    part.write_text(text)
    part.rename(path)


if __name__ == "__main__":
    main()

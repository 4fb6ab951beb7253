"""A rank of `test_horovod_examples.py`: runs one example after another, with tiny settings, in one launch."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import traceback

import keras

_TINY = ("--model", "LeNet", "--image-size", "32", "--batch-size", "2")
_TIMED = (*_TINY, "--num-batches-per-iter", "1", "--num-iters", "2")
_SHORT = ("--epochs", "2", "--steps", "24", "--batch-size", "32")
RUNS = {
    "keras_mnist": ("--epochs", "2", "--directory", "{0}"),
    "keras_mnist_advanced": ("--epochs", "2", "--warmup-epochs", "1", "--directory", "{0}"),
    "keras_imagenet_resnet50": (*_TINY, "--epochs", "1", "--fp16-allreduce"),
    "tensorflow2_mnist": ("--steps", "40", "--batch-size", "32", "--directory", "{0}"),
    "tensorflow2_keras_mnist": _SHORT,
    "tensorflow2_synthetic_benchmark": (*_TIMED, "--density", "0.01", "--num-warmup-batches", "1"),
    "tensorflow2_keras_synthetic_benchmark": (*_TIMED, "--fp16-allreduce"),
    "tensorflow2_mnist_data_service": _SHORT,
    "tensorflow2_keras_mnist_restart": (*_SHORT, "--directory", "{0}"),
}
AGAIN = ("tensorflow2_keras_mnist_restart", ("--epochs", "3", *_SHORT[2:], "--directory", "{0}"))


def run(name: str, arguments: tuple[str, ...], folder: str) -> None:
    """Runs an example as from its command line."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(int(os.environ["HOROVOD_RANK"]))
    sys.argv = [name, *(argument.replace("{0}", f"{folder}/{name}") for argument in arguments)]
    print(f"began {name}", flush=True)
    try:
        importlib.import_module(f"examples.from_horovod.{name}").main()
    except Exception:
        print(f"failed {name}\n{traceback.format_exc()}", flush=True)
    else:
        print(f"ended {name}", flush=True)


def main(folder: str) -> None:
    for name, arguments in [*RUNS.items(), AGAIN]:
        run(name, arguments, folder)


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        main(sys.argv[1] if sys.argv[1:] else stack.enter_context(tempfile.TemporaryDirectory()))

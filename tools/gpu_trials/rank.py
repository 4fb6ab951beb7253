"""What a rank of a trial runs: a script that chooses its GPU as the first argument says, and prints what it has.

before   selects its GPU before `hvd.init`, as Horovod's scripts do that are started by horovodrun
after    selects it after `hvd.init`
no       leaves it to `hvd.init`
other    selects another GPU after `hvd.init`
late     runs an operation of TensorFlow before `hvd.init`
nccl     as "no", and exchanges tensors that are on the GPU
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

ELEMENTS = 1 << 20


def select(number: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[number % len(gpus)], "GPU")


def name(gpu: tf.config.PhysicalDevice) -> str:
    return tf.config.experimental.get_device_details(gpu)["device_name"]


def has() -> dict[str, object]:
    """The GPUs that this rank computes on, and the sum of the ranks' numbers."""
    gpus = [name(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    growth = [tf.config.experimental.get_memory_growth(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    logical = len(tf.config.list_logical_devices("GPU"))
    total = hvd.allreduce(tf.constant([float(hvd.rank())]), op=hvd.Sum)
    return {"gpus": gpus, "growth": growth, "logical": logical, "sum": float(total[0])}


def exchanged() -> dict[str, object]:
    """Where the results of collectives are whose inputs are on the GPU, and whether they are right."""
    numbers = np.arange(ELEMENTS, dtype=np.float32)
    with tf.device("GPU:0"):
        own = tf.constant(numbers + hvd.rank())
    every = [numbers + rank for rank in range(hvd.size())]
    results = {
        "allreduce": (hvd.allreduce(own, op=hvd.Sum), np.sum(every, 0)),
        "allgather": (hvd.allgather(own), np.concatenate(every)),
        "broadcast": (hvd.broadcast(own, root_rank=hvd.size() - 1), every[-1]),
    }
    return {
        "collectives": {
            name: {"device": result.device[-5:], "right": bool(np.array_equal(result, expected))}
            for name, (result, expected) in results.items()
        }
    }


def main(way: str) -> None:
    if way == "before":
        select(int(os.environ["HOROVOD_LOCAL_RANK"]))
    if way == "late":
        tf.constant(1)
    hvd.init()
    if way == "after":
        select(hvd.local_rank())
    if way == "other":
        select(hvd.local_rank() + 1)
    told = exchanged() if way == "nccl" else has()
    print(json.dumps({"rank": hvd.rank(), **told}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])

"""The demo's settings and recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NODES, LOCAL_SIZE = 2, 2
RATE = "100mbit"
DENSITY = 0.01
SEED = 0
TRAINING, HELD_OUT = 8192, 1000  # crops
EPOCHS, STEPS, BATCH_SIZE = 9, 15, 32  # held-out crops are evaluated after each epoch; the batch size is per rank
LEARNING_RATE, MOMENTUM, NOISE = 0.1, 0.9, 0.1
TARGET = 0.45  # the demo reports the time to this accuracy

# Names, each with a function that makes the recipe from `hvd.recipes`; Horovod's dense all-reduce first, then the same
# with values of 16 bits, like Horovod's `Compression.fp16`.
RECIPES: dict[str, Callable[[Any], Any]] = {
    "dense": lambda recipes: recipes.dense(),
    "dense-fp16": lambda recipes: recipes.dense(wire_dtype="float16"),
    "hitopk": lambda recipes: recipes.hitopk(DENSITY),
    "recommended": lambda recipes: recipes.recommended(DENSITY),
}

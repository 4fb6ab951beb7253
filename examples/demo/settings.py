"""What is trained, how, and with which recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NODES, LOCAL_SIZE = 2, 2
RATE = "100mbit"
DENSITY = 0.01
SEED = 0
TRAINING, HELD_OUT = 8192, 1000  # crops
EPOCHS, STEPS, BATCH_SIZE = 9, 15, 32  # an epoch is what lies between two looks at held-out crops; the batch of a rank
LEARNING_RATE, MOMENTUM, NOISE = 0.1, 0.9, 0.1
TARGET = 0.45  # the accuracy whose time is told

# By name: what makes the recipe out of `hvd.recipes`; Horovod's dense all-reduce first.
RECIPES: dict[str, Callable[[Any], Any]] = {
    "dense": lambda recipes: recipes.dense(),
    "hitopk": lambda recipes: recipes.hitopk(DENSITY),
    "recommended": lambda recipes: recipes.recommended(DENSITY),
}

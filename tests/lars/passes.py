"""The native passes in NumPy: slow, simple, the same bits; each operation rounds to the dtype of the computation."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

BLOCK, CHUNK, LANES = 65536, 4096, 32
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}

Arrays = list[np.ndarray]


class LambRule(NamedTuple):
    beta_1: float
    beta_2: float
    epsilon: float
    step: int


def computed_in(dtype) -> type:
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def normal_or_zero(array: np.ndarray) -> np.ndarray:
    """The array with numbers below the smallest normal number replaced by +0."""
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, array.dtype.type(0), array)


def sum_of_squares(block: np.ndarray) -> float:
    """The sum of squares of a block: each lane's squares in order, lanes folded by halves, chunks in order."""
    total = 0.0
    for begin in range(0, block.size, CHUNK):
        chunk = block[begin : begin + CHUNK].astype(np.float64)
        rows = np.zeros((-(-chunk.size // LANES), LANES))
        rows.reshape(-1)[: chunk.size] = chunk * chunk
        lanes = np.add.accumulate(rows)[-1]
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        total += float(lanes[0])
    return total


def partials(tensors: Arrays) -> np.ndarray:
    """The partial sums, [blocks] float64, of a list of tensors."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    blocks = [each[begin : begin + BLOCK] for each in flat for begin in range(0, each.size, BLOCK)]
    return np.array([sum_of_squares(block) for block in blocks], np.float64)


def lars_step(weight, velocity, gradient, scale, decay, momentum, nesterov):
    """The new weight and velocity of one tensor."""
    number = computed_in(weight.dtype)
    w, v, g = (each.astype(number) for each in (weight, velocity, gradient))
    scale, decay, momentum = number(scale), number(decay), number(momentum)
    step = scale * (g + decay * w)
    v = normal_or_zero(momentum * v + step)
    w = w - (momentum * v + step if nesterov else v)
    return w.astype(weight.dtype), v.astype(weight.dtype)


def _power(base: float, exponent: int) -> float:
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def lamb_direction(weight, first, second, gradient, decay, rule: LambRule):
    """Direction and new moments of one tensor, before they are rounded to the tensor's dtype."""
    number = computed_in(weight.dtype)
    w, m, v, g = (each.astype(number) for each in (weight, first, second, gradient))
    correction_1 = number(1 / (1 - _power(rule.beta_1, rule.step)))
    correction_2 = number(1 / (1 - _power(rule.beta_2, rule.step)))
    m = normal_or_zero(number(rule.beta_1) * m + number(1 - rule.beta_1) * g)
    v = normal_or_zero(number(rule.beta_2) * v + number(1 - rule.beta_2) * (g * g))
    direction = m * correction_1 / (np.sqrt(v * correction_2) + number(rule.epsilon)) + number(decay) * w
    return direction, m, v


def lamb_step(weight, first, second, gradient, scale, decay, rule: LambRule):
    """The new weight and moments of one tensor."""
    number = computed_in(weight.dtype)
    direction, m, v = lamb_direction(weight, first, second, gradient, decay, rule)
    w = weight.astype(number) - number(scale) * direction
    with np.errstate(over="ignore"):  # numbers too large for float16 become infinite
        return w.astype(weight.dtype), m.astype(weight.dtype), v.astype(weight.dtype)


def tensors(random: np.random.Generator, shapes, dtypes) -> Arrays:
    """Normally distributed numbers of several magnitudes, some of them zero."""
    made = []
    for number, shape in enumerate(shapes):
        values = random.standard_normal(shape) * 10.0 ** random.integers(-3, 3, shape) * (random.random(shape) < 0.95)
        made.append(np.asarray(values).astype(dtypes[number % len(dtypes)]))
    return made

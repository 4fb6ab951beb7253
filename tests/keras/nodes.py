"""NumPy training in which nodes run optimizers on their own gradients: the optimizers, and the nodes."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from lars import LAMB, LARS
from tests import simulation
from tests.gpu import reference
from tests.keras.test_momentum import RATE, SHAPES, SIZE, unpacked

F = np.float32


class Slots:
    """The slots of one node's optimizer for all weights, by name; all zeros except those with other initial values.

    A slot whose initial value is an array has the array's shape. Ranks have a part of each slot, or all of them if the
    step needs whole variables.
    """

    def __init__(self, size, step, **begins):
        self.values = {
            name: begin.copy() if isinstance(begin, np.ndarray) else np.full(size, begin, F)
            for name, begin in begins.items()
        }
        self._step = step
        self.are_whole = step in (muon, adafactor, lamb_of_keras)

    def update(self, gradient, number, weights):
        return self._step(self.values, gradient, F(RATE), F(number), weights)


def power(base, number):
    return tf.pow(tf.constant(base, tf.float32), number).numpy()  # NumPy's result may differ in the last bit


def sgd(slots, gradient, rate, number, weights):
    return gradient * rate


def heavy_ball(nesterov):
    def step(slots, gradient, rate, number, weights):
        slots["momentums"][:] = slots["momentums"] * F(0.9) - gradient * rate
        return -(slots["momentums"] * F(0.9) - gradient * rate) if nesterov else -slots["momentums"]

    return step


def adam(slots, gradient, rate, number, weights):
    m, v = slots["_momentums"], slots["_velocities"]
    alpha = rate * np.sqrt(F(1) - power(0.999, number)) / (F(1) - power(0.9, number))
    m += (gradient - m) * F(1 - 0.9)
    v += (gradient * gradient - v) * F(1 - 0.999)
    return m * alpha / (np.sqrt(v) + F(1e-7))


def adamax(slots, gradient, rate, number, weights):
    m, u = slots["_m"], slots["_u"]
    m += (gradient - m) * F(1 - 0.9)
    u[:] = np.maximum(F(0.999) * u, np.abs(gradient))
    return rate * m / ((F(1) - power(0.9, number)) * (u + F(1e-7)))


def rmsprop(slots, gradient, rate, number, weights):
    v, m = slots["_velocities"], slots["_momentums"]
    v[:] = F(0.9) * v + F(1 - 0.9) * (gradient * gradient)
    m[:] = F(0.5) * m + rate * gradient / np.sqrt(v + F(1e-7))
    return m.copy()


def adagrad(slots, gradient, rate, number, weights):
    slots["_accumulators"] += gradient * gradient
    return rate * gradient / np.sqrt(slots["_accumulators"] + F(1e-7))


def adadelta(slots, gradient, rate, number, weights):
    seen, moved = slots["_accumulated_grads"], slots["_accumulated_delta_vars"]
    seen[:] = F(0.95) * seen + F(1 - 0.95) * (gradient * gradient)
    change = -(np.sqrt(moved + F(1e-7)) * gradient / np.sqrt(seen + F(1e-7)))
    moved[:] = F(0.95) * moved + F(1 - 0.95) * (change * change)
    return -(rate * change)


def lion(slots, gradient, rate, number, weights):
    m = slots["_momentums"]
    update = rate * np.sign(m * F(0.9) + gradient * F(1.0 - F(0.9)))
    m[:] = m * F(0.99) + gradient * F(1.0 - F(0.99))
    return update


def layers(vector):
    """The variables' parts of a vector, and whether each has a trust ratio."""
    named, ends = unpacked(np.arange(vector.size)), dict(zip(SHAPES, (True, False), strict=True))
    return [(places.ravel(), ends[name]) for name, places in zip(SHAPES, named, strict=True)]


def norm(array):
    return np.sqrt(np.sum(np.square(array, dtype=np.float64)))


def lars(nesterov):
    def step(slots, gradient, rate, number, weights):
        lowered, velocity = np.empty_like(gradient), slots["momentums"]
        for at, adapted in layers(gradient):
            w, g, decay = weights[at], gradient[at], 0.125 if adapted else 0.0
            ratio = 0.5 * norm(w) / (norm(g) + decay * norm(w) + 1e-9) if adapted else 1.0
            push = F(rate * ratio) * (g + F(decay) * w)
            velocity[at] = F(0.9) * velocity[at] + push
            lowered[at] = F(0.9) * velocity[at] + push if nesterov else velocity[at]
        return lowered

    return step


def lamb(slots, gradient, rate, number, weights):
    m, v = slots["first_moments"], slots["second_moments"]
    m[:] = F(0.9) * m + F(1 - 0.9) * gradient
    v[:] = F(0.999) * v + F(1 - 0.999) * (gradient * gradient)
    first, second = (F(1 / (1 - np.float64(beta) ** number)) for beta in (0.9, 0.999))
    direction, lowered = m * first / (np.sqrt(v * second) + F(1e-6)), np.empty_like(gradient)
    for at, adapted in layers(gradient):
        u = direction[at] + F(0.125 if adapted else 0.0) * weights[at]
        lowered[at] = F(rate * (norm(weights[at]) / norm(u) if adapted else 1.0)) * u
    return lowered


def newton_schulz(matrix):
    """Five iterations for a matrix that is not higher than wide."""
    x = matrix / (np.sqrt(total(matrix * matrix)) + F(1e-7))
    for _ in range(5):
        square = product(x, x.T)
        x = F(3.4445) * x + product(F(-4.7750) * square + product(F(2.0315) * square, square), x)
    return x


def muon(slots, gradient, rate, number, weights):
    lowered, m, v = np.empty_like(gradient), slots["momentums"], slots["adam_velocities"]
    for at, is_matrix in layers(gradient):
        g = gradient[at]
        if is_matrix:
            m[at] += g + m[at] * F(0.95 - 1)
            moved = rate * newton_schulz((g + F(0.95) * m[at]).reshape(SHAPES["matrix"]))
            lowered[at] = (moved * np.sqrt(F(max(SHAPES["matrix"]))) * F(0.2)).ravel()
        else:
            parts = {"_momentums": m[at], "_velocities": v}
            lowered[at] = adam(parts, g, rate, number, weights)
            m[at] = parts["_momentums"]
    return lowered


def adafactor(slots, gradient, rate, number, weights):
    def rms(array):
        return np.sqrt(mean(np.square(array)))

    lowered = np.empty_like(gradient)
    rho = np.minimum(rate, F(1) / np.sqrt(number))
    beta = F(1) - power(number, -0.8)
    for at, is_matrix in layers(gradient):
        g, v = gradient[at], slots["_v"][at]
        squares = np.square(g) + F(1e-30)
        if is_matrix:
            squares = squares.reshape(SHAPES["matrix"])
            r = slots["_r"][:] = beta * slots["_r"] + (F(1) - beta) * mean(squares, -1)
            c = slots["_c"][:] = beta * slots["_c"] + (F(1) - beta) * mean(squares, -2)
            v = ((r / mean(r, -1))[:, None] * c).ravel()
        else:
            v = beta * v + (F(1) - beta) * squares
        slots["_v"][at] = v
        u = g / np.sqrt(v)
        lowered[at] = np.maximum(F(1e-3), rms(weights[at])) * rho * (u / np.maximum(F(1), rms(u)))
    return lowered


def lamb_of_keras(slots, gradient, rate, number, weights):
    m, v, lowered = slots["_momentums"], slots["_velocities"], np.empty_like(gradient)
    m += (gradient - m) * F(1 - 0.9)
    v += (gradient * gradient - v) * F(1 - 0.999)
    corrected = np.sqrt(v / (F(1) - power(0.999, number))) + F(1e-7)
    update = m / (F(1) - power(0.9, number)) / corrected
    for at, _ in layers(gradient):
        ratio = np.sqrt(total(power(weights[at], 2))) / np.sqrt(total(power(update[at], 2)))
        lowered[at] = ratio * rate * update[at]
    return lowered


LARS_OPTIONS = {"weight_decay": 0.125, "trust_coefficient": 0.5, "parallel": False}
MOMENTS = {"_momentums": 0, "_velocities": 0}
# The optimizer, its step in NumPy, the initial values of its slots, and its decoupled weight decay.
OPTIMIZERS = {
    "SGD": (lambda: keras.optimizers.SGD(RATE), sgd, {}, 0.0),
    "momentum": (lambda: keras.optimizers.SGD(RATE, 0.9), heavy_ball(False), {"momentums": 0}, 0.0),
    "Nesterov": (lambda: keras.optimizers.SGD(RATE, 0.9, True), heavy_ball(True), {"momentums": 0}, 0.0),
    "Adam": (lambda: keras.optimizers.Adam(RATE), adam, MOMENTS, 0.0),
    "AdamW": (lambda: keras.optimizers.AdamW(RATE, weight_decay=0.01), adam, MOMENTS, 0.01),
    "Adamax": (lambda: keras.optimizers.Adamax(RATE), adamax, {"_m": 0, "_u": 0}, 0.0),
    "RMSprop": (lambda: keras.optimizers.RMSprop(RATE, momentum=0.5), rmsprop, MOMENTS, 0.0),
    "Adagrad": (lambda: keras.optimizers.Adagrad(RATE), adagrad, {"_accumulators": 0.1}, 0.0),
    "Adadelta": (
        lambda: keras.optimizers.Adadelta(RATE),
        adadelta,
        {"_accumulated_grads": 0, "_accumulated_delta_vars": 0},
        0.0,
    ),
    "Lion": (lambda: keras.optimizers.Lion(RATE), lion, {"_momentums": 0}, 0.0),
    "LARS": (lambda: LARS(RATE, **LARS_OPTIONS), lars(False), {"momentums": 0}, 0.0),
    "LARS, Nesterov": (lambda: LARS(RATE, nesterov=True, **LARS_OPTIONS), lars(True), {"momentums": 0}, 0.0),
    "LAMB": (
        lambda: LAMB(RATE, weight_decay=0.125, parallel=False),
        lamb,
        {"first_moments": 0, "second_moments": 0},
        0.0,
    ),
    "Muon": (
        lambda: keras.optimizers.Muon(RATE, weight_decay=None, adam_weight_decay=None),
        muon,
        {"momentums": 0, "adam_velocities": np.zeros(SHAPES["bias"], F)},
        0.0,
    ),
    "Adafactor": (
        lambda: keras.optimizers.Adafactor(RATE),
        adafactor,
        {"_v": 0, "_r": np.zeros(SHAPES["matrix"][0], F), "_c": np.zeros(SHAPES["matrix"][1], F)},
        0.0,
    ),
    "Lamb": (lambda: keras.optimizers.Lamb(RATE), lamb_of_keras, MOMENTS, 0.0),
}


# NumPy adds in another order.
def total(array):
    return tf.reduce_sum(tf.constant(array)).numpy()


def mean(array, axis=None):
    return tf.reduce_mean(tf.constant(array), axis).numpy()


def product(one, other):
    return tf.matmul(tf.constant(one), tf.constant(other)).numpy()


class GainRatio:
    """The gain ratio of one shard, computed from 16 elements that are drawn in each step, or from all of fewer."""

    def __init__(self, nodes):
        self.nodes, self.sums, self.steps = nodes, np.zeros(2, F), 0

    def root(self):
        of_mean, of_one = self.sums
        return np.sqrt(np.clip(of_one / of_mean, F(1), F(self.nodes)) if of_mean else F(1))

    def absorb(self, gradients):
        size = gradients[0].size
        if size > 16:
            places = tf.random.stateless_uniform([16], [0, self.steps], 0, size, tf.int32).numpy()
            gradients = [gradient[places] for gradient in gradients]
        self.steps += 1
        mean, squares = np.zeros_like(gradients[0]), F(0)
        for gradient in gradients:
            mean, squares = mean + gradient, squares + total(np.square(gradient))
        now = np.array([total(np.square(mean / F(self.nodes))), squares / F(self.nodes)], F)
        self.sums = F(0.99) * self.sums + F(1.0 - 0.99) * now


class Nodes:
    """Every rank's shard of its node's optimizer and error feedback; with `flat`, each rank is a node.

    With `gain`, updates are multiplied by the root of the gain ratio.
    """

    def __init__(self, shape, select, density, flat, make, gain=False):
        self.local = 1 if flat else shape.local_size
        self.nodes, self.select, self.density = shape.ranks // self.local, select, density
        self.ends = simulation.shard_ends(SIZE, self.local)
        self.residual = np.zeros([shape.ranks, SIZE], F)
        self.slots = [make() for _ in range(self.nodes)]
        self.steps = 0
        self.gains = [GainRatio(self.nodes) for _ in range(self.local if gain and self.nodes > 1 else 0)]

    def shard(self, rank):
        """Begin and end of a rank's shard."""
        return self.ends[rank % self.local]

    def slots_of(self, rank):
        """A rank's slots for its shard, by name."""
        slots, (begin, end) = self.slots[rank // self.local], self.shard(rank)
        return slots.values if slots.are_whole else {name: value[begin:end] for name, value in slots.values.items()}

    def unsent(self, rank):
        """What the rank's node has not sent yet."""
        first = rank // self.local * self.local
        return np.sum(self.residual[first : first + self.local], axis=0) / F(self.local)

    def step(self, vectors, weights):
        """The amount subtracted from every weight; each node has its own weights, flat."""
        ranks, total = len(vectors), np.zeros(SIZE, F)
        moves, own = [], []
        factor = np.ones(SIZE, F)
        for gain, (begin, end) in zip(self.gains, self.ends, strict=False):
            factor[begin:end] = gain.root()
        for node, slots in enumerate(self.slots):
            parts = vectors[node * self.local : (node + 1) * self.local]
            own.append(reference.accumulate(parts, None) / F(self.local))
            moves.append(F(self.local) * (factor * slots.update(own[-1], self.steps + 1, weights[node])))
        for gain, (begin, end) in zip(self.gains, self.ends, strict=False):
            gain.absorb([gradient[begin:end] for gradient in own])
        for rank in range(ranks):
            begin, end = self.shard(rank)
            if begin == end:
                continue
            update = moves[rank // self.local][begin:end]
            residual = self.residual[rank, begin:end]
            summed = reference.accumulate([update], residual)
            indices = self.select(summed, simulation.kept(self.density, summed.size), self.steps)
            values, residual[:] = reference.feedback([update], residual, indices, F)
            total[begin:end][indices] += values
        self.steps += 1
        return total / F(ranks)

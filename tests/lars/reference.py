"""LARS and LAMB in NumPy, layer by layer as published, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def _norm(array: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.square(array, dtype=np.float64))))


class Lars:
    """`step(gradients, learning_rate)` updates `weights`."""

    def __init__(
        self,
        weights: Sequence[np.ndarray],
        adapted: Sequence[bool],
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-9,
        nesterov: bool = False,
    ):
        self.weights = [np.array(weight, np.float64) for weight in weights]
        self.velocities = [np.zeros_like(weight) for weight in self.weights]
        self.adapted, self.momentum, self.weight_decay = adapted, momentum, weight_decay
        self.trust_coefficient, self.epsilon, self.nesterov = trust_coefficient, epsilon, nesterov

    def ratio(self, weight: np.ndarray, gradient: np.ndarray) -> float:
        """The trust ratio: CommLib Eq. 11 without the learning rate."""
        of_weight, of_gradient = _norm(weight), _norm(gradient)
        if of_weight == 0 or of_gradient == 0:
            return 1.0
        return self.trust_coefficient * of_weight / (of_gradient + self.weight_decay * of_weight + self.epsilon)

    def step(self, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        """Takes one step."""
        for number, gradient in enumerate(np.array(each, np.float64) for each in gradients):
            weight, adapted = self.weights[number], self.adapted[number]
            decay = self.weight_decay if adapted else 0.0
            ratio = self.ratio(weight, gradient) if adapted else 1.0
            push = learning_rate * ratio * (gradient + decay * weight)
            velocity = self.momentum * self.velocities[number] + push
            self.velocities[number] = velocity
            self.weights[number] = weight - (self.momentum * velocity + push if self.nesterov else velocity)


class Lamb:
    """`step(gradients, learning_rate)` updates `weights`."""

    def __init__(
        self,
        weights: Sequence[np.ndarray],
        adapted: Sequence[bool],
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
    ):
        self.weights = [np.array(weight, np.float64) for weight in weights]
        self.first = [np.zeros_like(weight) for weight in self.weights]
        self.second = [np.zeros_like(weight) for weight in self.weights]
        self.adapted, self.beta_1, self.beta_2 = adapted, beta_1, beta_2
        self.epsilon, self.weight_decay, self.steps = epsilon, weight_decay, 0

    def step(self, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        """Takes one step: You et al. 2020, Algorithm 2."""
        self.steps += 1
        for number, gradient in enumerate(np.array(each, np.float64) for each in gradients):
            weight, adapted = self.weights[number], self.adapted[number]
            self.first[number] = self.beta_1 * self.first[number] + (1 - self.beta_1) * gradient
            self.second[number] = self.beta_2 * self.second[number] + (1 - self.beta_2) * gradient**2
            mean = self.first[number] / (1 - self.beta_1**self.steps)
            square = self.second[number] / (1 - self.beta_2**self.steps)
            update = mean / (np.sqrt(square) + self.epsilon) + (self.weight_decay if adapted else 0.0) * weight
            norms = _norm(weight), _norm(update)
            ratio = norms[0] / norms[1] if adapted and all(norms) else 1.0
            self.weights[number] = weight - learning_rate * ratio * update

"""Native optimizer steps equal Keras's bit for bit: weights, slots and the step counter."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.fused import lazy_step_of, step_of
from hvd_sparse.servers.gathering import Touched
from tests.ops import native
from tests.servers.simulated import variables, whole_of
from tests.simulation import same_bits

RATE = 0.003
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(RATE),
    "SGD that decays": lambda: keras.optimizers.SGD(RATE, weight_decay=0.02),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "momentum that decays": lambda: keras.optimizers.SGD(RATE, momentum=0.9, weight_decay=0.02),
    "Nesterov": lambda: keras.optimizers.SGD(RATE, momentum=0.7, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(RATE),
    "Adam of other settings": lambda: keras.optimizers.Adam(RATE, beta_1=0.83, beta_2=0.97, epsilon=1e-3),
    "AdamW": lambda: keras.optimizers.AdamW(RATE, weight_decay=0.02),
    "AdamW that does not": lambda: keras.optimizers.AdamW(RATE, weight_decay=0.0),
    "Adagrad": lambda: keras.optimizers.Adagrad(RATE),
    "Adagrad that decays": lambda: keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0, weight_decay=0.02),
    "RMSprop": lambda: keras.optimizers.RMSprop(RATE),
    "RMSprop that decays": lambda: keras.optimizers.RMSprop(RATE, rho=0.7, weight_decay=0.02),
    "RMSprop with momentum": lambda: keras.optimizers.RMSprop(RATE, momentum=0.9),
    "RMSprop, centered": lambda: keras.optimizers.RMSprop(RATE, centered=True),
    "RMSprop with both": lambda: keras.optimizers.RMSprop(RATE, momentum=0.6, centered=True, weight_decay=0.02),
    "a schedule": lambda: keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.7)),
}
EACH_OPTIMIZER = pytest.mark.parametrize("name", OPTIMIZERS)
LARGE = 400_003  # large enough for several threads with at least 131,072 elements each


def numbers(random: np.random.Generator, size: int, spread: int) -> np.ndarray:
    """Numbers whose magnitudes span up to 10^(2 * spread), including denormal ones and zeros of both signs."""
    scales = np.exp(np.log(10) * random.uniform(-spread, spread, size))
    values = (random.standard_normal(size) * scales).astype(np.float32)
    values[random.random(size) < 0.1] = 0.0
    values[random.random(size) < 0.05] = np.float32(1e-41)
    values[random.random(size) < 0.05] = -0.0
    return values


class Trained:
    """Some variables, and an optimizer built for them."""

    def __init__(self, name: str, sizes: list[int], seed: int):
        random = np.random.default_rng(seed)
        self.variables = [keras.Variable(numbers(random, size, 3), dtype="float32") for size in sizes]
        self.optimizer = OPTIMIZERS[name]()
        self.optimizer.build(self.variables)

    def state(self) -> list[np.ndarray]:
        return [np.asarray(each.numpy()) for each in (*self.variables, *self.optimizer.variables)]


def compare(name: str, sizes: list[int], steps: int, seed: int, spread: int) -> None:
    """Asserts that Keras's steps and native ones give the same bits."""
    expected, found = (Trained(name, sizes, seed) for _ in range(2))
    native_step = step_of(found.optimizer)
    assert native_step is not None
    random = np.random.default_rng([seed, 1])
    with tf.device("CPU:0"):
        for _ in range(steps):
            gradients = [tf.constant(numbers(random, size, spread)) for size in sizes]
            expected.optimizer.apply(gradients, expected.variables)
            native_step(gradients, found.variables)
            for one, other in zip(found.state(), expected.state(), strict=True):
                same_bits(one, other)


def compare_lazily(name: str, size: int, steps: int, seed: int, spread: int, density: float) -> None:
    """Asserts that lazy steps give Keras's bits where there is a gradient, and elsewhere the previous ones."""
    expected, found = (Trained(name, [size], seed) for _ in range(2))
    step, random = lazy_step_of(found.optimizer), np.random.default_rng([seed, 1])
    assert step is not None
    vectors = [each for each in (*expected.variables, *expected.optimizer.variables) if each.shape == (size,)]
    with tf.device("CPU:0"):
        for _ in range(steps):
            there = random.random(size) < density
            gradient = numbers(random, size, spread) * there
            before = [vector.numpy() for vector in vectors]
            expected.optimizer.apply([tf.constant(gradient)], expected.variables)
            for vector, values in zip(vectors, before, strict=True):
                vector.assign(np.where(there, vector.numpy(), values))
            places = random.permutation(np.flatnonzero(there)).astype(np.int32)
            step([Touched(gradient[places], places)], found.variables)
            for one, other in zip(found.state(), expected.state(), strict=True):
                same_bits(one, other)


@EACH_OPTIMIZER
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    steps=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    spread=st.integers(0, 37),
)
def test_it_is_the_step_of_keras(name, sizes, steps, seed, spread):
    compare(name, sizes, steps, seed, spread)


@EACH_OPTIMIZER
@pytest.mark.parametrize(
    "isa", [*native.isas()[-1:], *(pytest.param(isa, marks=pytest.mark.thorough) for isa in native.isas()[:-1])]
)
def test_it_is_the_step_of_keras_on_many_elements_too(name, isa):
    with native.isa(native.ISAS[isa]):
        compare(name, [LARGE], 2, 5, 4)


@EACH_OPTIMIZER
@given(
    size=st.integers(1, 300),
    steps=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    spread=st.integers(0, 37),
    density=st.floats(0, 1),
)
def test_a_lazy_one_is_that_of_keras_where_there_is_a_gradient(name, size, steps, seed, spread, density):
    compare_lazily(name, size, steps, seed, spread, density)


def test_it_is_the_step_of_keras_after_many_steps():
    compare("AdamW", [40], 300, 7, 2)


def test_variables_that_do_not_decay_are_left_out():
    expected, found = (Trained("AdamW", [9, 9, 9], 3) for _ in range(2))
    gradients = [tf.ones([9])] * 3
    for each, step in ((expected, expected.optimizer.apply), (found, step_of(found.optimizer))):
        each.optimizer._exclude_from_weight_decay = {each.optimizer._var_key(each.variables[1])}
        step(gradients, each.variables)
    for one, other in zip(found.state(), expected.state(), strict=True):
        same_bits(one, other)


def test_settings_are_read_anew():
    expected, found = (Trained("momentum", [30], 3) for _ in range(2))
    gradients = [tf.ones([30])]
    for each, step in ((expected, expected.optimizer.apply), (found, step_of(found.optimizer))):
        for rate, momentum in ((0.1, 0.9), (0.2, 0.5)):
            each.optimizer.learning_rate, each.optimizer.momentum = rate, momentum
            step(gradients, each.variables)
    for one, other in zip(found.state(), expected.state(), strict=True):
        same_bits(one, other)


def test_variables_are_those_that_it_was_built_for():
    trained = Trained("Adam", [3, 4], 0)
    with pytest.raises(ValueError, match="zip"):
        step_of(trained.optimizer)([tf.ones([3])], trained.variables[:1])


# ---- which optimizers have one ----


class OwnStep(keras.optimizers.Adam):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient)


class OwnDecay(keras.optimizers.AdamW):
    def _use_weight_decay(self, variable):
        return len(variable.shape) > 1


class OwnDecayAndMore(OwnDecay):
    def _use_weight_decay(self, variable):
        return True


OTHERS = {
    "a step of its own": OwnStep,
    "a subclass of a subclass": OwnDecayAndMore,
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True),
    "Adamax": keras.optimizers.Adamax,
    "Nadam": keras.optimizers.Nadam,
    "clipnorm": lambda: keras.optimizers.SGD(clipnorm=1.0),
    "clipvalue": lambda: keras.optimizers.SGD(clipvalue=1.0),
    "global_clipnorm": lambda: keras.optimizers.SGD(global_clipnorm=1.0),
    "averages": lambda: keras.optimizers.SGD(use_ema=True),
    "accumulation": lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
    "a scaled loss": lambda: keras.optimizers.SGD(loss_scale_factor=2.0),
}


@pytest.mark.parametrize("case", OTHERS)
def test_others_have_none(case):
    assert step_of(OTHERS[case]()) is None and lazy_step_of(OTHERS[case]()) is None


def test_a_subclass_that_tells_what_decays_has_one():
    assert step_of(OwnDecay()) is not None


@EACH_OPTIMIZER
def test_servers_use_it(name):
    pieces = ServedPieces(OPTIMIZERS[name](), variables(np.random.default_rng(0)), whole_of(1))
    assert pieces._step.__module__ == step_of.__module__

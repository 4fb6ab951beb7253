"""The arms of bench_lars.py: our passes, the same mathematics in several forms of tf.function, and plain passes."""

from __future__ import annotations

import ctypes
import functools
import mmap
import pathlib
import re
import subprocess
import tempfile
import timeit
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import lars
from benchmarks.train.models import Images, Sentences, resnet50, transformer
from lars import ops, trust_ratio
from lars.layerwise import BIAS_AND_NORMALISATION, LayerwiseOptimizer
from lars.parallel import block_sizes, parallel_range

RATE, DECAY, MOMENTUM, TRUST, LARS_EPSILON = 0.125, 1e-4, 0.9, 0.001, 1e-9
LAMB_DECAY, BETA_1, BETA_2, LAMB_EPSILON = 0.01, 0.9, 0.999, 1e-6
STEP = 10  # step number at which LAMB's norms are computed
# Arms of the ranks: ways to compute the trust ratios, and whole steps.
ALONE, SHARED, HOROVOD = "each rank alone", "shared, by memory", "shared, by Horovod"
UNSHARED, CHOSEN = "step, parallel=False", "step, parallel=True"
UNSHARED_AGAIN = f"{UNSHARED}, A/A"
_FLOORS = pathlib.Path(__file__).parents[1] / "native" / "lars_floors.cc"
_AHEAD = (0, 64, 128, 512)  # prefetch distances, in elements
_PROBES = 8  # elements of each layer that are compared


class Layer(NamedTuple):
    """One variable of a model."""

    path: str
    shape: tuple[int, ...]


MODELS: dict[str, Callable[[], keras.Model]] = {
    "resnet50": lambda: resnet50(Images(width=1, image=32, batch=1)),
    "transformer": lambda: transformer(Sentences(width=1, length=8, batch=1)),
    "small": lambda: resnet50(Images(width=0.0625, image=32, batch=1, classes=10)),
}


def layers_of(model: str) -> list[Layer]:
    """The trainable variables of a model."""
    made = MODELS[model]()
    layers = [Layer(variable.path, tuple(variable.shape)) for variable in made.trainable_variables]
    keras.backend.clear_session()
    return layers


def elements_of(layers: Sequence[Layer]) -> int:
    """The number of parameters in the layers."""
    return sum(int(np.prod(layer.shape)) for layer in layers)


class Tensors:
    """Random weights of some layers, equal in all arms.

    Attributes:
        slots: lists of variables: the optimizer's slots in mid-training; `at_rest` makes them zero.
    """

    def __init__(self, layers: Sequence[Layer], slots: int = 0):
        random = np.random.default_rng(0)
        self.weights = [tf.Variable(_drawn(random, layer), name=layer.path) for layer in layers]
        self.slots = [[tf.Variable(_drawn(random, layer) ** 2) for layer in layers] for _ in range(slots)]
        self.adapted = np.array([not _excluded(layer.path) for layer in layers])
        self.sizes = [int(np.prod(layer.shape)) for layer in layers]
        self.blocks = block_sizes(self.sizes, ops.BLOCK)

    def at_rest(self) -> Tensors:
        """The same weights with the slots as before the first step."""
        for variable in (variable for kind in self.slots for variable in kind):
            variable.assign(tf.zeros_like(variable))
        return self

    def decays(self, decay: float) -> np.ndarray:
        """The weight decay of each layer."""
        return np.where(self.adapted, decay, 0.0)


def gradients_of(layers: Sequence[Layer]) -> list[tf.Tensor]:
    """The gradients of all layers, equal in all arms."""
    random = np.random.default_rng(1)
    return [tf.constant(_drawn(random, layer)) for layer in layers]


def _drawn(random: np.random.Generator, layer: Layer) -> np.ndarray:
    return random.standard_normal(layer.shape, np.float32) * np.float32(0.125)


def _excluded(path: str) -> bool:
    return any(re.search(pattern, path) for pattern in BIAS_AND_NORMALISATION)


def probes(variables: Sequence[tf.Variable]) -> np.ndarray:
    """The first elements of each layer."""
    return np.concatenate([tf.reshape(variable, [-1])[:_PROBES].numpy() for variable in variables])


# ---- ours ----


def our_ratios(name: str, tensors: Tensors, gradients: list[tf.Tensor], communicator: Any = None) -> tf.Tensor:
    """The trust ratios from the native passes, shared among ranks if there is a communicator."""
    weights, slots = tensors.weights, tensors.slots

    def partials(first: int, last: int) -> tf.Tensor:
        if name == "LARS":
            return ops.lars_partials(weights, gradients, first, last)
        constants = (BETA_1, BETA_2, LAMB_EPSILON, STEP)
        return ops.lamb_partials(weights, *slots, gradients, tensors.decays(LAMB_DECAY), *constants, first, last)

    gathered = parallel_range(partials, tensors.blocks, communicator, f"bench.{name}")
    norms = trust_ratio.norms(gathered, tensors.sizes)
    if name == "LARS":
        return trust_ratio.lars(norms, tensors.decays(DECAY), tensors.adapted, TRUST, LARS_EPSILON)
    return trust_ratio.lamb(norms, tensors.adapted)


def our_optimizer(name: str, parallel: Any = False) -> LayerwiseOptimizer:
    """The optimizer of a cell, with the same settings as the rivals."""
    if name == "LARS":
        return lars.LARS(RATE, MOMENTUM, DECAY, TRUST, LARS_EPSILON, parallel=parallel)
    return lars.LAMB(RATE, BETA_1, BETA_2, LAMB_EPSILON, LAMB_DECAY, parallel=parallel)


def our_step(optimizer: LayerwiseOptimizer, tensors: Tensors, gradients: list[tf.Tensor]) -> Callable[[], Any]:
    """A whole step of the optimizer, as in training."""
    optimizer.build(tensors.weights)
    return tf.function(lambda: optimizer.apply(gradients, tensors.weights), autograph=False)


# ---- the same mathematics as a tf.function ----


def _by_reduce_sum(tensor: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(tensor)))


def _by_l2_loss(tensor: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(2.0 * tf.nn.l2_loss(tensor))


def _lars_ratio(norm: Callable, weight: Any, gradient: tf.Tensor, adapted: bool) -> Any:
    if not adapted:
        return tf.constant(1.0)
    of_weight, of_gradient = norm(weight), norm(gradient)
    ratio = TRUST * of_weight / (of_gradient + DECAY * of_weight + LARS_EPSILON)
    return tf.where((of_weight > 0) & (of_gradient > 0), ratio, 1.0)


def _lamb_moments(weight: Any, first: Any, second: Any, gradient: tf.Tensor, adapted: bool, step: Any) -> tuple:
    """The new moments and the direction u."""
    new_first = BETA_1 * first + (1 - BETA_1) * gradient
    new_second = BETA_2 * second + (1 - BETA_2) * tf.square(gradient)
    one = 1 / (1 - tf.pow(BETA_1, step))
    two = 1 / (1 - tf.pow(BETA_2, step))
    update = new_first * one / (tf.sqrt(new_second * two) + LAMB_EPSILON)
    return new_first, new_second, update + LAMB_DECAY * weight if adapted else update


def _lamb_ratio(norm: Callable, weight: Any, update: tf.Tensor, adapted: bool) -> Any:
    if not adapted:
        return tf.constant(1.0)
    of_weight, of_update = norm(weight), norm(update)
    return tf.where((of_weight > 0) & (of_update > 0), of_weight / of_update, 1.0)


def rival_ratios(name: str, norm: Callable, tensors: Tensors, gradients: list[tf.Tensor]) -> list[Any]:
    """The trust ratios, layer by layer."""
    rows = zip(tensors.weights, gradients, tensors.adapted.tolist(), strict=True)
    if name == "LARS":
        return [_lars_ratio(norm, *row) for row in rows]
    ratios = []
    for (weight, gradient, adapted), first, second in zip(rows, *tensors.slots, strict=True):
        direction = _lamb_moments(weight, first, second, gradient, adapted, tf.constant(float(STEP)))[2]
        ratios.append(_lamb_ratio(norm, weight, direction, adapted))
    return ratios


def _lars_step(norm: Callable, fused: bool, tensors: Tensors, gradients: list[tf.Tensor]) -> None:
    rows = zip(tensors.weights, tensors.slots[0], gradients, tensors.adapted.tolist(), strict=True)
    for weight, velocity, gradient, adapted in rows:
        ratio = _lars_ratio(norm, weight, gradient, adapted)
        decayed = gradient + DECAY * weight if adapted else gradient
        if fused:  # TensorFlow's own momentum pass, over a gradient that is already scaled and decayed
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=velocity.handle, lr=1.0, grad=RATE * ratio * decayed, momentum=MOMENTUM
            )
        else:
            velocity.assign(MOMENTUM * velocity + RATE * ratio * decayed)
            weight.assign_sub(velocity)


def _lamb_step(norm: Callable, counter: tf.Variable, tensors: Tensors, gradients: list[tf.Tensor]) -> None:
    step = tf.cast(counter.assign_add(1), tf.float32)
    rows = zip(tensors.weights, *tensors.slots, gradients, tensors.adapted.tolist(), strict=True)
    for weight, first, second, gradient, adapted in rows:
        new_first, new_second, update = _lamb_moments(weight, first, second, gradient, adapted, step)
        ratio = _lamb_ratio(norm, weight, update, adapted)
        first.assign(new_first)
        second.assign(new_second)
        weight.assign_sub(RATE * ratio * update)


class Form(NamedTuple):
    """A way to write the mathematics.

    Attributes:
        norm: the norm of a tensor.
        compiled: whether XLA compiles it.
        fused: whether LARS updates with TensorFlow's own operation for momentum.
    """

    norm: Callable
    compiled: bool = False
    fused: bool = False


RATIO_FORMS = {
    "tf.function, reduce_sum": Form(_by_reduce_sum),
    "tf.function, l2_loss": Form(_by_l2_loss),
    "tf.function, XLA": Form(_by_reduce_sum, compiled=True),
}
STEP_FORMS = {
    "tf.function, assign": Form(_by_l2_loss),
    "tf.function, ApplyMomentum": Form(_by_l2_loss, fused=True),
    "tf.function, XLA": Form(_by_reduce_sum, compiled=True),
}


def step_forms(name: str) -> dict[str, Form]:
    """The forms of a whole step; the one with TensorFlow's own momentum exists only for LARS."""
    return {form: how for form, how in STEP_FORMS.items() if name == "LARS" or not how.fused}


def rival_step(name: str, form: Form, tensors: Tensors, gradients: list[tf.Tensor]) -> Callable[[], Any]:
    """A whole step in one form."""
    counter = tf.Variable(0, dtype=tf.int64)

    def step() -> None:
        if name == "LARS":
            _lars_step(form.norm, form.fused, tensors, gradients)
        else:
            _lamb_step(form.norm, counter, tensors, gradients)

    return tf.function(step, autograph=False, jit_compile=form.compiled)


# ---- plain passes ----


def in_small_pages(elements: int) -> np.ndarray:
    """A vector [elements] float32 in pages of 4 KB."""
    memory = mmap.mmap(-1, elements * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    vector = np.frombuffer(memory, np.float32)
    vector[:] = 0.125
    return vector


def in_large_pages(elements: int) -> np.ndarray:
    """A vector [elements] float32 as NumPy allocates it: in pages of 2 MB if the system has them."""
    return np.full(elements, 0.125, np.float32)


class Floors:
    """native/lars_floors.cc: passes that read and write as much as ours, and compute almost nothing.

    By default they use pages of 4 KB, like TensorFlow's variables. NumPy requests pages of 2 MB (`in_large_pages`),
    over which the same passes take two to three quarters of the time.
    """

    def __init__(self, elements: int, allocate: Callable[[int], np.ndarray] = in_small_pages):
        self._library = compiled(_FLOORS)
        self._vectors = [allocate(elements) for _ in range(4)]
        self._elements = elements

    def passes(self, name: str) -> dict[str, Callable[[], object]]:
        """The two passes of an optimizer, each with the fastest prefetch distance on this machine."""
        return {
            part: self._fastest(getattr(self._library, f"{name.lower()}_floor_{part}")) for part in ("norms", "update")
        }

    def _fastest(self, function: Any) -> Callable[[], object]:
        pointers = (ctypes.c_void_p * 4)(*(vector.ctypes.data for vector in self._vectors))
        runs = [
            functools.partial(function, pointers, ctypes.c_int64(self._elements), ctypes.c_int64(ahead))
            for ahead in _AHEAD
        ]
        return min(runs, key=lambda run: min(timeit.repeat(run, number=1, repeat=5)))


def compiled(source: pathlib.Path) -> ctypes.CDLL:
    """Compiles one file of benchmarks/native to a library for this processor."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/{source.stem}.so"
        flags = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-shared"]
        subprocess.run(["c++", *flags, str(source), "-o", library], check=True)
        return ctypes.CDLL(library)

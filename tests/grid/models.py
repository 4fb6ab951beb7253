"""The axis of models: one row per kind of variable that a model may hold, and the batches that it is trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 4


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of model.

    Attributes:
        build: makes the model of a rank, without optimizer.
        own: beginnings of the paths of variables that differ between ranks, whatever they are trained on.
        statistics: beginnings of the paths of variables that follow from the batches, so that they differ between ranks
            that have different ones.
        of_weights: beginnings of the paths of variables that follow from the weights in the forward pass, so that they
            differ where nodes compute at weights of their own.
        unsaved: whether Keras's files leave out a part of its state.
        local: names of the layers that are passed as `local_layers`.
        inputs: makes a batch of inputs from a generator.
        optimizers: how many it has.
        gradientless: whether some trainable variables never get a gradient.
    """

    build: Callable[[int], keras.Model]
    own: Sequence[str] = ()
    statistics: Sequence[str] = ()
    of_weights: Sequence[str] = ()
    unsaved: bool = False
    local: Sequence[str] = ()
    inputs: Callable[[np.random.Generator], np.ndarray] = lambda random: random.normal(size=(BATCH, 4)).astype("f4")
    optimizers: int = 1
    gradientless: bool = False


def _stack(*layers: Any, **options: Any) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *layers], name="net", **options)


def _first(**options: Any) -> keras.layers.Layer:
    return keras.layers.Dense(3, activation="tanh", name="first", **options)


def _last(**options: Any) -> keras.layers.Layer:
    return keras.layers.Dense(2, name="last", **options)


def _unnamed(rank: int) -> keras.Model:
    for _ in range(rank):
        keras.layers.Dense(1)  # so that Keras gives the layers below other numbers on each rank
    hidden = keras.layers.Dense(3, activation="tanh")
    return keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(2)])


def _embedding(rank: int) -> keras.Model:
    table = keras.layers.Embedding(7, 3, name="table")
    return keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), _last()], name="net")


def _embedding_and_local(rank: int) -> keras.Model:
    table = keras.layers.Embedding(7, 3, name="table")
    own = keras.layers.Dense(3, activation="tanh", name="own")
    return keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), own, _last()], name="net")


def _stateful(rank: int) -> keras.Model:
    memory = keras.layers.SimpleRNN(3, stateful=True, seed=3, name="memory")
    return keras.Sequential([keras.Input(batch_shape=(BATCH, 2, 2)), memory, _last()], name="net")


@keras.saving.register_keras_serializable("grid")
class Towers(keras.Model):
    """Two towers whose variables have equal paths; the first is not used, so that it gets no gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"name": "towers", **options})
        self.unused, self.used = self._tower(), self._tower()
        self.built = True

    def _tower(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), _first(), _last()], name="tower")

    def call(self, inputs: Any) -> Any:
        return self.used(inputs)


@keras.saving.register_keras_serializable("grid")
class Two(keras.Model):
    """A critic and an actor, each with an optimizer of its own, which take one step each in a `train_step`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"name": "two", **options})
        self.critic = keras.Sequential([keras.Input((4,)), _first(), _last()], name="critic")
        self.actor = keras.Sequential([keras.Input((4,)), _first(), _last()], name="actor")
        self.built = True

    def compile(self, optimizer: Any, second: Any, **options: Any) -> None:
        super().compile(optimizer, **options)
        self.second = second

    def get_compile_config(self) -> dict[str, Any]:
        optimizers = {"optimizer": self.optimizer, "second": self.second}
        return {name: keras.saving.serialize_keras_object(each) for name, each in optimizers.items()}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**{name: keras.saving.deserialize_keras_object(each) for name, each in config.items()})
        self.optimizer.build(self.critic.trainable_variables)
        self.second.build(self.actor.trainable_variables)

    def call(self, inputs: Any) -> Any:
        return self.critic(inputs) + self.actor(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        import hvd_sparse as hvd

        inputs, targets = data[:2]
        for optimizer, part in ((self.optimizer, self.critic), (self.second, self.actor)):
            with hvd.looking_ahead(optimizer), tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_mean(tf.square(self(inputs, training=True) - targets)))
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def _ids(random: np.random.Generator) -> np.ndarray:
    return random.integers(0, 7, size=(BATCH, 3)).astype("i4")


def _sequences(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=(BATCH, 2, 2)).astype("f4")


MODELS = {
    "dense": Kind(lambda rank: _stack(_first(), _last())),
    "unnamed": Kind(_unnamed),
    "embedding": Kind(_embedding, inputs=_ids),
    "local": Kind(
        lambda rank: _stack(_first(), keras.layers.Dense(3, activation="tanh", name="own"), _last()),
        own=["own/"],
        local=["own"],
    ),
    "embedding_local": Kind(_embedding_and_local, own=["own/"], local=["own"], inputs=_ids),
    "towers": Kind(lambda rank: Towers(), gradientless=True),
    "batch_norm": Kind(
        lambda rank: _stack(_first(), keras.layers.BatchNormalization(name="norm", momentum=0.5), _last()),
        statistics=["norm/moving_"],
    ),
    "stateful": Kind(_stateful, statistics=["memory/"], unsaved=True, inputs=_sequences),
    "dropout": Kind(
        lambda rank: _stack(_first(), keras.layers.Dropout(0.5, seed=7 + rank, name="drop"), _last()),
        own=["drop/", "seed_generator"],
        unsaved=True,
    ),
    "spectral": Kind(
        lambda rank: _stack(keras.layers.SpectralNormalization(_first(), name="spectral"), _last()),
        of_weights=["spectral/vector_"],
    ),
    "two_optimizers": Kind(lambda rank: Two(), optimizers=2),
}


def made(kind: str, rank: int) -> keras.Model:
    """A rank's model with the weights that all ranks begin with, and its own variables with values of its own."""
    model = MODELS[kind].build(rank)
    random = np.random.default_rng(5)
    for number, variable in enumerate(model.weights):
        value = 0.5 * random.normal(size=variable.shape)
        if "moving_variance" in variable.path:
            value = np.ones(variable.shape)
        if path(variable).startswith(tuple(MODELS[kind].own)):
            value += 0.125 * np.random.default_rng([rank, number]).normal(size=variable.shape)
        variable.assign(value.astype(variable.dtype))
    return model


def path(variable: Any) -> str:
    """A variable's path without the model's own name."""
    return variable.path.partition("/")[2] if variable.path.startswith("net/") else variable.path


def batch(kind: str, rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and targets of a rank in a step."""
    random = np.random.default_rng([17, rank, step])
    return MODELS[kind].inputs(random), random.normal(size=(BATCH, 2)).astype("f4")

"""Two stages of one small model in one process, with real sockets between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.pipeline.chain import Chain
from hvd_sparse.pipeline.neighbours import Neighbours, Place
from hvd_sparse.pipeline.passes import Last, Middle
from hvd_sparse.pipeline.schedules import fill_drain
from hvd_sparse.pipeline.steps import Split, Steps
from hvd_sparse.transport.meeting import Meeting
from link import hold

SECRET, SUBJECT = bytes(32), "all"
WIDTH, SPARSITY, KEPT, ROWS = 24, 0.75, 6, 6


class Held(NamedTuple):
    """The addresses on which stages of a job listen.

    Attributes:
        meeting: that of the job.
        ports: sockets that reserve the ports for the servers.
    """

    meeting: Meeting
    ports: list[Any]

    def release(self) -> None:
        """Releases all ports."""
        for each in self.ports:
            each.close()


def held(count: int) -> Held:
    """Ports for `count` stages."""
    found = [hold("127.0.0.1") for _ in range(count)]
    return Held(Meeting(tuple(address for _, address in found), SECRET, None), [port for port, _ in found])


@contextlib.contextmanager
def neighbours(count: int, subjects: tuple[str, ...] = ()) -> Iterator[list[Neighbours]]:
    """Connections of `count` stages, which are closed at the end."""
    job, made = held(count), []
    for number in range(count):
        place = Place(number, count, tuple(range(count)))
        made.append(Neighbours(place, job.meeting, subjects[number] if subjects else SUBJECT, 1))
    job.release()
    yield made
    for each in made:
        each.abandon()


class Model(NamedTuple):
    """The parts of one stage: its computation, and the model whose weights it trains."""

    passes: Middle | Last
    model: keras.Model


def first(optimizer: Callable[[], Any] = keras.optimizers.SGD) -> Model:
    """A dense layer with ReLU."""
    layer = keras.layers.Dense(WIDTH, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = _compiled(6, layer, optimizer)
    return Model(Middle(model, Chain([model], [], True)), model)


def last(optimizer: Callable[[], Any] = keras.optimizers.SGD) -> Model:
    """A dense layer, and the mean squared error."""
    model = _compiled(
        WIDTH, keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=2)), optimizer
    )
    return Model(Last(model, Chain([model], [], False), lambda loss, rows, y, predicted, weight: {"loss": loss}), model)


def _compiled(width: int, layer: keras.layers.Layer, optimizer: Callable[[], Any]) -> keras.Model:
    model = keras.Sequential([keras.Input((width,)), layer])
    model.compile(optimizer(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def steps(of: Model, connections: Neighbours, micro_batches: int = 1) -> Steps:
    """What one of the two stages does for each batch."""
    split, none = Split("float32", SPARSITY), Split("float32", 0.0)
    splits = (none, split) if connections.place.is_first else (split, none)
    return Steps(
        connections.place, connections, of.passes, *splits, lambda source, batch: None, fill_drain, micro_batches
    )


def batch(seed: int = 0, rows: int = ROWS) -> tuple[tf.Tensor, tf.Tensor, None]:
    """Inputs, targets and no weights."""
    x = np.random.default_rng(seed).normal(size=(rows, 6)).astype("f4")
    return tf.constant(x), tf.constant(np.tanh(x[:, :2] - x[:, 2:4])), None

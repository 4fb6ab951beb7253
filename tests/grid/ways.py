"""The axis of ways of going on: what happens to a model between two phases of its training."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from tests.grid.models import Two


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A rank's training where something happens to it.

    Attributes:
        model: the trained model.
        new: makes a model like the one at the beginning; its argument is the recipe, None for the same.
        aggregator: makes the cell's recipe.
        options: the other arguments of `DistributedOptimizer`.
        local: the names of the model's local layers.
        eager: whether it runs eagerly.
        start: the weights at the beginning.
        folder: the same on all ranks, empty at the beginning.
        train: trains a model on one more batch.
        meet: a barrier.
    """

    model: keras.Model
    new: Callable[..., keras.Model]
    aggregator: Callable[[], Any]
    options: dict[str, Any]
    local: Sequence[str]
    eager: bool
    start: Sequence[np.ndarray]
    folder: pathlib.Path
    train: Callable[[keras.Model], None]
    meet: Callable[[str], Any]


GoesOn = tuple[keras.Model, Sequence[Any]]  # the model, and the callbacks of the second phase


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of going on.

    Attributes:
        go_on: what happens.
        exact: whether training goes on with the same bits, under every recipe.
        keeps_slots: whether the optimizer's slots go on.
        loses_own: whether each rank's own variables get rank 0's values.
        averages_slots: whether slots that differ between nodes go on with their mean.
        drops: whether what waits to be sent is dropped or shared out.
        changes: whether the recipe is another one afterwards.
        broadcasts: whether the ranks' statistics, such as those of batches, get rank 0's values, and no others.
        by_keras: whether Keras or TensorFlow writes all of it.
        moves: whether other ranks go on, which are `Cell.after`.
        saves: the callbacks of the first phase, which saves.
    """

    go_on: Callable[[Stopped], GoesOn]
    exact: bool = False
    keeps_slots: bool = True
    loses_own: bool = False
    averages_slots: bool = False
    drops: bool = False
    changes: bool = False
    broadcasts: bool = False
    by_keras: bool = False
    moves: bool = False
    saves: Callable[[pathlib.Path], Sequence[Any]] = lambda folder: ()


def _not_stopped(at: Stopped) -> GoesOn:
    return at.model, ()


def _checkpoints(folder: pathlib.Path) -> Sequence[Any]:
    return [hvd.callbacks.CheckpointCallback(folder / "checkpoints")]


def _checkpoint_same(at: Stopped) -> GoesOn:
    return at.model, _checkpoints(at.folder)


def _checkpoint_new(at: Stopped) -> GoesOn:
    return at.new(), _checkpoints(at.folder)


def _checkpoint_dense(at: Stopped) -> GoesOn:
    return at.new(hvd.recipes.dense()), _checkpoints(at.folder)


def _written(at: Stopped, name: str, write: Callable[[keras.Model, pathlib.Path], None]) -> pathlib.Path:
    """The file that rank 0 writes of the model."""
    hvd.consolidate(at.model)
    if hvd.rank() == 0:
        write(at.model, at.folder / name)
    at.meet("written")
    return at.folder / name


def _saved(at: Stopped) -> pathlib.Path:
    return _written(at, "model.keras", lambda model, path: model.save(path))


def _load(at: Stopped, path: pathlib.Path) -> keras.Model:
    model = hvd.load_model(path, aggregator=at.aggregator(), **at.options)
    model.run_eagerly = at.eager
    for layer in model.layers:
        for variable in layer.trainable_variables if layer.name in at.local else ():
            getattr(model.optimizer, "inner_optimizer", model.optimizer).register_local_var(variable)
    return model


def _model_file(at: Stopped) -> GoesOn:
    return _load(at, _saved(at)), ()


def _model_file_on_rank_0(at: Stopped) -> GoesOn:
    path = _saved(at)
    model = _load(at, path) if hvd.rank() == 0 else at.new()
    _build(model)
    return model, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]


def _weights_file(at: Stopped) -> GoesOn:
    path = _written(at, "model.weights.h5", lambda model, path: model.save_weights(path))
    model = at.new()
    _build(model)
    model.load_weights(path)
    return model, ()


def _weights_back(at: Stopped) -> GoesOn:
    _build(at.model)  # otherwise the file has no slots
    path = _written(at, "model.weights.h5", lambda model, path: model.save_weights(path))
    at.train(at.model)
    at.model.load_weights(path)
    return at.model, ()


def _build(model: keras.Model) -> None:
    """Builds the optimizers that are not built yet."""
    pairs = [(model.optimizer, model)]
    if isinstance(model, Two):
        pairs = [(model.optimizer, model.critic), (model.second, model.actor)]
    for optimizer, part in pairs:
        if not optimizer.built:
            optimizer.build(part.trainable_variables)


def _set_weights(at: Stopped) -> GoesOn:
    at.model.set_weights(at.model.get_weights())
    return at.model, ()


def _rolled_back(at: Stopped) -> GoesOn:
    at.model.set_weights(at.start)
    return at.model, ()


def _broadcast(at: Stopped) -> GoesOn:
    return at.model, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]


def _deepcopy(at: Stopped) -> GoesOn:
    hvd.consolidate(at.model)
    return copy.deepcopy(at.model), ()


def _keras_checkpoints(folder: pathlib.Path) -> Sequence[Any]:
    """Keras's own callback on rank 0, after one of ours, which gathers the moments."""
    own = [keras.callbacks.ModelCheckpoint(folder / "model.keras")] if hvd.rank() == 0 else []
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *own]


def _keras_checkpoint(at: Stopped) -> GoesOn:
    at.meet("written")
    return _load(at, at.folder / "model.keras"), ()


def _tf_checkpoint(at: Stopped) -> GoesOn:
    _build(at.model)
    path = _written(
        at, "tf", lambda model, path: tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(path))
    )
    model = at.new()
    _build(model)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(str(path)).assert_existing_objects_matched()
    return model, ()


WAYS = {
    "not_stopped": Way(_not_stopped, exact=True),
    "checkpoint_same": Way(_checkpoint_same, exact=True, saves=_checkpoints),
    "checkpoint_new": Way(_checkpoint_new, exact=True, saves=_checkpoints),
    "checkpoint_dense": Way(_checkpoint_dense, averages_slots=True, changes=True, saves=_checkpoints),
    "checkpoint_ranks": Way(_checkpoint_new, loses_own=True, averages_slots=True, moves=True, saves=_checkpoints),
    "model_file": Way(_model_file, loses_own=True, averages_slots=True, drops=True, by_keras=True),
    "model_file_on_rank_0": Way(_model_file_on_rank_0, loses_own=True, averages_slots=True, drops=True, by_keras=True),
    "weights_file": Way(_weights_file, loses_own=True, averages_slots=True, drops=True, by_keras=True),
    "set_weights": Way(_set_weights, drops=True),
    "rolled_back": Way(_rolled_back, keeps_slots=False, drops=True),
    "weights_back": Way(_weights_back, loses_own=True, averages_slots=True, drops=True, by_keras=True),
    "broadcast": Way(_broadcast, exact=True, broadcasts=True),
    "deepcopy": Way(_deepcopy, averages_slots=True, drops=True, by_keras=True),
    "keras_checkpoint": Way(
        _keras_checkpoint, loses_own=True, averages_slots=True, drops=True, by_keras=True, saves=_keras_checkpoints
    ),
    "tf_checkpoint": Way(_tf_checkpoint, loses_own=True, averages_slots=True, drops=True, by_keras=True),
}

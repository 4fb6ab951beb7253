"""Which variables are each rank's own, which optimizers a model has, and what a checkpoint of other ranks gives."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras import ownership
from hvd_sparse.keras.callbacks import folders
from hvd_sparse.keras.ownership import OwnKind
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.storage import archives, files

X = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3)


def compiled(local=False, **options):
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5, **options)
    recipe = hvd.recipes.topk(0.5)
    model.compile(
        hvd.DistributedOptimizer(optimizer, aggregator=recipe, local_layers=layers[-1:] if local else ()), "mse"
    )
    return model


def kinds(model):
    model.optimizer.build(model.trainable_variables)
    return [own.kind for own in ownership.own_of(model).values()]


def test_the_table():
    plain = [OwnKind.STATISTIC] * 2 + [OwnKind.SEED]
    assert kinds(compiled()) == plain
    assert kinds(compiled(gradient_accumulation_steps=2)) == plain + [OwnKind.SUM] * 4
    # Kernel and bias are local, and so are their momentum, their moving averages and their sums.
    local = kinds(compiled(local=True, use_ema=True, gradient_accumulation_steps=2))
    assert sorted(each.name for each in local) == sorted(["STATISTIC"] * 2 + ["SEED"] + ["LOCAL"] * 8 + ["SUM"] * 2)


def test_states_of_a_stateful_layer_are_no_statistics():
    recurrent = keras.layers.Bidirectional(keras.layers.LSTM(2, stateful=True))
    model = keras.Sequential([keras.Input((5, 2), batch_size=4), recurrent, keras.layers.Dense(1)])
    assert [own.kind for own in ownership.own_of(model).values() if own.kind is not OwnKind.SEED] == [OwnKind.STATE] * 4


def test_names_do_not_depend_on_what_else_a_process_has_built():
    assert list(ownership.own_of(compiled())) == list(ownership.own_of(compiled()))


def test_offsets_and_slots_of_rows_that_look_ahead_are_known():
    layers = [keras.layers.Embedding(5, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
    recipe = hvd.recipes.recommended(density=0.5)
    model.compile(hvd.DistributedOptimizer(optimizer, aggregator=recipe, local_layers=layers[-1]), "mse")
    model.fit(np.arange(48).reshape(16, 3) % 5, X[:, :1], batch_size=4, verbose=0)
    names = [own.kind.name for own in ownership.own_of(model).values()]
    assert names == ["LOCAL"] * 4 + ["AHEAD"], "kernel and bias with their momentum, and the embedding's offset"


# ---- the optimizers of a model ----


class Several(keras.Model):
    """A model with optimizers in many places."""

    def __init__(self, shared):
        super().__init__()
        self.first = self.again = shared
        self.inside = keras.Sequential([keras.layers.Dense(1)])
        self.inside.own = keras.optimizers.SGD()
        self.listed = [keras.optimizers.SGD(), {"deep": keras.optimizers.SGD()}]


def test_each_optimizer_counts_once_and_that_of_compile_first():
    shared = keras.optimizers.SGD()
    model = Several(shared)
    assert list(optimizers_of(model)) == ["again", "inside/own", "listed/0", "listed/1/deep"]
    model.compile(keras.optimizers.LossScaleOptimizer(shared))
    assert [*optimizers_of(model)][0] == "optimizer" and len(optimizers_of(model)) == 4
    assert list(optimizers_of(tf.train.Checkpoint(model=model, other=shared))) != []


def test_a_model_without_an_optimizer_has_none():
    assert optimizers_of(keras.Sequential([keras.layers.Dense(1)])) == {}


# ---- another number of ranks ----


def fit(model, directory, epochs):
    callback = hvd.callbacks.CheckpointCallback(directory)
    model.fit(X, X[:, :1], batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback])
    return model


def of_two_ranks(folder, means):
    """Turns a checkpoint into one of two ranks, with these means of variables that differed."""
    manifest, arrays = archives.read(folder / folders.RESIDUALS)
    named = {f"mean {name}": mean for name, mean in means.items()}
    manifest |= {"ranks": 2, "means": [[name, list(mean.shape), mean.dtype.str] for name, mean in named.items()]}
    marker = json.loads((folder / folders.MARKER).read_text())
    marker["files"][folders.RESIDUALS] = archives.write(folder / folders.RESIDUALS, manifest, {**arrays, **named})
    folders.write_marker(folder, marker["epoch"], 2, marker["files"], marker["optimizers"])


def test_another_number_of_ranks_gets_means_and_is_told_of_seeds(tmp_path):
    model = fit(compiled(gradient_accumulation_steps=3), tmp_path, 1)
    own = ownership.own_of(model)
    means = {
        name: np.full(each.variable.shape, number, "f4")
        for number, (name, each) in enumerate(own.items())
        if each.kind in ownership.MEAN
    }
    assert len(means) == 6
    of_two_ranks(tmp_path / "epoch-0000", means)
    again = compiled(gradient_accumulation_steps=3)
    with pytest.warns(UserWarning, match="was written by 2 ranks.*random seeds.*starts afresh") as given:
        fit(again, tmp_path, 1)
    assert sum("afresh" in str(each.message) for each in given) == 1
    for name, each in ownership.own_of(again).items():
        if name in means:
            np.testing.assert_array_equal(each.variable, means[name])


def test_a_file_of_an_earlier_version_is_read_and_told_of(tmp_path):
    model = fit(compiled(), tmp_path, 1)
    path = files.of_rank(tmp_path / "epoch-0000" / folders.RESIDUALS, 0, 1)
    manifest, arrays = archives.read(path)
    del manifest["alike"]
    seeds = {"own 0": arrays.pop(next(name for name in arrays if name.startswith("own seed")))}
    marker = json.loads((path.parent / folders.MARKER).read_text())
    marker["files"][path.name] = archives.write(path, manifest, {**arrays, **seeds})
    folders.write_marker(path.parent, 0, 1, marker["files"])
    again = compiled()
    with pytest.warns(UserWarning, match="written by an earlier version: all ranks get rank 0's non-trainable"):
        fit(again, tmp_path, 1)
    for first, second in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_file_of_an_earlier_version_holds_the_slots_of_the_first_optimizer_only():
    model = compiled(local=True)
    layer = model.layers[-1]
    second = keras.optimizers.SGD(0.1, momentum=0.5)
    model.second = hvd.DistributedOptimizer(second, aggregator=hvd.recipes.topk(0.5), local_layers=[layer])
    for optimizer in (model.optimizer, model.second):
        optimizer.build(model.trainable_variables)
    found = [id(each) for each in ownership.numbered(model)]
    momentum = {each: ownership.held_for(each, layer.trainable_variables) for each in (model.optimizer, model.second)}
    assert [len(each) for each in momentum.values()] == [2, 2]
    assert all(id(each) in found for each in momentum[model.optimizer])
    assert not any(id(each) in found for each in momentum[model.second])


def test_another_set_of_optimizers_is_refused(tmp_path):
    fit(compiled(), tmp_path, 1)
    model = compiled()
    model.second = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(
        ValueError, match="holds the distributed optimizers optimizer, and the model has optimizer, sec"
    ):
        fit(model, tmp_path, 2)

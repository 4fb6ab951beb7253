"""Rules of copies and of what is checked when `fit` begins that one process can show."""

import copy
import pickle

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from hvd_sparse.keras import copies, fitting
from hvd_sparse.keras.fitting import Saver


@pytest.fixture(autouse=True, scope="module")
def started():
    hvd.init()


def made(**options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    local = model.layers[-1:] if options.pop("local", False) else ()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=local, **options)
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def test_a_copy_is_distributed_in_the_same_way():
    model = made(aggregator=hvd.recipes.topk(0.5), backward_passes_per_step=2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), keras.models.clone_model(model)):
        exchange = other.optimizer.exchange
        assert exchange is not model.optimizer.exchange
        assert copies.of_optimizer(other.optimizer) is not None
        assert repr(exchange.aggregator) == repr(model.optimizer.exchange.aggregator)
        assert other.optimizer.gradient_accumulation_steps == 2
        assert type(other.optimizer).__name__ == "SGD" and other.optimizer.__class__ is keras.optimizers.SGD


def test_a_copy_of_loss_scaling_is_distributed_inside():
    optimizer = hvd.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    assert copies.of_optimizer(copy.deepcopy(optimizer)) is not None


def test_local_variables_are_found_by_their_places():
    model = made(local=True)
    for other in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model)), keras.models.clone_model(model)):
        assert other.optimizer.exchange.are_local(other.trainable_variables) == [False, False, True, True]
    with pytest.raises(ValueError, match="local_layers"):
        copy.deepcopy(model.optimizer)


def test_momentum_that_was_not_returned_is_not_copied():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    recipe = hvd.recipes.momentum_corrected(hvd.recipes.hitopk(0.5))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(), aggregator=recipe), "mse", run_eagerly=True)
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    with pytest.raises(RuntimeError, match=r"hvd\.consolidate"):
        copy.deepcopy(model)
    hvd.consolidate(model)
    with pytest.warns(UserWarning, match="begins with new moments"):
        copy.deepcopy(model.optimizer)
    np.testing.assert_array_equal(copy.deepcopy(model).optimizer.variables[2], model.optimizer.variables[2])


def test_plain_models_and_files_know_nothing_of_it(tmp_path):
    model = made()
    assert b"hvd_sparse" not in repr(model.get_compile_config()).encode()
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    assert b"hvd_sparse" not in pickle.dumps(plain)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert copies.of_optimizer(loaded.optimizer) is None and copies.was_loaded(loaded.optimizer)
    assert not copies.was_loaded(keras.models.clone_model(plain).optimizer)


def saver(kind="ModelCheckpoint", path="/a", problem="", epoch=0):
    return Saver(kind, path, problem, epoch)


@pytest.mark.parametrize(
    "by_rank, told",
    [
        ({0: [saver()], 1: []}, None),
        ({0: [saver()], 1: [saver(path="/b")]}, None),
        ({0: [saver()], 1: [saver()]}, "Ranks 0, 1 would all write /a by ModelCheckpoint.*BestModelCheckpoint"),
        ({0: [saver()], 1: [saver(path="/b", problem="no")]}, "On rank 1, ModelCheckpoint cannot save /b: no"),
        ({0: [saver("BackupAndRestore", epoch=2)], 1: []}, "rank 0 at epoch 2, rank 1 at epoch 0.*CheckpointCallback"),
    ],
)
def test_what_ranks_tell_each_other_decides(by_rank, told):
    if told is None:
        fitting.require_savable(by_rank)
        return
    with pytest.raises(ValueError, match=told):
        fitting.require_savable(by_rank)

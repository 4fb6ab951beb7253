"""Bugs in what anybody tries first: one process, one node, `auto`, the planner and shared batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.spec import Spec
from hvd_sparse.tuning import planner
from tests import figures, threads

X = np.random.default_rng(0).standard_normal((48, 8)).astype("f4")
Y = np.random.default_rng(1).standard_normal((48, 2)).astype("f4")


@pytest.fixture(autouse=True)
def found():
    """Nodes as they are found, in a process that has built nothing."""
    hvd.init()
    keras.backend.clear_session()
    yield
    hvd.init()


def trained(optimizer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


RECIPES = {
    "recommended": lambda: hvd.recipes.recommended(0.01),
    "hitopk": lambda: hvd.recipes.hitopk(0.01),
    "topk": lambda: hvd.recipes.topk(0.01),
}


def apart(recipe):
    """How far a training with the recipe ends from one with plain Keras."""
    ours = trained(hvd.DistributedOptimizer(keras.optimizers.Adam(0.02), aggregator=recipe))
    return np.max(np.abs(ours - trained(keras.optimizers.Adam(0.02))))


@pytest.mark.parametrize("name", RECIPES)
def test_one_process_loses_nothing_to_a_sparse_recipe(name):
    assert apart(RECIPES[name]()) < 1e-6


def test_control_one_process_loses_nothing_to_a_dense_recipe():
    assert apart(hvd.recipes.dense()) < 1e-6


DENSE = [1.0, 1.1, 1.0, 0.9, 1.0]
TIMES = {
    "a little": [0.94, 1.03, 0.93, 0.85, 0.94],  # always faster, by 6%
    "sometimes": [0.7, 0.7, 1.4, 1.5, 0.7],
}


def choices(folder, seconds):
    """What four ranks choose if these times of trials are known."""
    recipe = hvd.recipes.auto(0.05, budget=0.0)

    def one_rank(grid):
        return recipe.init(Spec(1000, grid)).choice

    def change(content):
        for each in figures.trials_of(content):
            each.update(seconds=seconds, sent=dict.fromkeys(seconds, 1e6))

    with figures.kept_in(folder / "measured"):
        threads.run(4, 2, one_rank)
    figures.copy(folder / "measured", folder / "changed", change)
    with figures.kept_in(folder / "changed"):
        return threads.run(4, 2, one_rank)


@pytest.mark.parametrize("gain", TIMES)
def test_auto_takes_a_lossy_recipe_only_where_that_clearly_wins(gain, tmp_path):
    assert choices(tmp_path, {"dense": DENSE, "topk": TIMES[gain]}) == ["dense"] * 4


def test_auto_prints_the_time_of_dense_beside_that_of_a_lossy_recipe(tmp_path, capsys):
    assert choices(tmp_path, {"dense": DENSE, "hitopk": [0.3] * 5, "topk": [0.5] * 5}) == ["hitopk"] * 4
    assert "dense (1e+03 ms)" in capsys.readouterr().out


def test_control_auto_takes_a_lossy_recipe_that_is_twice_as_fast(tmp_path):
    assert choices(tmp_path, {"dense": DENSE, "topk": [0.5] * 5}) == ["topk"] * 4


def test_the_planner_names_no_choice_that_saves_nothing(capsys):
    planner.main(["--simulate", "nodes=1", "local=8", "inter=25Gbit", "intra=480Gbit", "model=resnet50"])
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert all("MB" not in row for row in rows)
    assert {row.split(": ")[0].split()[-1] for row in rows} <= {"dense", "torus2d"}


def test_control_the_planner_says_what_is_saved_between_nodes(capsys):
    planner.main(["--simulate", "nodes=16", "local=8", "inter=25Gbit", "intra=480Gbit", "model=resnet50"])
    assert all("MB" in row for row in capsys.readouterr().out.splitlines()[-3:])


def saved_epochs(folder, batches):
    """The checkpoints of a training on servers whose batches come in this way."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    push = hvd.compressors.SampledThreshold(0.5)
    optimizer = hvd.servers.ShardedServers(keras.optimizers.Adagrad(0.02), push=push)
    model.compile(optimizer, "mse")
    saving = hvd.callbacks.ServersCheckpointCallback(folder)
    try:
        model.fit(batches, epochs=2, verbose=0, callbacks=[saving])
    finally:
        hvd.servers.finish(optimizer)
    return sorted(each.name for each in folder.iterdir())


def test_servers_save_while_ranks_share_batches(tmp_path):
    shared = hvd.servers.SharedBatches(len(X), batch_size=8)
    try:
        rows = shared.dataset().map(lambda rows: (tf.gather(X, rows), tf.gather(Y, rows)))
        assert saved_epochs(tmp_path, rows) == ["epoch-0000", "epoch-0001"]
    finally:
        shared.close()


def test_control_servers_save_with_batches_that_are_known(tmp_path):
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    assert saved_epochs(tmp_path, batches) == ["epoch-0000", "epoch-0001"]

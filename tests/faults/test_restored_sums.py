"""What continues from the sums in a checkpoint, as on another number of ranks or from eager steps to traced ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

SIZE = 100
STAGES = hvd.recipes.warmup(hvd.recipes.topk(0.01), steps=4, densities=[0.5, 0.1], stage_steps=2)


@pytest.fixture(autouse=True, scope="module")
def started():
    hvd.init(local_size=1)  # a node, so that recipes select


def _gradient(step):
    return tf.constant(np.random.default_rng(step).normal(size=SIZE).astype("f4"))


def _steps(optimizer, variable, first, count):
    """The number of elements that each of these steps changes."""
    changed = []
    for step in range(first, first + count):
        before = variable.numpy()
        optimizer.apply([_gradient(step)], [variable])
        changed.append(int(np.count_nonzero(before != variable.numpy())))
    return changed


def _begun(recipe, steps):
    variable = keras.Variable(np.zeros(SIZE, "f4"), name="v")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), aggregator=recipe)
    return optimizer, variable, _steps(optimizer, variable, 0, steps)


def _continued(recipe, steps, folder):
    """An optimizer and its variable that continue from the sums alone."""
    optimizer, variable, _ = _begun(recipe, steps)
    hvd.checkpoint.save(folder / "residuals.npz", optimizer, exact=False)
    other = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), aggregator=recipe)
    goes_on = keras.Variable(variable.numpy(), name="v")
    hvd.checkpoint.restore(folder / "residuals.npz", other)
    return other, goes_on


def test_a_warm_up_is_where_it_was(tmp_path):
    _, _, whole = _begun(STAGES, 6)
    assert whole == [50, 50, 10, 10, 1, 1]
    assert _steps(*_continued(STAGES, 3, tmp_path), 3, 3) == whole[3:]


def test_the_next_exchange_comes_when_it_was_due(tmp_path):
    recipe = hvd.recipes.updates(hvd.recipes.topk(1.0), ahead=True, every=4)
    assert _steps(*_continued(recipe, 3, tmp_path), 3, 5) == [SIZE, 0, 0, 0, SIZE]


def test_the_outer_step_keeps_its_velocity(tmp_path):
    recipe = hvd.recipes.diloco(every=2)
    _, whole, _ = _begun(recipe, 6)
    optimizer, variable = _continued(recipe, 2, tmp_path)
    _steps(optimizer, variable, 2, 4)
    np.testing.assert_allclose(variable, whole, rtol=1e-6)


def test_control_what_a_rank_saves_of_local_steps_keeps_its_names():
    recipe = hvd.recipes.updates(hvd.recipes.topk(1.0), ahead=True, every=4)
    optimizer, _, _ = _begun(recipe, 1)
    saved = ["_local_step", "_outer_velocity", "_residual", "_step"]
    assert sorted(optimizer.exchange.rank_state().values) == [*(f"bucket0{name}" for name in saved), "step"]


@pytest.mark.parametrize("recipe", [STAGES, hvd.recipes.diloco(every=2)], ids=["warmup", "diloco"])
def test_control_weights_and_residuals_go_on(recipe, tmp_path):
    optimizer, variable, _ = _begun(recipe, 2)
    waiting = optimizer.exchange.residual_sum().residuals
    other, goes_on = _continued(recipe, 2, tmp_path)
    np.testing.assert_array_equal(goes_on, variable)
    _steps(other, goes_on, 2, 1)
    assert other.exchange.step == 3 and set(other.exchange.residual_sum().residuals) == set(waiting)

"""What recipes become on one node."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import recipes
from hvd_sparse.aggregators import Accumulated, Hierarchical, LocalSteps, Mean
from hvd_sparse.aggregators.sparcml_algorithm1 import SparCMLAlgorithm1
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.exchange import one_node

WHOLE = ErrorFeedback(TopK(1.0))
OF_GRADIENTS = {
    "hitopk": recipes.hitopk(0.01),
    "topk": recipes.topk(0.01, "float16"),
    "dropping": recipes.dropping(0.01, quantizer=hvd.quantizers.TwoBits()),
    "dct": recipes.dct(),
    "sparcml": recipes.sparcml(0.01, bits=4),
    "auto": recipes.auto(0.01),
    "warmup": recipes.warmup(recipes.hitopk(0.01), 5),
    "dense_below": recipes.dense_below(recipes.hitopk(0.01)),
    "schedule": recipes.schedule([(0, recipes.hitopk(0.01)), (2, recipes.torus2d())]),
}
UNCHANGED = [
    recipes.mean(),
    recipes.dense("float16"),
    recipes.torus2d(),
    recipes.diloco(),
    recipes.auto(0.01, ["dense", "torus2d"]),
]
OF_UPDATES = [
    (recipes.recommended(0.01), LocalUpdates(WHOLE, ahead=True, gain_ratio=True)),
    (recipes.updates(recipes.topk(0.01)), LocalUpdates(WHOLE)),
    (recipes.updates(recipes.auto(0.01), ahead=True), LocalUpdates(WHOLE, ahead=True)),
    (recipes.updates(recipes.hitopk(0.01), ahead=True, every=8), LocalUpdates(WHOLE, ahead=True)),
    (recipes.sparseloco(), LocalUpdates(WHOLE, ahead=True, gathers=True)),
    (recipes.dgc(0.01), MomentumCorrection(WHOLE)),
    (recipes.momentum_corrected(recipes.hitopk(0.01), momentum=0.5), MomentumCorrection(WHOLE, 0.5)),
]


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_a_recipe_of_gradients_becomes_the_dense_mean(name):
    assert one_node.everything(OF_GRADIENTS[name]) == Mean()


@pytest.mark.parametrize("recipe", UNCHANGED)
def test_a_recipe_that_selects_nothing_stays(recipe):
    assert one_node.everything(recipe) is recipe


@pytest.mark.parametrize("recipe, sender", OF_UPDATES)
def test_what_the_exchange_has_taken_over_stays_there(recipe, sender):
    assert one_node.everything(recipe) == Hierarchical(Accumulated(sender))


def test_an_outer_step_and_a_learning_rate_stay():
    recipe = recipes.diloco(3)
    sparse = LocalSteps(recipes.sparseloco().inner, 3, recipe.outer)
    assert one_node.everything(sparse) == LocalSteps(
        Hierarchical(Accumulated(LocalUpdates(WHOLE, ahead=True, gathers=True))), 3, recipe.outer
    )
    published = recipes.sparcml(0.01, bits=4, as_published=True)
    assert one_node.everything(published) == SparCMLAlgorithm1(Accumulated(WHOLE))


@pytest.fixture
def init():
    """Starts a rank with its node found or given."""
    yield hvd.init
    hvd.init(local_size=1)


def residuals(recipe):
    exchange = hvd.GradientExchange(recipe)
    variable = tf.Variable(np.arange(1.0, 101.0, dtype="f4"), name="weights")
    (mean,) = exchange([tf.identity(variable)], [variable])
    return mean.numpy(), exchange.residual_sum().residuals


def test_nodes_that_are_given_are_taken_at_their_word(init):
    recipe = recipes.hitopk(0.1)
    init(local_size=1)
    mean, kept = residuals(recipe)
    assert np.count_nonzero(mean) == 10 and np.count_nonzero(*kept.values()) == 90
    init()
    mean, kept = residuals(recipe)
    assert np.count_nonzero(mean) == 100 and not kept


def model_with(recipe):
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, kernel_initializer="ones")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5), aggregator=recipe), "mse")
    return model


def dgc(density):
    return recipes.dgc(density, 1)


X, Y = np.random.default_rng(0).standard_normal((8, 8)).astype("f4"), np.zeros((8, 4), "f4")


@pytest.mark.parametrize(
    "make", [recipes.hitopk, *(pytest.param(make, marks=pytest.mark.thorough) for make in (recipes.recommended, dgc))]
)
def test_a_residual_of_several_nodes_is_in_the_first_exchange(make, init):
    """A training that was stopped where recipes select goes on where they do not, and the other way round."""
    init(local_size=1)
    before = model_with(make(0.1))
    before.fit(X, Y, epochs=5, verbose=0)
    exchange = before.optimizer.exchange
    total = exchange.residual_sum()
    assert any(np.any(each) for each in total.residuals.values())
    init()
    after = model_with(make(0.1))
    after.set_weights(before.get_weights())
    after.optimizer.exchange.restore(total)
    lone = model_with(make(0.1))
    lone.set_weights(before.get_weights())
    for model in (after, lone):
        model.fit(X, Y, epochs=1, verbose=0)
    rate = 1.0 if total.unit == "weights" else 0.1
    for found, without, name in zip(after.get_weights(), lone.get_weights(), total.shapes, strict=True):
        np.testing.assert_allclose(without - found, rate * total.residuals[name], rtol=1e-4, atol=1e-6)
    left = after.optimizer.exchange.residual_sum()
    assert not any(np.any(each) for each in left.residuals.values())
    init(local_size=1)
    again = model_with(make(0.1))
    again.optimizer.exchange.restore(left)
    again.fit(X, Y, epochs=1, verbose=0)
    assert again.optimizer.exchange.step == left.step + 1


SCRIPT = """
import tensorflow as tf, hvd_sparse as hvd
hvd.init()
for _ in range(2):
    exchange, variable = hvd.GradientExchange(hvd.recipes.hitopk(0.1)), tf.Variable(tf.zeros([9]))
    exchange([tf.ones([9])], [variable])
"""


def test_it_is_said_in_one_line():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=300)
    told = ended.stdout.splitlines()
    assert len(told) == 1 and "everything is sent" in told[0] and "hvd.init(local_size=1)" in told[0]

"""Training on one node that was found, not given: every recipe is plain Keras, also saved and resumed."""

import itertools

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from hvd_sparse import recipes

X = np.random.default_rng(0).standard_normal((32, 6)).astype("f4")
Y = np.random.default_rng(1).standard_normal((32, 2)).astype("f4")
RECIPES = {
    "recommended": lambda: recipes.recommended(0.05),
    "hitopk": lambda: recipes.hitopk(0.05),
    "dgc": lambda: recipes.dgc(0.05, 2),
    "every": lambda: recipes.updates(recipes.hitopk(0.05), ahead=True, every=3),
    "auto": lambda: recipes.updates(recipes.auto(0.05), ahead=True, gain_ratio=True),
    "sparseloco": lambda: recipes.sparseloco(3),
}
OPTIMIZERS = {
    "momentum": lambda **options: keras.optimizers.SGD(0.05, momentum=0.5, **options),
    "adam": lambda **options: keras.optimizers.AdamW(0.05, **options),
}


@pytest.fixture(autouse=True)
def found(fresh):
    hvd.init()
    yield
    hvd.init(local_size=1)


def made(optimizer):
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(9, "tanh"), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def fit(model, epochs, *callbacks):
    # A callback of ours, so that the exchange knows the epoch.
    mean = hvd.callbacks.MetricAverageCallback()
    model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=[mean, *callbacks])
    return model


def values(model):
    """The weights, and what a file holds of the optimizer."""
    saved = {}
    model.optimizer.save_own_variables(saved)
    return [np.array(each) for each in (*model.weights, *(saved[name] for name in sorted(saved)))]


def tiers(pairs):
    """The combinations, of which the quick tier has those of a recipe of updates and one of gradients."""
    for pair in pairs:
        yield pytest.param(*pair, marks=[pytest.mark.thorough] * (pair[0] not in ("recommended", "hitopk")))


# Under momentum correction Adam's second moment is that of the velocity, on any number of nodes.
@pytest.mark.parametrize(
    ("name", "kind"), tiers(each for each in itertools.product(RECIPES, OPTIMIZERS) if each != ("dgc", "adam"))
)
def test_weights_and_slots_are_those_of_plain_keras(name, kind):
    ours = fit(made(hvd.DistributedOptimizer(OPTIMIZERS[kind](), aggregator=RECIPES[name]())), 3)
    hvd.consolidate(ours)
    plain = made(OPTIMIZERS[kind]())
    plain.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    for found, wanted in zip(values(ours), values(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_as_by_plain_keras():
    options = {"global_clipnorm": 0.01}
    ours = fit(made(hvd.DistributedOptimizer(OPTIMIZERS["adam"](**options), aggregator=RECIPES["hitopk"]())), 3)
    plain = made(OPTIMIZERS["adam"](**options))
    plain.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    for found, wanted in zip(values(ours), values(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", tiers((name,) for name in RECIPES))
def test_it_resumes_to_the_bit(name, tmp_path):
    def model():
        return made(hvd.DistributedOptimizer(OPTIMIZERS["momentum"](), aggregator=RECIPES[name]()))

    whole = fit(model(), 4, hvd.callbacks.CheckpointCallback(tmp_path / "whole"))
    fit(model(), 2, hvd.callbacks.CheckpointCallback(tmp_path / "parts"))
    resumed = fit(model(), 4, hvd.callbacks.CheckpointCallback(tmp_path / "parts"))
    for found, wanted in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", tiers((name,) for name in ("recommended", "hitopk", "dgc")))
def test_it_goes_on_from_nodes_that_select_and_back(name, tmp_path):
    def model():
        return made(hvd.DistributedOptimizer(OPTIMIZERS["momentum"](), aggregator=RECIPES[name]()))

    def kept(model):
        return any(np.any(each) for each in model.optimizer.exchange.residual_sum().residuals.values())

    for number, how in enumerate(({"local_size": 1}, {}, {"local_size": 1})):
        hvd.init(**how)
        trained = fit(model(), 2 * (number + 1), hvd.callbacks.CheckpointCallback(tmp_path))
        assert kept(trained) == bool(how)
        assert int(trained.optimizer.iterations) == trained.optimizer.exchange.step == 8 * (number + 1)

"""The guard finds a bit that differs between replicas, names it, and stops or mends it."""

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from hvd_sparse.keras.callbacks import replicas
from tests.grid import world

X, Y = np.random.default_rng(0).standard_normal((2, 64, 4)).astype("f4")


class Flip(keras.callbacks.Callback):
    """Flips the lowest bit of one weight on one rank, after a step."""

    def __init__(self, rank, step, of=lambda model: model.layers[1].kernel):
        super().__init__()
        self._rank, self._step, self._of = rank, step, of

    def on_train_batch_end(self, batch, logs=None):
        if hvd.rank() == self._rank and batch + 1 == self._step:
            variable = self._of(self.model)
            value = np.array(variable)
            value.reshape(-1)[:1].view("i4")[:] ^= 1
            variable.assign(value)


def trained(rank, guard, flip, recipe=hvd.recipes.dense, steps=8):
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dropout(0.5, seed=rank)])
    drawn = np.random.default_rng(0)
    for each in model.trainable_variables:  # ranks are threads, which share Keras's seed
        each.assign(drawn.standard_normal(each.shape))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), aggregator=recipe())
    model.compile(optimizer, "mse", run_eagerly=True)
    own = slice(rank * 32, rank * 32 + 32)
    model.fit(X[own], Y[own], batch_size=4, steps_per_epoch=steps, verbose=0, callbacks=[flip, guard], shuffle=False)
    return [np.array(each) for each in [*model.trainable_variables, *model.optimizer.variables]]


def ranks(guard, flip, **options):
    return world.run(2, 1, lambda rank: trained(rank, guard(), flip(), **options))


@pytest.mark.parametrize(
    "recipe", [hvd.recipes.dense, lambda: hvd.recipes.topk(0.1), lambda: hvd.recipes.recommended(0.1)]
)
def test_replicas_that_are_equal_pass(recipe):
    ranks(lambda: hvd.callbacks.ReplicaGuardCallback(2), lambda: Flip(-1, 0), recipe=recipe)


@pytest.mark.parametrize(
    "of, name",
    [
        (lambda model: model.layers[1].kernel, r"dense_?\d*/kernel on rank"),
        (lambda model: model.layers[2].gamma, r"gamma on rank"),
        (lambda model: model.optimizer.variables[-1], r"velocity on rank"),
    ],
)
def test_a_flipped_bit_is_found_and_named_on_every_rank(of, name):
    with pytest.raises(Exception, match="replicas differ") as raised:
        ranks(lambda: hvd.callbacks.ReplicaGuardCallback(4), lambda: Flip(1, 4, of))
    for error in raised.value.errors:
        assert isinstance(error, RuntimeError)
        text = str(error)
        assert text.startswith("After step 4 replicas differ: ") and "faulty memory on the hosts" in text
        with pytest.raises(AssertionError, match=name):
            raise AssertionError(text)


def test_differences_are_those_from_the_majority():
    digests = np.array([[1, 2, 3], [1, 9, 3], [1, 2, 3], [1, 2, 8]])
    assert replicas.majority(digests) == 0
    assert replicas.differences(digests, ["a", "b", "c"]) == "b on rank 1, and 1 more variables"
    assert replicas.differences(digests[[0, 2]], ["a", "b", "c"]) == ""
    assert replicas.majority(digests[[1, 0, 2]]) == 1


def test_every_bit_counts():
    values = np.arange(1000, dtype="f4")
    other = values.copy()
    other[777:778].view("u4")[:] ^= 1 << 13
    assert (replicas.digests([values, values[:0]]) != replicas.digests([other, values[:0]])).tolist() == [True, False]


def test_it_may_resynchronise():
    found = ranks(lambda: hvd.callbacks.ReplicaGuardCallback(2, "resynchronise"), lambda: Flip(1, 2))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    apart = ranks(lambda: keras.callbacks.Callback(), lambda: Flip(1, 2))
    assert any((one != other).any() for one, other in zip(*apart, strict=True))


def test_what_is_each_ranks_own_is_left_out():
    def one_rank(rank):
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=rank)]
        )
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
        model.optimizer.build(model.trainable_variables)
        return [tuple(each.shape) for each in replicas.replicated(model).values()]

    gamma_and_beta, common, momenta = [(4,), (4,)], [(), ()], [(4,), (4,)]
    assert world.run(2, 1, one_rank) == [gamma_and_beta + common + momenta] * 2


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="every of at least 2 steps, got 1"):
        hvd.callbacks.ReplicaGuardCallback(1)
    with pytest.raises(ValueError, match="'error' or 'resynchronise' as on_difference, got 'warn'"):
        hvd.callbacks.ReplicaGuardCallback(10, "warn")

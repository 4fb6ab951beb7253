"""What takes part in an optimizer's steps: the role as it is by default changes nothing, and each method is asked."""

from __future__ import annotations

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.averaging import GradientAveraging, ModelAveraging, Reliable
from hvd_sparse.keras.optimizer import DistributedOptimizer
from hvd_sparse.optimizers import attached
from hvd_sparse.optimizers.attached import Attached
from hvd_sparse.servers.optimizer import ShardedServers

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5, weight_decay=0.01, name="it"),
    "adam": lambda: keras.optimizers.Adam(0.1, clipvalue=0.2, use_ema=True, ema_overwrite_frequency=2),
    "adamw": lambda: keras.optimizers.AdamW(0.1, global_clipnorm=0.5),
    "lion": lambda: keras.optimizers.Lion(0.1, gradient_accumulation_steps=2),
    "muon": lambda: keras.optimizers.Muon(0.1),
}
KINDS = {
    "exchange": DistributedOptimizer,
    "servers": ShardedServers,
    "averaging of models": ModelAveraging,
    "averaging of gradients": lambda optimizer: GradientAveraging(optimizer, Reliable()),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def trained(optimizer, steps=4):
    """The weights after some steps, and the optimizer's variables."""
    random = np.random.default_rng(1)
    weights = [
        keras.Variable(random.normal(size=[3, 2]).astype("float32"), name="kernel"),
        keras.Variable(random.normal(size=[2]).astype("float32"), name="b"),
    ]
    for _ in range(steps):
        optimizer.apply([tf.constant(random.normal(size=each.shape), tf.float32) for each in weights], weights)
    optimizer.finalize_variable_values(weights)
    return [each.numpy() for each in (*weights, *optimizer.variables)]


class Asked(Attached):
    """Notes what it is asked, and leaves the rest to Keras."""

    def __init__(self):
        self.asked = []

    def __getattribute__(self, name):
        if name in vars(Attached) and not name.startswith("_"):
            object.__getattribute__(self, "asked").append(name)
        return object.__getattribute__(self, name)


@every_optimizer
def test_a_part_that_does_nothing_changes_no_bit(name):
    optimizer = OPTIMIZERS[name]()
    attached.attach(optimizer, Attached())
    for ours, kerass in zip(trained(optimizer), trained(OPTIMIZERS[name]()), strict=True):
        np.testing.assert_array_equal(ours, kerass)


def test_each_method_is_asked():
    optimizer, part = OPTIMIZERS["sgd"](), Asked()
    attached.attach(optimizer, part)
    trained(optimizer, steps=1)
    assert int(optimizer.iterations) == 1
    inner = OPTIMIZERS["sgd"]()
    attached.attach(inner, part)
    keras.optimizers.LossScaleOptimizer(inner).apply([tf.zeros([2])], [keras.Variable(np.zeros(2, "float32"))])
    store: dict = {}
    optimizer.save_own_variables(store)
    optimizer.load_own_variables(store)
    optimizer.set_weights([each.numpy() for each in optimizer.variables])
    tf.train.Checkpoint(optimizer=optimizer).save_counter  # noqa: B018 - it asks what is tracked
    in_a_step = {"build", "apply", "overwriting", "clip", "decay", "update", "end", "iterations", "variables"}
    assert in_a_step | {"scaled", "finite", "save", "load", "set_weights"} <= set(part.asked)
    order = [each for each in part.asked if each in ("build", "apply", "clip", "decay", "update", "end")]
    assert [each for at, each in enumerate(order) if each not in order[:at]] == [
        *("apply", "build", "clip", "decay", "update", "end")
    ]


@every_kind
def test_the_optimizer_stays_what_it_was(kind):
    plain, optimizer = OPTIMIZERS["sgd"](), KINDS[kind](OPTIMIZERS["sgd"]())
    assert optimizer.__class__ is keras.optimizers.SGD and isinstance(optimizer, keras.optimizers.SGD)
    assert repr(type(optimizer)) == repr(type(plain)) and type(optimizer).__doc__ == type(plain).__doc__
    assert keras.optimizers.serialize(optimizer) == keras.optimizers.serialize(plain)


@every_kind
def test_what_takes_part_is_found_through_loss_scaling(kind):
    optimizer = KINDS[kind](OPTIMIZERS["sgd"]())
    part = attached.to(optimizer)
    assert part is not None and attached.to(keras.optimizers.LossScaleOptimizer(optimizer)) is part


@pytest.mark.parametrize("other", ["sgd", None, keras.layers.Dense(1)])
def test_nothing_takes_part_in_anything_else(other):
    assert attached.to(other) is None
    assert attached.to(keras.optimizers.SGD(0.1)) is None


@every_kind
@pytest.mark.parametrize("other", KINDS)
def test_only_one_thing_takes_part(kind, other):
    optimizer = KINDS[kind](OPTIMIZERS["sgd"]())
    with pytest.raises(ValueError, match=r"already|wrap it once"):
        KINDS[other](optimizer)


def test_what_keras_makes_from_the_config_is_given_the_like():
    given = []
    optimizer = OPTIMIZERS["sgd"]()
    attached.attach(optimizer, Attached(), again=given.append)
    made = type(optimizer).from_config(optimizer.get_config())
    assert given == [made] and type(made) is keras.optimizers.SGD
    attached.attach(made, Attached())
    assert type(type(made).from_config(made.get_config())) is keras.optimizers.SGD


def test_users_may_call_what_is_public():
    class Public:
        def rows(self):
            return int(self.iterations)

    optimizer = OPTIMIZERS["sgd"]()
    attached.attach(optimizer, Attached(), Public)
    trained(optimizer, steps=3)
    assert optimizer.rows() == 3 and not hasattr(copy.copy(OPTIMIZERS["sgd"]()), "rows")

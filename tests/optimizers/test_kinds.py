"""What is known of Keras's optimizers: the table agrees with the classes, and says nothing of others."""

import keras
import pytest

import lars
from hvd_sparse.optimizers import kinds
from hvd_sparse.optimizers.kinds import KINDS, Step

WITH_MOMENTUM = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9}, "LARS": {"momentum": 0.9}}
NOT_KNOWN = {"LossScaleOptimizer", "MultiOptimizer", "Optimizer", "ScheduleFreeAdamW"}  # wrappers, the base, no row yet


def made(name):
    cls = getattr(lars, name) if hasattr(lars, name) else getattr(keras.optimizers, name)
    optimizer = cls(0.1, **WITH_MOMENTUM.get(name, {}))
    optimizer.build([keras.Variable([[1.0, 2.0]])])
    return optimizer


def test_every_optimizer_of_keras_has_a_row():
    found = {name for name, each in vars(keras.optimizers).items() if isinstance(each, type)}
    found = {name for name in found if issubclass(getattr(keras.optimizers, name), keras.optimizers.Optimizer)}
    assert found - NOT_KNOWN <= set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_it_has_what_the_row_says(name):
    optimizer, kind = made(name), KINDS[name]
    assert kinds.of(optimizer) is kind and kinds.step_of(optimizer) is kind.step
    assert not kind.momentum or isinstance(getattr(optimizer, kind.momentum), float)
    for slots in filter(None, (kind.momenta, kind.velocities)):
        (slot,) = getattr(optimizer, slots)
        assert slot.shape == (1, 2)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb", "LARS"])
def test_a_derived_class_is_of_the_kind_and_has_the_step_unless_it_has_its_own(name):
    base = type(made(name))

    class Derived(base):
        pass

    class Other(base):
        def update_step(self, gradient, variable, learning_rate):
            pass

    assert kinds.of(Derived()) is kinds.of(Other()) is KINDS[name]
    assert (kinds.step_of(Derived()), kinds.step_of(Other())) == (KINDS[name].step, None)


def test_a_class_of_somebody_else_is_of_no_kind_whatever_its_name():
    class Adam(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            pass

    assert kinds.of(Adam(0.1)) is None and kinds.step_of(Adam(0.1)) is None


def test_names_are_those_of_a_step():
    assert kinds.names(Step.WHOLE) == ["Muon", "Adafactor", "Lamb"]
    assert set(kinds.names(*Step)) == set(KINDS)

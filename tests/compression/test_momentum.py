"""Momentum on the sender's side, alone."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.spec import Momentum, MomentumRule, Spec
from hvd_sparse.transport.communicator import Grid

SIZE = 40


def gradient(step):
    return np.round(8 * np.random.default_rng(step).standard_normal(SIZE)).astype(np.float32)


def run(part, steps, spec):
    """The vectors sent in each step, and the velocity after each."""
    state, sent, velocities = part.create(spec), [], []
    for step in range(steps):
        selection = part.compress(tf.constant(gradient(step)[np.newaxis]), state)
        for variable, value in selection.updates:
            variable.assign(value)
        sent.append(np.zeros(SIZE, np.float32))
        sent[-1][selection.slices.indices.numpy()] = selection.slices.values.numpy()
        velocities.append(state.velocity.numpy())
    return np.array(sent), np.array(velocities)


def of_optimizer(rule):
    return Spec(SIZE, Grid.lone(), momentum=Momentum(lambda: rule))


@pytest.mark.parametrize("masking", [True, False])
def test_what_was_sent_has_no_momentum_left_where_it_is_masked(masking):
    part = MomentumCorrection(ErrorFeedback(TopK(0.1)), 0.5, masking)
    sent, velocities = run(part, 3, Spec(SIZE, Grid.lone()))
    cleared = velocities[sent != 0]
    assert len(cleared) == 12 and (not cleared.any() if masking else cleared.all())
    assert (velocities[0][sent[0] == 0] == gradient(0)[sent[0] == 0]).all()


@pytest.mark.parametrize("nesterov", [True, False])
def test_all_that_is_sent_is_the_momentum_of_what_went_in(nesterov):
    """At density 1, with or without masking, the sum of SGD's own steps; exact in halves of small integers."""
    part = MomentumCorrection(ErrorFeedback(TopK(1.0)))
    sent, _ = run(part, 5, of_optimizer(MomentumRule(0.5, 1.0, nesterov)))
    velocity, moves = np.zeros(SIZE, np.float32), []
    for step in range(5):
        velocity = np.float32(0.5) * velocity + gradient(step)
        moves.append(np.float32(0.5) * velocity + gradient(step) if nesterov else velocity)
    np.testing.assert_array_equal(sent, moves)


def test_a_rule_is_asked_in_every_step():
    rules = iter([MomentumRule(0.0, 2.0), MomentumRule(0.5, 1.0)])
    spec = Spec(SIZE, Grid.lone(), momentum=Momentum(lambda: next(rules)))
    sent, _ = run(MomentumCorrection(ErrorFeedback(TopK(1.0))), 2, spec)
    np.testing.assert_array_equal(sent, [2 * gradient(0), gradient(0) + gradient(1)])


def test_a_number_stands_before_the_optimizers():
    sent, _ = run(MomentumCorrection(ErrorFeedback(TopK(1.0)), 0.0), 2, of_optimizer(MomentumRule(0.5)))
    np.testing.assert_array_equal(sent[1], gradient(1))


def test_refuses_to_be_without_an_optimizer():
    with pytest.raises(ValueError, match="has no optimizer: use hvd.DistributedOptimizer"):
        MomentumCorrection(ErrorFeedback(TopK(0.1))).create(Spec(SIZE, Grid.lone()))


@pytest.mark.parametrize("make", [lambda: TopK(0.1), lambda: MomentumCorrection(ErrorFeedback(TopK(0.1)))])
def test_goes_around_feedback_once(make):
    with pytest.raises(ValueError, match="wraps exactly one error feedback"):
        MomentumCorrection(make())


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_refuses_a_momentum_that_does_not_decay(momentum):
    with pytest.raises(ValueError, match=r"momentum in \[0, 1\)"):
        MomentumCorrection(ErrorFeedback(TopK(0.1)), momentum)


@pytest.mark.parametrize(
    "make",
    [recipes.dense, recipes.torus2d, lambda: recipes.auto(0.1), lambda: recipes.schedule([(0, recipes.topk(1))])],
)
def test_a_recipe_without_feedback_of_its_own_is_refused(make):
    with pytest.raises(ValueError, match="with error feedback of gradients, such as hvd.recipes.hitopk"):
        recipes.momentum_corrected(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: recipes.sparcml(0.1),
        lambda: recipes.sparcml(0.1, bits=4, as_published=True),
        lambda: recipes.sparcml_buckets(2, 64),
        lambda: recipes.mstopk(0.1),
    ],
)
def test_every_sparse_recipe_can_have_it(make):
    assert "MomentumCorrection" in str(recipes.momentum_corrected(make(), 0.9))

"""Clipping by the norm of all gradients, when each stage has only its own."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.pipeline import clipping
from hvd_sparse.pipeline.neighbours import StageError
from hvd_sparse.pipeline.packing import pack, unpack
from tests.pipeline import staged


def clipping_at(most):
    return lambda: keras.optimizers.SGD(1.0, global_clipnorm=most)


def trained(optimizers, micro_batches=2):
    """The outcome of a step in two stages: each stage's result or exception."""
    made, found = [staged.first(optimizers[0]), staged.last(optimizers[1])], [None, None]

    def run(number, connections):
        try:
            found[number] = staged.steps(made[number], connections, micro_batches).train(
                staged.batch(), made[number].model
            )
        except StageError as error:
            found[number] = error
            connections.fail(str(error))

    with staged.neighbours(2) as both:
        threads = [threading.Thread(target=run, args=each) for each in enumerate(both)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return made, found


@pytest.mark.parametrize("scaled", [False, True])
def test_all_stages_know_the_sum_of_squares_of_all(scaled):
    optimizer = clipping_at(0.1)
    if scaled:
        optimizer = lambda: keras.optimizers.LossScaleOptimizer(clipping_at(0.1)(), initial_scale=64.0)  # noqa: E731
    made, found = trained([optimizer, optimizer])
    scale = 64.0 if scaled else 1.0
    all_of_them = [each for verdict in found for each in unpack(verdict.gradients, [None] * len(verdict.gradients))]
    norm = float(tf.linalg.global_norm(all_of_them)) / scale
    assert [verdict.end.squares for verdict in found] == [pytest.approx(norm**2)] * 2
    expected, _ = tf.clip_by_global_norm([each / scale for each in all_of_them], 0.1)
    moved = []
    for of, verdict in zip(made, found, strict=True):
        before = [each.numpy() for each in of.model.weights]
        gradients = clipping.clipped(verdict.gradients, verdict.end.squares, of.model.optimizer)
        variables = of.model.trainable_variables
        of.model.optimizer.apply(unpack(gradients, variables), variables)
        moved += [was - each.numpy() for was, each in zip(before, of.model.weights, strict=True)]
    assert norm > 0.1
    for own, wanted in zip(moved, expected, strict=True):
        np.testing.assert_allclose(own, wanted, atol=1e-6)


def test_stages_that_do_not_all_clip_say_so():
    for optimizers in ([clipping_at(1.0), keras.optimizers.SGD], [keras.optimizers.SGD, clipping_at(1.0)]):
        _, found = trained(optimizers)
        clips = optimizers.index(keras.optimizers.SGD) ^ 1
        for error in found:
            assert f"stage {clips} (rank {clips}) clips by global_clipnorm" in str(error)


@given(
    pieces=st.lists(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=5), min_size=1, max_size=4),
    most=st.floats(0.1, 30),
)
def test_what_is_no_longer_than_allowed_stays_as_it_is(pieces, most):
    """Longer gradients are clipped to that norm; rows too, and a variable without a gradient stays without."""
    optimizer = clipping_at(most)()
    gradients = [None, *(tf.constant(each) for each in pieces)]
    gradients[-1] = tf.IndexedSlices(gradients[-1][:, tf.newaxis], tf.range(len(pieces[-1])), [9, 1])
    packed, variables = pack(gradients), [*pieces, [[0.0]] * 9]
    squares = clipping.squares(packed, optimizer)
    assert squares == pytest.approx(sum(x**2 for each in pieces for x in each), rel=1e-6)
    clipped = clipping.clipped(packed, squares, optimizer)
    found = unpack(clipped, [tf.constant(each) for each in variables])
    assert found[0] is None and isinstance(found[-1], tf.IndexedSlices)
    if squares <= most**2:
        assert clipped is packed
    else:
        assert clipping.squares(clipped, optimizer) == pytest.approx(most**2, rel=1e-5)


def test_the_norm_of_a_mean_is_not_known():
    for trainers, options, words in ((2, {}, "trainers"), (1, {"gradient_accumulation_steps": 2}, "steps")):
        optimizer = keras.optimizers.SGD(global_clipnorm=1.0, **options)
        for each in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
            with pytest.raises(ValueError, match=f"mean over .*{words}"):
                clipping.check(each, trainers)
    clipping.check(keras.optimizers.SGD(clipnorm=1.0), 2)

"""Tapes of a loop with one variable that stays and a new one for each task; on two ranks."""

from __future__ import annotations

import gc

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

TASKS = 8
PULL = np.array([1, 4], "f4")


def _mean(variables, factors, recipe):
    """The mean gradient of sum(factor * variable), from a new tape."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(factor * each) for factor, each in zip(factors, variables, strict=True)])
    return hvd.DistributedGradientTape(tape, aggregator=recipe).gradient(loss, variables)


def _head():
    return tf.Variable([0.0, 0.0], name="head")


def _shuffle_ids(task):
    """Leaves room in memory that differs between the ranks, so that one of them gets an old `id` again."""
    return [_head() for _ in range((task * 7) % 5)] if hvd.rank() else []


def control_lasting_variables_keep_their_residual():
    body, other, recipe = _head(), _head(), hvd.recipes.topk(0.25)
    sent = sum(_mean([body, other], [factor * PULL, 0 * PULL], recipe)[0].numpy() for factor in (1, 0, 0))
    np.testing.assert_array_equal(sent, PULL)


def new_heads_get_their_own_means():
    body = _head()
    for task in range(TASKS):
        head, spare = _head(), _shuffle_ids(task)
        for step in range(2):
            factor = (task + step + hvd.rank()) * PULL
            mean = _mean([body, head], [PULL, factor], None)
            np.testing.assert_array_equal(mean, [PULL, (task + step + 0.5) * PULL])
        del head, spare, mean


def new_heads_get_no_residual_of_old_ones():
    body, recipe = _head(), hvd.recipes.topk(0.25)
    for task in range(TASKS):
        old, spare = _head(), _shuffle_ids(task)
        _mean([body, old], [0 * PULL, PULL], recipe)
        del old
        new = _head()
        mean = _mean([body, new], [0 * PULL, 0 * PULL], recipe)
        np.testing.assert_array_equal(mean, np.zeros([2, 2]))
        del new, spare, mean


def the_residual_of_the_body_goes_on_with_new_heads():
    for recipe in (hvd.recipes.topk(0.25), hvd.recipes.hitopk(0.25)):
        body, sent = _head(), np.zeros(2)
        for task in range(6):
            pull = PULL * (hvd.rank() + 1 if task < 3 else 0)
            sent += _mean([body, _head()], [pull, 0 * PULL], recipe)[0].numpy()
        np.testing.assert_array_equal(sent, 3 * 1.5 * PULL)


def garbage_of_one_rank_changes_nothing():
    """An old head that only one rank still has does not decide which ranks plan; its body's rest waits."""
    body, recipe, sent, kept = _head(), hvd.recipes.topk(0.25), np.zeros(2), []
    for factor in (1, 1, 0, 0):
        head = _head()
        kept += [head] if hvd.rank() else []
        sent += _mean([body, head], [factor * PULL, 0 * PULL], recipe)[0].numpy()
    kept.clear()
    del head
    gc.collect()
    for _ in range(2):
        sent += _mean([body, _head()], [0 * PULL, 0 * PULL], recipe)[0].numpy()
    np.testing.assert_array_equal(sent, 2 * PULL)


def exchanges_do_not_pile_up():
    def living():
        gc.collect()
        return sum(type(each) is hvd.GradientExchange for each in gc.get_objects())

    before = living()
    for recipe in (None, hvd.recipes.topk(0.25)):
        body = _head()
        for _ in range(TASKS):
            _mean([body, _head()], [PULL, PULL], recipe)
    assert living() <= before + 1, f"{living()} exchanges, {before} before"

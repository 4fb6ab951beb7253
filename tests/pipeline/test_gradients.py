"""The sum of gradients over micro-batches, for all forms of gradients."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.pipeline.gradients import Gradients
from hvd_sparse.pipeline.packing import pack, unpack
from hvd_sparse.pipeline.passes import Recorded

NONE, DENSE, ROWS = "none", "dense", "rows"
FORMS = st.tuples(*[st.sampled_from((NONE, DENSE, ROWS))] * 3)


def part_of_loss(form, variable, random):
    """A function with a gradient of this form, and the gradient; small integers, so that sums are exact."""
    if form == ROWS:
        rows, factors = random.integers(0, 4, 5), random.integers(-9, 10, (5, 2)).astype("f4")
        expected = np.zeros((4, 2), "f4")
        np.add.at(expected, rows, factors)
        return tf.reduce_sum(tf.gather(variable, rows) * factors), expected
    factors = random.integers(-9, 10, (4, 2)).astype("f4") * (form == DENSE)
    return (tf.reduce_sum(variable * factors) if form == DENSE else tf.zeros([])), factors


@given(micro_batches=st.lists(FORMS, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_sums_are_those_of_all_micro_batches(micro_batches, seed):
    """A variable has a gradient if it has one in any micro-batch; rows stay rows if all are rows."""
    random, layer = np.random.default_rng(seed), keras.layers.Layer()
    variables = [layer.add_weight(shape=(4, 2), name=f"weight_{number}") for number in range(3)]
    gradients, expected = Gradients(layer), np.zeros((3, 4, 2), "f4")
    for forms in micro_batches:
        with tf.GradientTape() as tape:
            found = [
                part_of_loss(*each, random) for each in zip(forms, [each.value for each in variables], strict=True)
            ]
            loss = tf.add_n([each for each, _ in found])
        expected += [each for _, each in found]
        gradients.backward(Recorded(tape, None, [loss], layer), None)
    for number, total in enumerate(gradients.sums):
        own = {forms[number] for forms in micro_batches} - {NONE}
        assert (total is None) == (not own) and isinstance(total, tf.IndexedSlices) == (own == {ROWS})
        assert total is None or np.array_equal(tf.convert_to_tensor(total), expected[number])
    assert gradients.are_finite()


@given(
    forms=st.lists(st.sampled_from((NONE, DENSE, ROWS, "wide rows", "many")), min_size=1, max_size=6),
    in_graph=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_is_packed_is_unpacked_again(forms, in_graph, seed):
    """Rows keep their order and their bits."""
    random, gradients = np.random.default_rng(seed), []
    for form in forms:
        width, count = 3 if form == "wide rows" else 2, random.integers(0, 5)
        values = tf.constant(random.standard_normal((count, width)), tf.float32)
        indices = tf.constant(random.integers(0, 4, count), tf.int64 if form == "many" else tf.int32)
        rows = tf.IndexedSlices(values, indices, tf.constant([4, width]))
        gradients.append({NONE: None, DENSE: tf.ones([4, 2])}.get(form, rows))
    variables = [tf.zeros([4, 3 if form == "wide rows" else 2]) for form in forms]
    packed = (tf.function(pack, autograph=False) if in_graph else pack)(gradients)
    assert len(packed) == forms.count(DENSE) + len({*forms} - {NONE, DENSE})
    for own, expected in zip(unpack(packed, variables), gradients, strict=True):
        assert isinstance(own, tf.IndexedSlices) == isinstance(expected, tf.IndexedSlices)
        for one, other in zip(
            *(tf.nest.flatten(each, expand_composites=True) for each in (own, expected)), strict=True
        ):
            assert one is other is None or (one.dtype == other.dtype and np.array_equal(one, other))


def test_a_gradient_that_is_not_finite_is_found_in_rows_too():
    layer = keras.layers.Layer()
    weight = layer.add_weight(shape=(4, 2), name="weight")
    for factor, is_finite in ((1.0, True), (float("nan"), False), (float("inf"), False)):
        gradients = Gradients(layer)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weight.value, [1, 2]) * [[1.0, 1.0], [1.0, factor]])
        gradients.backward(Recorded(tape, None, [loss], layer), None)
        assert gradients.are_finite() == is_finite

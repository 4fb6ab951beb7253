"""What a sparse step changes: a server's sum of gradients, and a model, of which only changed parameters are set."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.servers.gathering import EntrySum, GradientSum
from hvd_sparse.servers.messages import Entries, Pull
from hvd_sparse.servers.model import ModelVariables
from hvd_sparse.servers.pushing import Copy, cut, cut_anew
from tests.servers.simulated import some, variables, whole_of
from tests.simulation import same_bits

SIZE = whole_of(1).size
SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=15, deadline=None)


@few
@given(seed=SEEDS)
def test_a_sum_is_that_of_what_was_added_since_it_was_cleared(seed):
    random, total = np.random.default_rng(seed), GradientSum(SIZE)
    for _ in range(4):
        expected = np.zeros(SIZE, np.float32)
        for _ in range(random.integers(1, 4)):
            gradient = some(random, SIZE)
            total.add(gradient)
            expected[slice(None) if gradient.indices is None else gradient.indices] += gradient.values
        same_bits(total.mean().numpy(), expected if total.count == 1 else expected / np.float32(total.count))
        total.clear()
        assert total.count == 0


@few
@given(seed=SEEDS, size=st.sampled_from([SIZE, 3000]))
def test_a_sum_of_entries_has_what_is_not_zero_in_ascending_order(seed, size):
    """To the bits of a sum in a vector; also if it is moved to another object in between."""
    random = np.random.default_rng(seed)
    dense, total = GradientSum(size), EntrySum(size)
    for _ in range(4):
        for _ in range(random.integers(1, 4)):
            gradient = some(random, min(size, 60))
            if gradient.indices is None:  # a value for each place; they are integers, so that some sums are zero
                gradient = Entries(np.resize(gradient.values, size))
            gradient = gradient._replace(values=np.round(gradient.values))
            dense.add(gradient)
            total.add(gradient)
            if random.random() < 0.3:
                values, count = total.values(), total.count
                same_bits(values, dense.values() + np.float32(0))  # zeros have no sign here
                total = EntrySum(size)
                total.restore(values, count)
        expected = dense.mean().numpy()
        mean = total.mean()
        np.testing.assert_array_equal(mean.indices, np.flatnonzero(expected))
        same_bits(mean.values, expected[mean.indices])
        dense.clear()
        total.clear()
        assert total.count == 0


@few
@given(seed=SEEDS, ranks=st.integers(1, 4), in_graph=st.booleans(), in_place=st.booleans())
def test_a_model_holds_the_copy_after_each_step(seed, ranks, in_graph, in_place):
    """For all messages of servers, also if the model had other parameters in between, or its values are referenced."""
    random = np.random.default_rng(seed)
    shards, held = cut(whole_of(ranks), ranks), variables(random)
    copy, model = Copy(shards), ModelVariables(held)
    assert model.in_place
    model.in_place = in_place

    def take():
        news = model.news(copy)
        places = np.zeros(0, np.int32) if news.indices is None else news.indices
        return news.values, places, news.indices is None

    def step():
        model.put(*tf.numpy_function(take, [], [tf.float32, tf.int32, tf.bool]))

    step = tf.function(step) if in_graph else step
    for number in range(8):
        for server, shard in enumerate(shards):
            copy.take(server, number, Pull(number, 0, 0, some(random, shard.size)))
        if random.random() < 0.3:
            model.assign(random.standard_normal(SIZE).astype(np.float32))
            copy.forget_who_looked()
        before = [variable.value.read_value() for variable in held]
        kept = [tensor.numpy() for tensor in before]
        if random.random() < 0.8:  # otherwise it later gets the changes of two steps
            step()
            same_bits(np.concatenate([variable.numpy().reshape(-1) for variable in held]), copy.values)
        for tensor, values in zip(before, kept, strict=True):
            same_bits(tensor.numpy(), values)


def test_what_has_changed_is_never_more_than_all():
    shards = cut(whole_of(1), 1)
    copy = Copy(shards)
    copy.take(0, 0, Pull(0, 0, 0, Entries(np.ones(SIZE, np.float32))))
    assert copy.news().indices is None and copy.news().indices.size == 0
    one = Pull(0, 0, 0, Entries(np.ones(1, np.float32), np.zeros(1, np.int32)))
    for count in (1, SIZE, SIZE + 1):
        for _ in range(count):
            copy.take(0, 0, one)
        assert (copy.news().indices is None) == (count > SIZE), "no list that grows for ever"


@few
@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=5), seed=SEEDS)
def test_vectors_are_cut_anew(lengths, seed):
    vector = np.arange(sum(lengths), dtype=np.float32)
    ends = np.sort(np.random.default_rng(seed).integers(0, len(vector) + 1, 3))
    sizes = np.diff(np.concatenate([[0], ends, [len(vector)]])).tolist()
    pieces = [tf.constant(piece) for piece in np.split(vector, np.cumsum(lengths)[:-1])]
    for part, expected in zip(cut_anew(pieces, sizes), np.split(vector, ends), strict=True):
        same_bits(part.numpy(), expected)


@pytest.mark.parametrize("size", [16, 64])
def test_what_lies_in_one_vector_is_not_copied(size):
    vector = tf.random.normal([4 * size])
    begin = np.asarray(memoryview(vector)).ctypes.data
    for number, part in enumerate(cut_anew([vector], [size] * 4)):
        assert np.asarray(memoryview(part)).ctypes.data == begin + 4 * size * number

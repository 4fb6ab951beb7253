"""parallel_map: fair shares, and the same results whichever rank computes them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.transport.communicator import LoneCommunicator
from lars import ops
from lars.parallel import block_sizes, parallel_map, parallel_range, shares
from tests import threads

SIZES = st.lists(st.integers(0, 40), max_size=7)


def loads(sizes, runs):
    return [sum(sizes[first:last]) for first, last in runs]


@given(SIZES, st.integers(1, 9))
def test_shares_follow_one_another_and_leave_nothing_out(sizes, count):
    runs = shares(sizes, count)
    assert len(runs) == count
    assert [first for first, _ in runs] + [len(sizes)] == [0] + [last for _, last in runs]
    assert all(first <= last for first, last in runs)


@given(SIZES, st.integers(1, 4))
def test_no_other_cut_has_a_smaller_largest_share(sizes, count):
    cuts = itertools.combinations_with_replacement(range(len(sizes) + 1), count - 1)
    best = min(max(loads(sizes, list(itertools.pairwise([0, *cut, len(sizes)])))) for cut in cuts)
    assert max(loads(sizes, shares(sizes, count))) == best


def test_shares_are_by_size_and_not_by_number():
    assert shares([100, 1, 1, 1, 1], 2) == [(0, 1), (1, 5)]


@given(st.lists(st.integers(0, 3 * ops.BLOCK), max_size=5))
def test_blocks_are_those_of_the_native_code(sizes):
    lengths = block_sizes(sizes, ops.BLOCK)
    assert sum(lengths) == sum(sizes)
    assert len(lengths) == sum(ops.block_counts(sizes))


def square_sum(tensor):
    return tf.reduce_sum(tensor**2)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_each_tensor_goes_to_one_rank(ranks):
    tensors = [tf.constant(np.arange(size, dtype="f4")) for size in (5, 0, 1, 7)]
    called = [[] for _ in range(ranks)]

    def one_rank(grid):
        def noted(tensor):
            called[grid.world.rank].append(tensor.shape[0])
            return tf.stack([square_sum(tensor), tf.cast(tf.size(tensor), tf.float32)])

        return [result.numpy() for result in parallel_map(noted, tensors, grid.world)]

    everyone = threads.run(ranks, 1, one_rank)
    for results in everyone:
        np.testing.assert_array_equal(results, [[30, 5], [0, 0], [0, 1], [91, 7]])
    sizes = [5, 0, 1, 7]
    for (first, last), seen in zip(shares(sizes, ranks), called, strict=True):
        assert seen == (sizes[first:last] or sizes[:1])  # without a share it learns the form of results from the first


@given(st.integers(0, 300), st.integers(1, 40), st.integers(2, 8))
def test_one_long_tensor_in_pieces_has_the_same_bits_for_any_number_of_ranks(size, block, ranks):
    values = np.random.default_rng(size).standard_normal((size, 2)).astype("f4")
    tensors = [tf.constant(values), tf.constant(values[:3])]

    def one_rank(grid):
        return [result.numpy() for result in parallel_map(square_sum, tensors, grid.world, block)]

    alone = [result.numpy() for result in parallel_map(square_sum, tensors, None, block)]
    assert [len(result) for result in alone] == [-(-tensor.shape.num_elements() // block) for tensor in tensors]
    np.testing.assert_allclose(sum(alone[0], np.float32(0)), np.sum(values**2), rtol=1e-4)
    for results in threads.run(ranks, 1, one_rank):
        for ours, expected in zip(results, alone, strict=True):
            assert ours.tobytes() == expected.tobytes()


def test_it_works_in_a_graph_and_with_one_rank():
    tensors = [tf.constant([1.0, 2.0]), tf.constant([3.0])]
    for communicator in (None, LoneCommunicator()):
        function = tf.function(lambda communicator=communicator: parallel_map(square_sum, tensors, communicator))
        np.testing.assert_array_equal(function(), [5.0, 9.0])
    assert parallel_map(square_sum, []) == []
    assert parallel_range(lambda first, last: tf.zeros([last - first]), [], None, "nothing").shape == [0]


def test_an_unknown_shape_is_refused():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(tensor):
        return parallel_map(square_sum, [tensor])

    with pytest.raises(ValueError, match=r"Expected a tensor of known shape, got \(None,\).*tf.ensure_shape"):
        step(tf.zeros([2]))


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one element, got block = 0"):
        parallel_map(square_sum, [tf.zeros([2])], block=0)

"""The order of samples: a permutation by seed and epoch, divided evenly, that any number of ranks can resume."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacache.order import Schedule, chosen, permutation, word

FIRST_TEN = [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]
TEN_THOUSAND = "26f8c3c96d7e7ae5"
WORD = 6665335680343557524


@given(samples=st.integers(0, 300), seed=st.integers(0, 2**70), epoch=st.integers(0, 2**40))
def test_it_is_a_permutation(samples, seed, epoch):
    order = permutation(samples, seed, epoch)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(samples))


def test_it_is_the_same_for_ever():
    assert permutation(10, 0, 0).tolist() == FIRST_TEN
    assert hashlib.sha256(permutation(10_000, 7, 3).tobytes()).hexdigest()[:16] == TEN_THOUSAND


def test_seeds_and_epochs_differ():
    drawn = [permutation(1000, seed, epoch) for seed in range(5) for epoch in range(5)]
    assert len({order.tobytes() for order in drawn}) == 25
    # neighbours are not preserved: two random permutations share about one pair of successors
    for one, two in zip(drawn, drawn[1:], strict=False):
        pairs = set(zip(one, one[1:], strict=False)) & set(zip(two, two[1:], strict=False))
        assert len(pairs) < 12


@pytest.mark.parametrize("arguments", [(-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_negative_numbers_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected no negative number"):
        permutation(*arguments)


def read_all(schedule):
    """The global batches: the batches of all ranks in each step, concatenated."""
    return [
        np.concatenate([schedule.indices(step, rank) for rank in range(schedule.ranks)])
        for step in range(len(schedule))
    ]


@given(
    samples=st.integers(0, 200),
    batch_size=st.integers(1, 9),
    ranks=st.integers(1, 9),
    start=st.integers(0, 200),
    drop=st.booleans(),
)
def test_every_sample_is_read_once_and_ranks_keep_step(samples, batch_size, ranks, start, drop):
    order = permutation(samples, 1, 2)
    start = min(start, samples)
    rest = (samples - start) % (batch_size * ranks)
    if 0 < rest < ranks and not drop:
        with pytest.raises(ValueError, match=f"has {rest} samples for {ranks} ranks.*drop_remainder=True"):
            Schedule(order, batch_size, ranks, start, drop)
        return
    schedule = Schedule(order, batch_size, ranks, start, drop)
    whole = order[start : samples - rest if drop else samples]
    np.testing.assert_array_equal(np.concatenate([*read_all(schedule), np.empty(0, np.int64)]), whole)
    sizes = [[len(schedule.indices(step, rank)) for rank in range(ranks)] for step in range(len(schedule))]
    for step, each in enumerate(sizes):
        assert 1 <= min(each) and max(each) - min(each) <= 1 and max(each) <= batch_size
        assert step == len(sizes) - 1 or set(each) == {batch_size}
    assert schedule.has_equal_batches == all(set(each) == {batch_size} for each in sizes) or not sizes


@given(
    samples=st.integers(0, 200), batch_size=st.integers(1, 9), ranks=st.integers(1, 9), position=st.integers(-200, 200)
)
def test_what_is_carried_comes_in_the_next_epoch(samples, batch_size, ranks, position):
    position = max(-samples, min(samples, position))
    schedule = Schedule.carrying(samples, 1, batch_size, ranks, False, 3, position)
    both = np.concatenate([permutation(samples, 1, 2), permutation(samples, 1, 3)])
    read = np.concatenate([*read_all(schedule), np.empty(0, np.int64)])
    np.testing.assert_array_equal(read, both[samples + position : len(both) - schedule.left_over])
    assert 0 <= schedule.left_over < ranks
    sizes = {len(schedule.indices(step, rank)) for step in range(len(schedule)) for rank in range(ranks)}
    assert min(sizes, default=1) > 0 and schedule.has_equal_batches == (sizes <= {batch_size})
    assert Schedule.carrying(samples, 1, batch_size, ranks, True, 3, position).left_over == 0


@given(before=st.integers(1, 6), after=st.integers(1, 6), steps=st.integers(0, 5), batch_size=st.integers(1, 8))
def test_another_number_of_ranks_goes_on_where_the_first_stopped(before, after, steps, batch_size):
    order = permutation(240, 5, 0)
    first = Schedule(order, batch_size, before, drop_remainder=True)
    steps = min(steps, len(first))
    position = first.position(steps)
    second = Schedule(order, batch_size, after, position, drop_remainder=True)
    read = [*read_all(first)[:steps], *read_all(second), np.empty(0, np.int64)]
    np.testing.assert_array_equal(np.concatenate(read), order[: second.position(len(second))])


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({"batch_size": 0}, "at least 1 sample"),
        ({"ranks": 0}, "1 rank"),
        ({"start": 11}, "position in \\[0, 10\\], got 11"),
        ({"start": -1}, "position"),
    ],
)
def test_what_cannot_be_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        Schedule(**{"order": np.arange(10), "batch_size": 1, "ranks": 1, **arguments})


def test_a_batch_that_is_not_there_is_an_error():
    schedule = Schedule(np.arange(10), 5, 1)
    for step, rank in [(2, 0), (-1, 0), (0, 1), (0, -1)]:
        with pytest.raises(IndexError, match="There is no batch"):
            schedule.indices(step, rank)


@pytest.mark.parametrize(
    "indices, wanted",
    [
        ([2, 0, 2], [2, 0, 2]),
        ([[1, 2], [3, 0]], [1, 2, 3, 0]),
        (np.array([3], np.uint8), [3]),
        (range(4), [0, 1, 2, 3]),
        ([False, True, False, True], [1, 3]),
    ],
)
def test_integers_of_any_shape_and_a_mask_choose(indices, wanted):
    order = chosen(indices, 4)
    assert order.dtype == np.int64 and order.tolist() == wanted


@pytest.mark.parametrize(
    "indices, error, told",
    [
        ([], IndexError, r"Expected indices in \[0, 4\), at least one"),
        ([0, 4], IndexError, r"Expected indices in \[0, 4\)"),
        ([[-1]], IndexError, r"Expected indices in \[0, 4\)"),
        ([False] * 4, IndexError, "Expected a mask that chooses at least one of 4 samples"),
        ([True] * 3, ValueError, r"Expected a mask of shape \(4,\), .*, got \(3,\)"),
        ([[True] * 4], ValueError, r"Expected a mask of shape \(4,\), .*, got \(1, 4\)"),
        ([1.0], ValueError, "Expected indices as an array of integers, .* got float64"),
        (["1"], ValueError, "Expected indices as an array of integers"),
        ([2**70], ValueError, "Expected indices as an array of integers"),
        (1, ValueError, r"got int64 of shape \(\): .* put a single index into a list"),
    ],
)
def test_whatever_else_is_refused(indices, error, told):
    with pytest.raises(error, match=told):
        chosen(indices, 4)


@given(samples=st.integers(1, 200), batch_size=st.integers(1, 9), ranks=st.integers(1, 9), start=st.integers(0, 200))
def test_padded_batches_are_full_and_count_each_sample_once(samples, batch_size, ranks, start):
    order, start = permutation(samples, 1, 2), min(start, samples)
    schedule = Schedule.padded(order, batch_size, ranks, start)
    assert schedule.has_equal_batches and schedule.left_over == 0
    counted = []
    for step in range(len(schedule)):
        spans = [schedule.span(step, rank) for rank in range(ranks)]
        assert all(end - begin == batch_size for begin, end in spans)
        own = [schedule.order[begin:end][schedule.weights[begin:end] == 1] for begin, end in spans]
        assert max(map(len, own)) - min(map(len, own)) <= 1, "ranks have about as many"
        assert all(np.all(np.diff(schedule.weights[begin:end]) <= 0) for begin, end in spans), "fillers come last"
        counted += own
        assert schedule.position(step + 1) == start + len(np.concatenate(counted))
    np.testing.assert_array_equal(np.concatenate([*counted, np.empty(0, np.int64)]), order[start:])
    assert schedule.position(len(schedule)) == samples


def test_words_differ_and_stay():
    drawn = {word(seed, epoch) for seed in range(20) for epoch in range(20)}
    assert len(drawn) == 400 and all(0 <= each < 2**63 for each in drawn)
    assert word(7, 3) == WORD
    assert Schedule.carrying(10, 7, 2, 2, False, 3, 0).word == WORD, "in elastic jobs, too"

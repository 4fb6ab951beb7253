"""Rows of many tables that are sent together: equal to each table's rows sent alone, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.exchange import rows, several
from hvd_sparse.spec import Segment
from tests import threads

DTYPES = st.sampled_from([tf.float32, tf.float16, tf.bfloat16])


def gradients_of(random, sizes, width, dtype, indices=lambda random, size, count: random.integers(0, size, count)):
    """Rows for each table, some of which occur several times; some tables have none."""
    found = []
    for size in sizes:
        count = random.integers(0, 7)
        values = tf.cast(random.standard_normal((count, width)), dtype)
        numbers = tf.constant(indices(random, size, count), tf.int64)
        found.append(tf.IndexedSlices(values, numbers, tf.constant([size, width])))
    return found


def same(one, other):
    assert one.values.dtype == other.values.dtype and one.indices.dtype == other.indices.dtype
    assert one.values.shape == other.values.shape and one.indices.numpy().tolist() == other.indices.numpy().tolist()
    assert one.values.numpy().tobytes() == other.values.numpy().tobytes()


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), dtype=DTYPES, seed=st.integers(0, 99))
def test_merging_all_is_merging_each(sizes, dtype, seed):
    """Indices that int32 cannot hold, or its minimum and maximum, also belong to their own table."""
    odd = np.array([-(2**31), 2**31 - 1, 2**31, 2**40, -1, 0, 1])

    def some(random, size, count):
        return random.choice(odd, count) if count % 2 else random.integers(-1, size, count)

    given_rows = gradients_of(np.random.default_rng(seed), sizes, 3, dtype, some)
    for own, expected in zip(several.merge(given_rows), map(rows.merge, given_rows), strict=True):
        same(own, expected)


@given(
    ranks=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    width=st.sampled_from([1, 3, several.NARROW]),
    dtype=DTYPES,
    spoiled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_one_message_brings_what_many_do(ranks, sizes, width, dtype, spoiled, seed):
    """For each variable it also reports whether it is finite and how many bytes it has sent."""
    segments = [Segment(f"table_{number}", (size, width)) for number, size in enumerate(sizes)]

    def one_rank(grid):
        given_rows = several.merge(gradients_of(np.random.default_rng([seed, grid.world.rank]), sizes, width, dtype))
        if spoiled and grid.world.rank == 0:
            first = given_rows[1]
            given_rows[1] = tf.IndexedSlices(first.values * float("nan"), first.indices, first.dense_shape)
        together = several.exchange(given_rows, segments, grid, "rows")
        pairs = zip(given_rows, segments, strict=True)
        apart = [rows.exchange(*each, grid, f"rows{number}") for number, each in enumerate(pairs)]
        return together, apart

    for together, apart in threads.run(ranks, ranks, one_rank):
        for own, expected in zip(together, apart, strict=True):
            same(own.mean, expected.mean)
            assert bool(own.nonfinite) == bool(expected.nonfinite) and int(own.culprit()) == int(expected.culprit())
            assert {name: int(each) for name, each in own.metrics.items()} == {
                name: int(each) for name, each in expected.metrics.items()
            }


@pytest.mark.parametrize("row", [5, -1, 2**31 - 1])
def test_a_row_that_its_table_does_not_have_is_not_taken_for_anothers(row):
    segments = [Segment("first", (9, 2)), Segment("second", (5, 2)), Segment("third", (9, 2))]

    def one_rank(grid):
        indices = [[1], [row if grid.world.rank else 4], [2]]
        given_rows = [tf.IndexedSlices(tf.ones([1, 2]), tf.constant(each), tf.constant([9, 2])) for each in indices]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"second: expected row numbers in \[0, 5\)") as told:
            several.exchange(given_rows, segments, grid, "rows")
        return str(told.value)

    assert all(str(row) in told for told in threads.run(2, 2, one_rank))


def test_wide_rows_and_those_that_cannot_be_counted_travel_by_themselves():
    narrow, wide = Segment("narrow", (5, 2)), Segment("wide", (5, several.NARROW))
    long = Segment("long", (2**31 - 7, 2))
    segments = [narrow, wide, narrow, wide, long, narrow]
    assert several.in_one_message(segments, [tf.float32] * 6) == [[0, 2], [4, 5], [1], [3]]
    assert several.in_one_message([narrow] * 3, [tf.float32, tf.float16, tf.float32]) == [[0, 2], [1]]

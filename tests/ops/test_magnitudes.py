"""Coding with one and two bits (hvd_sparse/compression/quantizers.py): equal to NumPy bit for bit; its properties."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from hvd_sparse.compression.quantizers import QSGD, OneBit, Plain, TwoBits, Where
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid
from tests.ops import native
from tests.ops.magnitudes_reference import reference
from tests.simulation import same_bits

ONE_BIT = [OneBit("threshold"), OneBit("column"), OneBit("global")]
QUANTIZERS = [*ONE_BIT, TwoBits()]
each = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
SHAPES = {"kernel": (2, 3, 5), "bias": (5,), "scale": (), "none": (0, 7), "wide": (3, 40)}
WHOLE = Spec(156, Grid.lone(), segments=tuple(Segment(*item) for item in SHAPES.items()))


def of(name, values):
    """Values of several kinds, as float32 [n]."""
    random = np.random.default_rng(len(values))
    drawn = {
        "floats": values * 10.0 ** random.integers(-3, 3, len(values)),
        "zeros among them": values * (random.random(len(values)) < 0.5),
        "zeros": 0 * values,
        "equal": np.full(len(values), 0.1),
        "equal but for the sign": np.sign(values) * 0.3,
        "positive": np.abs(values),
        "as large as can be": np.sign(values) * 3.4e38,
        "denormal": values * 1e-44,
        "one outlier": np.where(np.arange(len(values)) == 3, 1e30, values),
    }
    return drawn[name].astype(np.float32)


KINDS = ["floats", "zeros among them", "zeros", "equal", "equal but for the sign", "positive"]
KINDS += ["as large as can be", "denormal", "one outlier"]


def check(quantizer, values, where):
    codes, scales = quantizer.encode(values, 0, where)
    places, matrices = (np.arange(len(values)), ()) if where is None else (where.indices, where.matrices)
    expected_codes, expected_scales, expected = reference(values, places, matrices, quantizer)
    same_bits(codes.numpy(), expected_codes)
    same_bits(scales.numpy(), expected_scales)
    same_bits(quantizer.decode(codes, scales, len(values), where).numpy(), expected)
    assert len(codes) == quantizer.code_bytes(len(values)) and len(scales) <= quantizer.scale_count(len(values))
    return expected


@each
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_as_numpy(quantizer, kind):
    for size in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 1000]:
        values = of(kind, np.random.default_rng(size).standard_normal(size))
        check(quantizer, values, None)
        indices = np.sort(np.random.default_rng(size).choice(10 * size + 1, size, replace=False)).astype(np.int32)
        check(quantizer, values, Where(tf.constant(indices)))


@each
@given(
    seed=st.integers(0, 2**32),
    share=st.floats(0, 1),
    shard=st.tuples(st.integers(0, 155), st.integers(1, 156)),
    ascending=st.booleans(),
)
def test_columns_of_shards_are_those_of_the_variables(quantizer, seed, share, shard, ascending):
    """Any elements of any shard, in any order."""
    random = np.random.default_rng(seed)
    spec = WHOLE._replace(offset=shard[0], size=min(shard[1], WHOLE.size - shard[0]))
    indices = random.choice(spec.size, int(share * spec.size), replace=False).astype(np.int32)
    indices = np.sort(indices) if ascending else indices
    values = random.standard_normal(len(indices)).astype(np.float32)
    check(quantizer, values, Where(tf.constant(indices), spec.matrices))


@each
def test_signs_are_kept_and_equal_magnitudes_exactly(quantizer):
    values = np.array([0.1, -0.1] * 5000, np.float32)
    same_bits(quantizer.decode(*quantizer.encode(values, 0), 10000).numpy(), values)
    drawn = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    decoded = quantizer.decode(*quantizer.encode(drawn, 0), 1000).numpy()
    assert ((decoded < 0) == (drawn < 0)).all()


@pytest.mark.parametrize("size", [15, 16, 1023, 1024, 1025, 16384, 16385, 100_003])
@pytest.mark.parametrize("isa", native.isas())
def test_any_instructions_code_two_bits_alike(isa, size):
    """Also where the splits are found on every n-th value."""
    values = of("floats" if size % 2 else "zeros among them", np.random.default_rng(size).standard_normal(size))
    with native.isa(native.ISAS[isa]):
        check(TwoBits(), values, None)


@pytest.mark.parametrize("size", [0, 1, 6, 20_000])
def test_rows_are_coded_one_by_one(size):
    rows = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32) * [[1], [10], [0]]
    for quantizer in (TwoBits(), OneBit("global"), QSGD(4, 8), Plain("bfloat16")):
        codes, scales = quantizer.encode_rows(tf.constant(rows, tf.float32), 5)
        assert codes.shape == [3, quantizer.code_bytes(size)] and scales.shape == [3, quantizer.scale_count(size)]
        decoded = np.reshape(quantizer.decode_rows(codes, scales, size), [3, size])
        for number, row in enumerate(rows.astype(np.float32)):
            one = quantizer.encode(tf.constant(row), 5 + number)
            same_bits(codes[number].numpy(), one[0].numpy())
            same_bits(scales[number].numpy(), one[1].numpy())
            same_bits(decoded[number], quantizer.decode(*one, size).numpy())


def test_a_value_of_a_row_that_is_not_finite_is_reported():
    rows = np.ones([3, 100], np.float32)
    rows[1, 7] = np.inf
    with pytest.raises(tf.errors.InvalidArgumentError, match="got inf at position 107 of 300"):
        TwoBits().encode_rows(rows, 0)


@pytest.mark.parametrize("codes, scales", [((2, 4), (3, 4)), ((2, 5), (2, 4)), ((2, 4), (2, 3)), ((8,), (2, 4))])
def test_rows_of_codes_that_do_not_fit_are_refused(codes, scales):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="Expected codes|rank 2"):
        TwoBits().decode_rows(tf.zeros(codes, tf.uint8), tf.zeros(scales), 16)


def test_a_zero_among_what_is_kept_does_not_keep_the_others_back():
    decoded = check(OneBit("threshold"), np.array([0, -0.0, 2, -3], np.float32), None)
    np.testing.assert_array_equal(decoded, [2, 2, 2, -2])


def test_columns_have_scales_of_their_own():
    where = Where(tf.constant([0, 1, 3, 6, 7], tf.int32), ((6, 0, 3), (8, 0, 1)))
    _, scales = OneBit("column").encode(np.array([1, -10, 3, 7, 5], np.float32), 0, where)
    np.testing.assert_array_equal(scales, [2, 10, 6])  # columns 0 and 1 of the first variable, and the vector


def test_two_levels_leave_less_than_a_split_at_the_mean():
    values = np.random.default_rng(0).exponential(size=100_000).astype(np.float32)
    decoded = TwoBits().decode(*TwoBits().encode(values, 0), len(values)).numpy()
    large = values > values.mean()
    at_mean = np.where(large, values[large].mean(), values[~large].mean())
    errors = [np.square(values - each, dtype=np.float64).mean() for each in (decoded, at_mean)]
    assert errors[0] < 0.86 * errors[1]  # 0.3536 and 0.418 of the variance


@each
def test_in_a_graph(quantizer):
    values = np.random.default_rng(0).standard_normal(30).astype(np.float32)
    indices = tf.range(30, dtype=tf.int32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int32)])
    def there_and_back(values, indices):
        where = Where(indices, WHOLE.matrices)
        return quantizer.decode(*quantizer.encode(values, 0, where), tf.size(values), where)

    same_bits(there_and_back(values, indices).numpy(), check(quantizer, values, Where(indices, WHOLE.matrices)))
    codes, scales = tf.function(lambda: quantizer.encode(values, 0)).get_concrete_function().outputs
    assert codes.shape == [quantizer.code_bytes(30)] and scales.shape == [1 if quantizer != TwoBits() else 4]


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_reported(quantizer, bad):
    for place in (0, 7, 99):
        values = np.ones(100, np.float32)
        values[place:] = bad
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"Expected finite values, got .* at position {place} of 100"
        ):
            quantizer.encode(values, 0)


@each
def test_codes_that_do_not_fit_are_refused(quantizer):
    codes, scales = quantizer.encode(np.ones(16, np.float32), 0)
    for count, told in [(17, "for 17 values"), (-1, r"count in \[0, 2\^31\), got -1")]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=told):
            quantizer.decode(codes, scales, count)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the quantizer must be the sender's"):
        quantizer.decode(codes, scales[:0], 16)
    for bad in (np.nan, np.inf, -1.0):
        wrong = scales.numpy()
        wrong[-1] = bad
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Expected finite scales of at least 0, got .* position"
        ):
            quantizer.decode(codes, wrong, 16)


@pytest.mark.parametrize("bad", [-1, 156, -(2**31), 2**31 - 1])
def test_indices_outside_of_the_vector_are_refused(bad):
    where = Where(tf.constant([3, 100, bad], tf.int32), WHOLE.matrices)
    told = rf"Expected indices in \[0, 156\), got {bad} at position 2"
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        OneBit().encode(np.ones(3, np.float32), 0, where)
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        OneBit().decode(np.zeros(1, np.uint8), np.ones(3, np.float32), 3, where)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected indices \[2\], one for each value, got shape"):
        OneBit().encode(np.ones(2, np.float32), 0, where)


@pytest.mark.parametrize(
    "table, told",
    [
        ({"ends": [3], "starts": [], "columns": [1]}, "of as many matrices, got 1, 0 and 1"),
        ({"ends": [3, 2], "starts": [0, 0], "columns": [1, 1]}, "got 2 after 3, 0 and 1 of matrix 1"),
        ({"ends": [3], "starts": [-1], "columns": [1]}, "got 3 after 0, -1 and 1 of matrix 0"),
        ({"ends": [3], "starts": [0], "columns": [0]}, "got 3 after 0, 0 and 0 of matrix 0"),
        ({"ends": [2**31], "starts": [0], "columns": [1]}, "below 2.31, starts"),
        ({"ends": [3, 4], "starts": [0, 0], "columns": [2**31 - 1, 1]}, "fewer than 2.31 columns, got 2147483648"),
    ],
)
def test_matrices_that_cannot_be_are_refused(table, told):
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        ops.library().hvd_quantize_one_bit(
            values=np.ones(1, np.float32), indices=np.zeros(1, np.int32), magnitude="mean", **table
        )


def test_a_scale_that_is_none_is_refused():
    with pytest.raises(ValueError, match="Expected a scale of 'threshold', 'column' or 'global', got 'row'"):
        OneBit("row")

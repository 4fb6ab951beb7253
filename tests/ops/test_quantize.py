"""QSGD (hvd_sparse/compression/quantizers.py): equal to NumPy bit for bit; its mean error and variance."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression.quantizers import QSGD
from tests.ops.quantize_reference import reference
from tests.simulation import same_bits

BITS = [2, 4, 8]
NORMS = ["max", "l2"]
SIZES = [0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 1000]
each_bits = pytest.mark.parametrize("bits", BITS)
each_norm = pytest.mark.parametrize("norm", NORMS)


def floats(random, size):
    """Floats of several magnitudes, with zeros of both signs and stretches of zeros."""
    values = random.standard_normal(size) * 10.0 ** random.integers(-3, 3, size)
    values[random.random(size) < 0.1] *= 0
    if size > 40:
        values[20:40] = 0
    return values.astype(np.float32)


def check(values, seed, coding):
    codes, scales = coding.encode(values, seed)
    expected_codes, expected_scales, expected = reference(values, seed, coding)
    same_bits(scales.numpy(), expected_scales)
    same_bits(codes.numpy(), expected_codes)
    decoded = coding.decode(codes, scales, len(values)).numpy()
    same_bits(np.where(decoded == 0, 0, decoded).astype(np.float32), np.where(expected == 0, 0, expected))


@each_bits
@each_norm
@pytest.mark.parametrize("bucket", [1, 3, 16, 20, 64, 100, 512, 1024, 5000])
def test_the_same_bits_as_numpy(bits, norm, bucket):
    random = np.random.default_rng(bucket)
    for size in [*SIZES, bucket - 1, bucket, bucket + 1, 4 * bucket + 7]:
        check(floats(random, size), 5, QSGD(bits, bucket, norm))


@each_bits
@each_norm
@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-32, 1e-31, 1e-20, 1e20, 1e37])
def test_extreme_scales(bits, norm, magnitude):
    random = np.random.default_rng(0)
    check((random.standard_normal(300) * magnitude).astype(np.float32), 1, QSGD(bits, 64, norm))


@each_bits
def test_the_largest_number_does_not_overflow(bits):
    most = np.finfo(np.float32).max
    values = np.array([most, -most, most / 2, 0], np.float32)
    coding = QSGD(bits)
    decoded = coding.decode(*coding.encode(values, 3), 4).numpy()
    assert np.isfinite(decoded).all()
    assert abs(decoded[0]) <= most and decoded[0] >= 0.999 * most


@each_bits
@each_norm
def test_levels_are_kept_exactly(bits, norm):
    """Values that equal a level are not rounded, and zeros stay zeros."""
    coding = QSGD(bits, 1024, norm)
    levels = np.random.default_rng(0).integers(-coding.levels, coding.levels + 1, 1024).astype(np.float32)
    levels[0] = coding.levels
    if norm == "l2":
        levels[1:] = 0
    for seed in range(5):
        same_bits(coding.decode(*coding.encode(levels, seed), 1024).numpy(), levels)


@each_bits
@each_norm
def test_unbiased_and_of_the_stated_variance(bits, norm):
    """The mean error, and the mean squared error minus its expectation, over draws and elements: within 4 sigma."""
    random = np.random.default_rng(bits)
    coding = QSGD(bits, 128, norm)
    values = random.standard_normal(1000).astype(np.float32)
    draws = 400
    _, scales, _ = reference(values, 0, coding)
    step = np.repeat(scales.astype(np.float64) / coding.levels, coding.bucket)[: len(values)]
    level = np.abs(values.astype(np.float64)) / step
    fraction = level - np.floor(level)
    variance = step**2 * fraction * (1 - fraction)
    errors = np.array(
        [coding.decode(*coding.encode(values, seed), 1000).numpy() - values.astype(np.float64) for seed in range(draws)]
    )
    assert abs(errors.sum()) <= 4 * np.sqrt(draws * variance.sum())
    rounded = (fraction > 1e-4) & (fraction < 1 - 1e-4)  # not values that equal a level, such as the largest
    each = errors.sum(0)[rounded] / np.sqrt(draws * variance[rounded])
    assert np.abs(each).max() <= 5  # for 1000 elements
    assert 0.85 <= (each**2).mean() <= 1.15
    # The variance of a squared error that is ((1 - f) step)^2 with probability f and (f step)^2 otherwise.
    spread = step**4 * fraction * (1 - fraction) * (1 - 2 * fraction) ** 2
    assert abs((errors**2).sum() - draws * variance.sum()) <= 4 * np.sqrt(draws * spread.sum())


def test_draws_of_elements_seeds_and_neighbours_are_not_correlated():
    count = 100_000
    coding = QSGD(2, 1024)
    values = np.full(count, 0.5, np.float32)
    values[::1024] = 1
    ups = [coding.decode(*coding.encode(values, seed), count).numpy() - 0.5 for seed in (0, 1, 2, 2**40, -1)]
    free = np.arange(count) % 1024 != 0
    limit = 4 * 0.25 * np.sqrt(count)
    for number, one in enumerate(ups):
        one[~free] = 0
        for other in ups[:number]:
            for shift in (0, 1, 2, 16):
                assert abs((one[shift:] * other[: count - shift]).sum()) < limit
        for shift in (1, 2, 3, 4, 8, 16, 32, 64, 1024):
            assert abs((one[shift:] * one[: count - shift]).sum()) < limit


def test_the_same_seed_draws_the_same():
    values = floats(np.random.default_rng(0), 3000)
    coding = QSGD()
    for seed in (0, 7, 2**40, -3):
        first, again = (coding.encode(values, tf.constant(seed, tf.int64))[0].numpy() for _ in range(2))
        same_bits(first, again)
    assert (coding.encode(values, 0)[0].numpy() != coding.encode(values, 1)[0].numpy()).any()


def test_in_a_graph():
    coding = QSGD(4, 100)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64)])
    def there_and_back(values, seed):
        return coding.decode(*coding.encode(values, seed), tf.size(values))

    values = floats(np.random.default_rng(0), 777)
    expected = coding.decode(*coding.encode(values, 9), 777)
    same_bits(there_and_back(values, tf.constant(9, tf.int64)).numpy(), expected.numpy())

    @tf.function(input_signature=[tf.TensorSpec([777], tf.float32)])
    def known(values):
        return coding.encode(values, 0)

    codes, scales = known.get_concrete_function().outputs
    assert (codes.shape, scales.shape) == ([coding.code_bytes(777)], [coding.scale_count(777)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@each_norm
def test_what_is_not_finite_is_reported(bad, norm):
    values = np.ones(5000, np.float32)
    for place in (0, 1023, 1024, 4999):
        values[:] = 1
        values[place:] = bad
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"Expected finite values, got .* at position {place} "
        ):
            QSGD(4, norm=norm).encode(values, 0)


def test_an_l2_norm_that_is_too_large_is_reported():
    values = np.full(2048, 1, np.float32)
    values[1024:] = np.finfo(np.float32).max
    with pytest.raises(tf.errors.InvalidArgumentError, match="got more in positions 1024 to 2047; use norm='max'"):
        QSGD(norm="l2").encode(values, 0)
    QSGD(norm="max").encode(values, 0)


def test_codes_that_do_not_fit_are_refused():
    coding = QSGD(4, 100)
    codes, scales = coding.encode(np.ones(250, np.float32), 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected codes of 126 bytes and 3 scales for 251 values"):
        coding.decode(codes, scales, 251)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected codes of 63 bytes and 1 scales"):
        QSGD(2, 1000).decode(codes, scales, 250)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected a count in \[0, 2\^31\), got -1"):
        coding.decode(codes, scales, -1)
    for bad in (np.nan, np.inf, -1.0):
        wrong = scales.numpy()
        wrong[1] = bad
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected finite scales of at least 0, got .* 1"):
            coding.decode(codes, wrong, 250)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ({"bits": 3}, "Expected 2, 4 or 8 bits, got 3"),
        ({"bucket": 0}, "Expected a bucket of at least 1 value, got 0"),
        ({"norm": "l1"}, "Expected norm 'max' or 'l2', got 'l1'"),
    ],
)
def test_bad_settings_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        QSGD(**arguments)

"""Coding with one and two bits per value in NumPy: slow, simple, and equal to the native code bit for bit."""

import numpy as np

from tests.ops.quantize_reference import packed


def columns_of(indices, matrices):
    """The column of each element, numbered among the columns in use, and their number; one column without matrices."""
    if not matrices:
        return np.zeros(len(indices), int), 1
    found, begin = [], 0
    for number, (end, start, columns) in enumerate(matrices):
        for place in range(begin, end):
            found.append((number, (start + place - begin) % columns))
        begin = end
    here = [found[index] for index in indices]
    used = sorted(set(here))
    return np.array([used.index(each) for each in here], int), len(used)


def in_order(numbers):
    """The float64 sum, added one by one."""
    return np.cumsum(np.asarray(numbers, np.float64))[-1] if len(numbers) else np.float64(0)


def mean(magnitudes):
    """The mean by float64 sums; 0 if there are no elements."""
    return in_order(magnitudes) / np.float64(max(len(magnitudes), 1))


def least(magnitudes):
    """The smallest that is not zero."""
    return min((each for each in magnitudes if each != 0), default=0.0)


def one_bit(values, indices, matrices, scale):
    """Codes, scales and decoded values."""
    columns, used = columns_of(indices, matrices if scale == "column" else ())
    magnitude = least if scale == "threshold" else mean
    scales = np.array([magnitude(np.abs(values[columns == each])) for each in range(used)], np.float32)
    negative = values < 0
    decoded = np.where(negative, -scales[columns], scales[columns]) if len(values) else values
    return packed(negative.astype(np.int32), 1), scales, decoded.astype(np.float32)


def split_of(magnitudes):
    """The limit above which magnitudes are large: the mean, then four times midway between the means of both parts."""
    split = mean(magnitudes)
    for _ in range(4):
        small, large = magnitudes[magnitudes <= split], magnitudes[magnitudes > split]
        if len(small) and len(large):
            split = (mean(small) + mean(large)) / 2
    return split


def in_lanes(numbers):
    """The float64 sum in 16 lanes, folded by halves."""
    lanes = np.zeros([-(-len(numbers) // 16), 16])
    lanes.ravel()[: len(numbers)] = numbers
    sums = np.cumsum(lanes, axis=0)[-1] if len(lanes) else np.zeros(16)
    for half in (8, 4, 2, 1):
        sums = sums[:half] + sums[half : 2 * half]
    return sums[0]


def two_bits(values):
    """Codes, scales and decoded values."""
    magnitudes, negative = np.abs(values).astype(np.float64), values < 0
    codes = np.zeros(len(values), np.int32)
    each = max(1, -(-len(values) // 2**14))  # the splits are found on every n-th value
    for sign in (0, 1):
        here = negative == sign
        codes[here] = sign | (magnitudes[here] > split_of(magnitudes[::each][negative[::each] == sign])) << 1
    sums = [in_lanes(np.where(codes == code, magnitudes, 0.0)) for code in range(4)]
    scales = np.array([sums[code] / max(np.sum(codes == code), 1) for code in range(4)], np.float32)
    return packed(codes, 2), scales, np.where(codes & 1, -scales[codes], scales[codes]).astype(np.float32)


def reference(values, indices, matrices, quantizer):
    """The codes, scales and decoded values of a `OneBit` or `TwoBits`."""
    if type(quantizer).__name__ == "TwoBits":
        return two_bits(values)
    return one_bit(values, indices, matrices, quantizer.scale)

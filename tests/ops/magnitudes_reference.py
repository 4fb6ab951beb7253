"""One and two bits a value written out in NumPy: slow, obvious, and the same bits as the native code."""

import numpy as np

from tests.ops.quantize_reference import packed


def columns_of(indices, matrices):
    """The column of each element, among all columns that hold one of them; all are in one without matrices."""
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
    """The float64 sum, one after the other."""
    return np.cumsum(np.asarray(numbers, np.float64))[-1] if len(numbers) else np.float64(0)


def mean(magnitudes):
    """Of float64 sums; 0 of nothing."""
    return in_order(magnitudes) / np.float64(max(len(magnitudes), 1))


def least(magnitudes):
    """The smallest that is not zero."""
    return min((each for each in magnitudes if each != 0), default=0.0)


def one_bit(values, indices, matrices, scale):
    """Codes, scales and what they decode to."""
    columns, used = columns_of(indices, matrices if scale == "column" else ())
    magnitude = least if scale == "threshold" else mean
    scales = np.array([magnitude(np.abs(values[columns == each])) for each in range(used)], np.float32)
    negative = values < 0
    decoded = np.where(negative, -scales[columns], scales[columns]) if len(values) else values
    return packed(negative.astype(np.int32), 1), scales, decoded.astype(np.float32)


def split_of(magnitudes):
    """Where they are large: at the mean, then four times midway between the means of the two parts."""
    split = mean(magnitudes)
    for _ in range(4):
        small, large = magnitudes[magnitudes <= split], magnitudes[magnitudes > split]
        if len(small) and len(large):
            split = (mean(small) + mean(large)) / 2
    return split


def two_bits(values):
    """Codes, scales and what they decode to."""
    magnitudes, negative = np.abs(values).astype(np.float64), values < 0
    codes = np.zeros(len(values), np.int32)
    for sign in (0, 1):
        here = negative == sign
        codes[here] = sign | (magnitudes[here] > split_of(magnitudes[here])) << 1
    scales = np.array([mean(magnitudes[codes == code]) for code in range(4)], np.float32)
    return packed(codes, 2), scales, np.where(codes & 1, -scales[codes], scales[codes]).astype(np.float32)


def reference(values, indices, matrices, quantizer):
    """Of a `OneBit` or `TwoBits`."""
    if type(quantizer).__name__ == "TwoBits":
        return two_bits(values)
    return one_bit(values, indices, matrices, quantizer.scale)

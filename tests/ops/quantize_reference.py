"""QSGD in NumPy: slow, simple, and equal to the native code bit for bit."""

import numpy as np

LEAST_STEP = np.float32(2.0**-104)


def fractions(seed, first, count):
    """The random numbers for the elements of a bucket that begins with element `first`, in units of 2^-16."""
    mask = (1 << 64) - 1
    mixed = (seed + 0x9E3779B97F4A7C15) & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    mixed ^= mixed >> 31
    j = np.arange(count, dtype=np.uint32)
    x = (np.uint32(first) + j // 32 * 16 + j % 16) ^ np.uint32(mixed & 0xFFFFFFFF)
    x = (x ^ x >> 16) * np.uint32(0x7FEB352D) + np.uint32(mixed >> 32)
    x = (x ^ x >> 15) * np.uint32(0x846CA68B)
    return np.where(j // 16 % 2 == 0, x >> 16, (x ^ x >> 16) & 0xFFFF).astype(np.int32)


def scale_of(values, norm):
    if norm == "max":
        return np.abs(values).max()
    lanes = np.zeros(16)
    for begin in range(0, len(values), 16):
        row = values[begin : begin + 16].astype(np.float64)
        lanes[: len(row)] += row * row
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    return np.float32(np.sqrt(lanes[0]))


def reference(values, seed, coding):
    """Codes, scales and decoded values."""
    codes, scales, decoded = [], [], []
    for begin in range(0, len(values), coding.bucket):
        part = values[begin : begin + coding.bucket]
        scale = scale_of(part, coding.norm)
        step = np.float32(scale / np.float32(coding.levels))
        if step < LEAST_STEP:
            scale = step = np.float32(0)
        factor = np.float32(2.0**16) / step if step else np.float32(0)
        fixed = np.rint(part * factor).astype(np.int32)
        levels = np.minimum((fixed + fractions(seed, begin, len(part))) >> 16, coding.levels)
        decoded.append(np.clip(levels.astype(np.float32) * step, -scale, scale))
        codes.append(packed(levels, coding.bits))
        scales.append(scale)
    empty = [np.zeros(0, np.float32)]
    return (
        np.concatenate([np.zeros(0, np.uint8), *codes]),
        np.array(scales, np.float32),
        np.concatenate(empty + decoded).astype(np.float32),
    )


def packed(levels, bits):
    in_a_byte = 8 // bits
    padded = np.zeros(-(-len(levels) // in_a_byte) * in_a_byte, np.int32)
    padded[: len(levels)] = levels & (2**bits - 1)
    shifted = padded.reshape(-1, in_a_byte) << np.arange(0, 8, bits)
    return shifted.sum(1).astype(np.uint8)

"""Selection in NumPy: slow, simple, and equal to the native code bit for bit."""

import numpy as np

BLOCK = 4096
LANES = 64
MASK = (1 << 64) - 1


def float32_of_bfloat16(bits):
    """Widens bfloat16, held as uint16, to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bfloat16_of_float32(values):
    """float32 rounded to bfloat16 (nearest, ties to even), held as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> 16).astype(np.uint16) | 0x40, rounded)


def widen(array):
    """float32, float16, or bfloat16 held as uint16, converted to float32."""
    return float32_of_bfloat16(array) if array.dtype == np.uint16 else array.astype(np.float32)


def narrow(values, dtype):
    """float32 rounded to float32, float16 or bfloat16 (uint16)."""
    if dtype == np.uint16:
        return bfloat16_of_float32(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def accumulate(parts, residual):
    """((p_0 + p_1) + ...) + residual in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = widen(parts[0])
        for part in parts[1:]:
            total = total + widen(part)
        return total if residual is None else total + residual


def fault_of(parts, total):
    """0, or 1 + the number of the first part that is not finite, or 1 + the number of parts if only the sum is not."""
    if np.isfinite(total).all():
        return 0
    broken = [not np.isfinite(widen(part)).all() for part in parts]
    return 1 + (broken.index(True) if any(broken) else len(parts))


def exact(total, k):
    """Ascending indices of the k largest magnitudes; of equal ones, those with the lowest indices."""
    return np.sort(np.argsort(-np.abs(total), kind="stable")[:k])


def block_sums(total):
    """Sums of |total| by blocks of 4096: 64 float32 lanes, each added in order, then folded by halves."""
    blocks = np.zeros((-(-total.size // BLOCK), BLOCK // LANES, LANES), np.float32)
    blocks.reshape(-1)[: total.size] = np.abs(total)
    lanes = np.zeros((len(blocks), LANES), np.float32)
    with np.errstate(over="ignore"):
        for row in range(BLOCK // LANES):
            lanes = lanes + blocks[:, row]
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def mean_magnitude(total):
    """The mean of |total| as float32; the block sums are added in order in float64."""
    summed = np.float64(0)
    for block in block_sums(total):
        summed = summed + np.float64(block)
    return np.float32(summed / np.float64(total.size))


def splitmix64(seed):
    """The pseudorandom number for a seed."""
    z = (seed + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def mstopk(total, k, samplings, seed):
    """CommLib's Algorithm 1, line by line; the exact selection if it has no solution."""
    a = np.abs(total)
    mean, u = mean_magnitude(total), a.max()
    left, right, k1, k2 = 0.0, 1.0, 0, a.size
    threshold1 = threshold2 = None
    with np.errstate(invalid="ignore"):
        for _ in range(samplings):
            ratio = left + (right - left) / 2
            threshold = np.float32(np.float64(mean) + ratio * (np.float64(u) - np.float64(mean)))
            count = int(np.count_nonzero(a >= threshold))
            if count <= k:
                right = ratio
                if count > k1:
                    k1, threshold1 = count, threshold
            else:
                left = ratio
                if count < k2:
                    k2, threshold2 = count, threshold
    if k1 == 0 or (k1 < k and threshold2 is None):
        return exact(total, k)
    sure = np.flatnonzero(a >= threshold1)
    if k1 == k:
        return sure
    band = np.flatnonzero((a < threshold1) & (a >= threshold2))
    first = splitmix64(seed) * (band.size - (k - k1) + 1) >> 64
    return np.concatenate([sure, band[first : first + k - k1]])


def sampled(total, k, share, seed):
    """The elements above a threshold from a random sample; the exact selection if they are far more or fewer than k."""
    magnitudes = np.abs(total)
    drawn = min(total.size, max(int(np.ceil(np.float64(np.float32(share)) * total.size)), 1024))
    rank = max(1, int(np.floor(np.float64(k) * drawn / total.size + 0.5)))
    first = splitmix64(seed & MASK)
    places = [splitmix64(first + number & MASK) * total.size >> 64 for number in range(drawn)]
    sample = np.sort(magnitudes if drawn == total.size else magnitudes[places])[::-1]
    found = np.flatnonzero(magnitudes > sample[rank]) if rank < drawn else np.arange(total.size)
    return found if (k + 1) // 2 <= found.size <= 2 * k else exact(total, k)


def held(total, k, threshold=None):
    """Elements that reach a threshold, but no zeros: from k / 4, rounded up, to 4 k elements.

    By default the threshold is the k-th largest magnitude, or 0 if all elements are to be sent.

    Returns:
        The indices, the threshold, and whether the indices differ from those that reach it.
    """
    magnitudes = np.abs(total)
    if threshold is None:
        threshold = np.sort(magnitudes)[total.size - k] if k < total.size else np.float32(0)
    reaching = np.flatnonzero((magnitudes >= threshold) & (total != 0))
    count = min(max(reaching.size, -(-k // 4)), 4 * k)
    chosen = reaching if count == reaching.size else exact(total, count)
    chosen = chosen[total[chosen] != 0]
    return chosen, threshold, chosen.size != reaching.size


def feedback(parts, residual, indices, wire_dtype):
    """The values sent at `indices`, and the remaining sum."""
    total = accumulate(parts, residual)
    values = narrow(total[indices], wire_dtype)
    new_residual = total.copy()
    new_residual[indices] = total[indices] - widen(values)
    return values, new_residual


def largest_of_rows(x, kept):
    """The positions of the largest magnitudes of each row, ascending; of equal ones, the lower positions.

    Magnitudes are compared as bits without the sign, so that NaNs count as larger than all numbers.
    """
    bits = x.view(np.uint32 if x.itemsize == 4 else np.uint16).astype(np.int64)
    keys = bits & ((1 << 8 * x.itemsize - 1) - 1)
    return np.sort(np.argsort(-keys, axis=-1, kind="stable")[..., :kept], axis=-1)

"""Vectors that have exposed bugs of selections."""

import numpy as np

KINDS = (
    "normal", "constant", "nearly constant", "zeros", "ties", "sparse", "ascending", "outlier", "denormal", "layers",
    "huge",
)  # fmt: skip


def vector(kind, size, seed=0):
    """float32 [size] of a kind that has exposed bugs of selections."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(size).astype(np.float32)
    if kind == "normal":
        return normal
    if kind == "constant":
        return np.full(size, -0.3, np.float32)
    if kind == "nearly constant":
        return np.where(normal > 0, np.float32(1), np.nextafter(np.float32(1), np.float32(2)))
    if kind == "zeros":
        return np.where(normal > 0, np.float32(0), np.float32(-0.0))
    if kind == "ties":
        return np.round(normal)
    if kind == "sparse":
        return np.where(rng.random(size) < 0.003, normal, np.float32(0))
    if kind == "ascending":
        return np.arange(size, dtype=np.float32)
    if kind == "outlier":
        normal[size // 3] = 1e4
        return normal
    if kind == "denormal":
        return normal * np.float32(1e-40)
    if kind == "layers":
        return normal * np.float32(10) ** (-8 * np.arange(size) // size).astype(np.float32)
    if kind == "huge":
        return normal * np.float32(1e37)
    raise ValueError(kind)


def assert_plain(result, x, indices):
    values, found, report = result
    assert np.array_equal(found, indices)
    assert np.array_equal(values.view(np.uint8), x[indices].view(np.uint8))
    assert report.tolist() == [0, -1]

"""datacache: a label that is not an integer is refused with its sample's name; no decoded value is lost."""

from __future__ import annotations

import numpy as np
import pytest

import datacache
from datacache.listing import Listing

SAMPLES = 4


def cache_of(tmp_path, source, decode):
    return datacache.DataCache(source, decode, tmp_path / "local", memory_bytes=0, world=datacache.World())


@pytest.mark.parametrize(
    "label, told",
    [
        (0.5, r"integer label .* sample \d, got 0.5 \(float\)"),
        (2.0, r"sample \d, got 2.0"),
        (np.float32(0.25), r"sample \d, got .*0.25"),
        ("7", r"sample \d, got '7' \(str\)"),
        (np.array([1.5]), r"sample \d, got array"),
        (2**63, r"fits int64 for sample \d, got 9223372036854775808"),
    ],
    ids=str,
)
def test_a_decoded_label_that_is_no_integer_is_refused(label, told, tmp_path):
    source = datacache.Indexed(lambda index: bytes([index]), SAMPLES, "bytes")
    with pytest.raises(datacache.DecodeError, match=told):
        with cache_of(tmp_path, source, lambda payload: (np.zeros(2), label)) as cache:
            list(cache.batches(2, 0))


def test_a_third_element_is_not_dropped(tmp_path):
    source = datacache.Indexed(lambda index: bytes([index]), SAMPLES, "bytes", labels=range(SAMPLES))
    with pytest.raises(datacache.DecodeError, match=r"sample \d, got a tuple of 3"):
        cache_of(tmp_path, source, lambda payload: (np.zeros(2), 1, 0.5))


@pytest.mark.parametrize("labels", [[0, 0.5, 1, 2], [0, "7", 1, 2], np.array([0, 0.5, 1, 2])[::-1]], ids=str)
def test_labels_of_a_function_of_ones_own_are_integers(labels):
    with pytest.raises(ValueError, match=r"integer label that fits int64 for sample \d, got"):
        datacache.Indexed(lambda index: b"", SAMPLES, "bytes", labels=labels)


@pytest.mark.parametrize(
    "rows, told",
    [
        ([(0, 0, 1, 1), (0, 1, 1, 0.5)], "sample 1, got 0.5"),
        ([(0, 0, 1, "7")], "sample 0, got '7'"),
        ([(0, 0, 1, 1, 9)] * SAMPLES, r"\(file, offset, length, label\) of sample 0"),
    ],
)
def test_rows_of_a_source_of_ones_own_are_four_integers(rows, told):
    with pytest.raises(ValueError, match=told):
        Listing.build({"kind": "Own"}, ["a"], [2], [0], rows)

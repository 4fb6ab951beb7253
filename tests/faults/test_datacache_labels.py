"""datacache: labels are kept as they are, or refused with the sample's name; no decoded value is lost."""

from __future__ import annotations

import numpy as np
import pytest

import datacache
from datacache.listing import Listing

SAMPLES = 4


def cache_of(tmp_path, source, decode):
    return datacache.DataCache(source, decode, tmp_path / "local", memory_bytes=0, world=datacache.World())


@pytest.mark.parametrize(
    "label", [0.5, 2.0, np.float32(0.25), "7", np.array([1.5]), 2**63, {"class": 1, "weight": 0.5}], ids=str
)
def test_a_decoded_label_of_any_kind_is_kept_as_it_is(label, tmp_path):
    source = datacache.Indexed(lambda index: bytes([index]), SAMPLES, "bytes")
    with cache_of(tmp_path, source, lambda payload: (np.zeros(2), label)) as cache:
        for _, labels in cache.batches(2, 0):
            for made, wanted in (
                [(labels[key], label[key]) for key in label] if isinstance(label, dict) else [(labels, label)]
            ):
                assert made.tolist() == [np.asarray(wanted).tolist()] * 2
                assert made.dtype == (object if isinstance(wanted, str) else np.asarray(wanted).dtype)


@pytest.mark.parametrize(
    "labels, told",
    [
        ((1, 0.5), r"integer label .* sample \d, got 0.5 \(float\)"),
        ((0.5, 1), r"sample \d is not decoded to \(float64 \[2\], float64\), .* Expected float64 at \[1\], got int64"),
        ((1, "7"), r"sample \d, got '7' \(str\)"),
        (("7", 1), r"Expected str at \[1\], got int64"),
        ((1, 2**63), r"fits int64 for sample \d, got 9223372036854775808"),
    ],
    ids=str,
)
def test_labels_of_two_kinds_are_refused(labels, told, tmp_path):
    source = datacache.Indexed(lambda index: bytes([index]), SAMPLES, "bytes")
    with pytest.raises(datacache.DecodeError, match=told):
        with cache_of(tmp_path, source, lambda payload: (np.zeros(2), labels[min(payload[0], 1)])) as cache:
            list(cache.batches(2, 0))


def test_a_third_element_is_not_dropped(tmp_path):
    source = datacache.Indexed(lambda index: bytes([index]), SAMPLES, "bytes", labels=range(SAMPLES))
    with cache_of(tmp_path, source, lambda payload: (np.zeros(2), 1, 0.5)) as cache:
        assert [[part.tolist() for part in batch[1:]] for batch in cache.batches(2, 0)] == [[[1, 1], [0.5, 0.5]]] * 2


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

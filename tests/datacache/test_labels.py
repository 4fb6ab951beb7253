"""Labels: which types are accepted at every level, and labels that older versions stored wrongly."""

import json

import numpy as np
import pytest

import datacache
from datacache.listing import Listing, label_of
from datacache.order import permutation
from tests.datacache import members

COUNT = 6


@pytest.fixture
def levels(tmp_path):
    return {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm", "world": datacache.World()}


@pytest.mark.parametrize(
    "label", [3, -1, True, np.bool_(True), np.int8(-4), np.uint64(2**62), np.array(5), 2**63 - 1, -(2**63)], ids=repr
)
def test_every_integer_comes_back_from_every_level(label, levels):
    source = datacache.Indexed(lambda index: bytes([index]), COUNT, "bytes")

    def decode(payload):
        return np.frombuffer(payload, np.uint8), label

    decode.datacache_fingerprint = repr(label)
    for _ in range(2):  # decoded first, then read from disk
        with datacache.DataCache(source, decode, keep_decoded=True, **levels) as cache:
            for epoch in range(2):  # the second epoch is read from memory
                assert {each for _, labels in cache.batches(2, epoch) for each in labels.tolist()} == {int(label)}


def test_without_labels_batches_are_samples_alone(tmp_path, levels):
    source, contents = members.tf_records(tmp_path / "records")
    with datacache.DataCache(source, lambda payload: np.full(3, len(payload)), **levels) as cache:
        (samples,) = cache.batches(members.COUNT, 0)
        wanted = [len(contents[index]) for index in permutation(members.COUNT, 0, 0)]
        assert samples[:, 0].tolist() == wanted
        assert [batch.shape for batch in cache.dataset(members.COUNT, 0)] == [(members.COUNT, 3)]
        assert cache.fetch(0).tolist() == [len(contents[0])] * 3


def test_a_label_that_only_some_samples_have_is_an_error(tmp_path, levels):
    source, _ = members.tf_records(tmp_path / "records")
    for some in (False, True):  # one record is empty

        def decode(payload, some=some):
            return np.zeros(3) if bool(payload) == some else (np.zeros(3), 1)

        with pytest.raises(datacache.DecodeError, match="as other samples are"):
            with datacache.DataCache(source, decode, **levels) as cache:
                list(cache.batches(5, 0))


def test_tensors_are_taken_where_they_hold_an_integer():
    import tensorflow as tf

    assert label_of(tf.constant(3), "sample 0") == 3
    for wrong in (tf.constant(0.5), tf.constant("7"), tf.constant([1, 2])):
        with pytest.raises(ValueError, match="integer label that fits int64 for sample 0"):
            label_of(wrong, "sample 0")


def test_rows_of_a_listing_are_integers_of_int64():
    assert len(Listing.build({})) == 0
    assert Listing.build({}, samples=np.array([[0, 1, 2, 3]], np.uint16)).labels.tolist() == [3]
    for rows in (np.full((2, 4), 2**63, np.uint64), np.zeros((2, 4)), np.zeros(4, int), [(0, 0.5, 1, 1)]):
        with pytest.raises(ValueError, match="Expected"):
            Listing.build({}, samples=rows)


def test_decoded_samples_of_the_version_before_nests_are_read(levels):
    source = datacache.Indexed(lambda index: bytes([index]), COUNT, "bytes", labels=range(COUNT))

    def decode(payload):
        return np.frombuffer(payload, np.uint8)

    with datacache.DataCache(source, decode, keep_decoded=True, **levels) as cache:
        list(cache.batches(2, 0))
    (layout,) = levels["local_dir"].glob("*/*/layout-*.json")
    layout.write_text(json.dumps({"dtype": "uint8", "shape": [1], "labels": "int64"}))
    with datacache.DataCache(source, decode, keep_decoded=True, **levels) as cache:
        for samples, labels in cache.batches(2, 0):
            assert samples[:, 0].tolist() == labels.tolist()
        assert cache.counters.numbers()["samples.decoded"] == COUNT


def test_labels_that_an_older_run_has_cut_are_not_served(levels):
    """Its decoded samples are on disk, so that they would not be decoded again."""
    source = datacache.Indexed(lambda index: bytes([index]), COUNT, "bytes")
    label = 0

    def decode(payload):
        return np.frombuffer(payload, np.uint8), label

    decode.datacache_fingerprint = "version 1"
    with datacache.DataCache(source, decode, keep_decoded=True, **levels) as cache:
        list(cache.batches(2, 0))
    (layout,) = levels["local_dir"].glob("*/*/layout-*.json")
    before_labels_were_examined = json.dumps(json.loads(layout.read_text())["nest"])
    layout.write_text(before_labels_were_examined)
    with datacache.DataCache(source, decode, keep_decoded=True, **levels) as cache:
        assert {each for _, labels in cache.batches(2, 0) for each in labels.tolist()} == {0}
        assert cache.counters.numbers()["samples.decoded"] == COUNT
    layout.write_text(before_labels_were_examined)
    label = 0.5
    with datacache.DataCache(source, decode, keep_decoded=True, **levels) as cache:
        assert {each for _, labels in cache.batches(2, 0) for each in labels.tolist()} == {0.5}

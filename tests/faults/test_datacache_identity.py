"""datacache: samples of one function, size and labels are never served for another's, and stay for their own."""

from __future__ import annotations

import numpy as np

import datacache

COUNT = 12


def decode(payload):
    return np.frombuffer(payload, np.uint8)


def first_project(index):
    return bytes([index])


def second_project(index):
    return bytes([100 + index])


def read(tmp_path, function, labels=None, decode=decode):
    """The samples and labels of a name and size that all share, and the counters."""
    source = datacache.Indexed(function, COUNT, "train", labels=range(COUNT) if labels is None else labels)
    places = {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm"}
    with datacache.DataCache(source, decode, **places, world=datacache.World(), keep_decoded=True) as cache:
        samples, labels = cache.take(np.arange(COUNT))
        return samples[:, 0].tolist(), labels.tolist(), cache.counters.numbers()


def test_two_projects_of_one_name_do_not_serve_each_other(tmp_path):
    assert read(tmp_path, first_project)[0] == list(range(COUNT))
    assert read(tmp_path, second_project)[0] == list(range(100, 100 + COUNT))
    assert read(tmp_path, first_project)[0] == list(range(COUNT))


def test_what_the_function_holds_counts(tmp_path):
    def holding(offset):
        return lambda index: bytes([offset + index])

    assert read(tmp_path, holding(0))[0] == list(range(COUNT))
    assert read(tmp_path, holding(5))[0] == list(range(5, 5 + COUNT))


def test_corrected_labels_are_obeyed(tmp_path):
    assert read(tmp_path, first_project)[1] == list(range(COUNT))
    corrected = [7, *range(1, COUNT)]
    assert read(tmp_path, first_project, corrected)[1] == corrected
    assert read(tmp_path, first_project, np.array(corrected))[1] == corrected


def test_control_the_same_source_is_read_once(tmp_path):
    assert read(tmp_path, first_project)[2]["samples.source"] == COUNT
    assert "samples.source" not in read(tmp_path, first_project)[2]

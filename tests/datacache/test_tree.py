"""Checks of an LMDB file's tree that no single page shows: keys that belong on another page."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from datacache.native import tree_fault
from tests.datacache import damage

COUNT, HEAD, NODE = 2000, 16, 8  # number of samples, and bytes before a page's offsets and before a node's key


@pytest.fixture
def path(tmp_path):
    """An LMDB file with several leaves."""
    with lmdb.open(str(tmp_path), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for index in range(COUNT):
            transaction.put(index.to_bytes(8, "big"), b"x" * 20)
    return tmp_path / "data.mdb"


def fault_of(path: Path) -> str | None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return tree_fault(descriptor, damage.PAGE)
    finally:
        os.close(descriptor)


def leaves(content: bytes) -> list[tuple[int, int]]:
    """The positions of the first and the last key of each leaf, in the order of the keys."""
    found = []
    for page in damage.pages(bytearray(content), 2):
        begin = int(page) * damage.PAGE
        lower = int.from_bytes(content[begin + 12 : begin + 14], "little")
        offsets = [int.from_bytes(content[at : at + 2], "little") for at in range(begin + HEAD, begin + lower, 2)]
        found.append((begin + offsets[0] + NODE, begin + offsets[-1] + NODE))
    return sorted(found, key=lambda places: content[places[0] : places[0] + 8])


def test_a_whole_tree_has_no_fault(path):
    assert len(leaves(path.read_bytes())) > 10 and fault_of(path) is None


@pytest.mark.parametrize("which", ["the first key", "the last key"])
@pytest.mark.parametrize("leaf", [1, 5])
def test_a_key_in_the_place_of_another_pages_is_found(path, which, leaf):
    """Within their page the keys are in order."""
    content = bytearray(path.read_bytes())
    there = leaves(bytes(content))
    first, last = there[leaf]
    at, other = (first, there[leaf - 1][0]) if which == "the first key" else (last, there[leaf + 1][0])
    content[at : at + 8] = content[other : other + 8]
    path.write_bytes(content)
    assert fault_of(path) == "keys are in another page's place"

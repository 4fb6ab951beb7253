"""World.from_horovod under horovodrun: it finds addresses, nodes and secret without environment variables."""

import json
import subprocess
import sys

import pytest

from datacache import World, rendezvous
from tests.parallel.launch import ROOT, horovodrun


@pytest.mark.parametrize(
    "ranks, sparse",
    [(2, False), pytest.param(4, True, marks=pytest.mark.thorough)],
    ids=["Horovod alone", "hvd_sparse, two ranks each"],
)
def test_ranks_meet_and_serve_each_other(ranks, sparse, tmp_path):
    each = ranks // 2
    options = {"folder": str(tmp_path), "local_size": each, "sparse": sparse}
    ended = horovodrun(ranks, ["-m", "tests.datacache.joining", json.dumps(options)], 600)
    assert ended.status == 0, ended.output
    seen = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    for rank, found in enumerate(seen):
        node = rank // each
        assert found["world"] == [rank, ranks, node, 2, seen[0]["peers"][0][node]]
        assert found["peers"] == seen[0]["peers"] and found["secrets"] == seen[0]["secrets"]
        assert found["alone"] == [rank, ranks, 0, 1, [], None, None]
        assert found["right"] == [True, True] and found["samples"] > 0
        assert found["again"] == (True if each > 1 and node == 0 else None)
        assert_refused(found["errors"], ranks)
        assert not found["secret is shown"]
        assert (tmp_path / f"secret-{rank}").read_text() not in ended.output
    addresses = [address for peers in seen[0]["peers"] for address in peers]
    assert len(set(addresses)) == 4 and all(address.startswith("127.0.0.1:") for address in addresses)
    assert len(set(seen[0]["secrets"])) == 2
    assert sum(found["serves"] for found in seen) == 2


def assert_refused(errors, ranks):
    """Asserts that all ranks report the same error if one of them cannot have what it asked for."""
    unequal, elsewhere, anywhere, taken, same_port = errors
    assert unequal.startswith("ValueError: Expected the same local_size on all ranks, which divides")
    assert elsewhere.startswith("OSError: rank 0 cannot serve peers at 192.0.2.1") and "rank 1" not in elsewhere
    assert "0.0.0.0 is not a single address" in anywhere
    assert taken.startswith("OSError: rank 0 cannot serve peers at 127.0.0.1, port ") and "in use" in taken
    assert "a different address for each node" in same_port


def test_nobody_imports_horovod_or_a_framework_before_it_is_wanted():
    check = "import sys, datacache; print([n for n in ('horovod', 'tensorflow', 'keras', 'h5py') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_without_horovod_only_a_lone_rank_needs_no_barrier():
    World().barrier()
    with pytest.raises(RuntimeError, match="Only a World made by World.from_horovod"):
        World(0, 2).barrier()


def test_a_place_does_not_show_its_secret():
    place = rendezvous.Place(0, 1, 0, 1, ("a:1",), b"not to be shown", None)
    assert "shown" not in repr(place) and "shown" not in f"{place}"


HOSTS = [("a", 2), ("a", 2), ("b", 2), ("b", 2)]


@pytest.mark.parametrize(
    "places, nodes",
    [
        ([("a", None)], [[0]]),
        ([("a", None), ("b", None), ("a", None), ("b", None)], [[0, 2], [1, 3]]),
        (HOSTS, [[0, 1], [2, 3]]),
        ([("a", 1), ("a", 1)], [[0], [1]]),
        ([("a", 1), ("a", 1), ("b", 1)], [[0], [1], [2]]),
    ],
)
def test_nodes_are_of_one_host_each(places, nodes):
    assert rendezvous.arrange(places) == nodes


@pytest.mark.parametrize(
    "places",
    [
        [("a", None), ("a", None), ("b", None)],
        [("a", 2), ("a", 2), ("b", 2)],
        [("a", 0)],
        [("a", -1)],
        [("a", 1), ("a", 2)],
        [("a", None), ("a", 2)],
    ],
)
def test_unequal_nodes_are_refused(places):
    with pytest.raises(ValueError, match="Expected"):
        rendezvous.arrange(places)

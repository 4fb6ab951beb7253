"""Fixtures shared by the tests of peers."""

import pytest

from datacache.counters import Counters
from datacache.peers.server import Server, Shelf
from tests.datacache.node import free_addresses
from tests.datacache.peer_actors import BYTES, COUNT, DATA, SECRET, nothing, record


@pytest.fixture
def place():
    return free_addresses(1)[0]


@pytest.fixture
def tally():
    return Counters()


@pytest.fixture
def serving(place, tally):
    """A server of node 1."""
    made = Server(place, 1, DATA, SECRET, Shelf(range(COUNT), BYTES, nothing, record), tally)
    yield made
    made.close()
    made.close()

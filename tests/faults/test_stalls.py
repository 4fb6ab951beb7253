"""Ranks that waited for each other in different collectives did so without a word."""

import pytest

from tests.faults import ranks

ACTORS = "actors_stalls"
launched = ranks.fixture(ACTORS, count=2, environment={"HVD_SPARSE_STALL_SECONDS": "2"})


@pytest.mark.parametrize("name", ranks.names(ACTORS))
def test_on_ranks(name, launched):
    launched.require(name)

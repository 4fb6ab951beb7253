"""Broadcasts paired variables by Keras's running names, and waited for ever where ranks had made other objects."""

import pytest

from tests.faults import ranks

ACTORS = "actors_broadcast_callback"
launched = ranks.fixture(ACTORS, count=2)


@pytest.mark.parametrize("name", ranks.names(ACTORS))
def test_on_ranks(name, launched):
    launched.require(name)

"""Fixtures shared by the tests of links."""

import pytest

from link import Client, Server
from tests.link.actors import ECHO, SECRET, SUBJECT, Heard, caller, echo, free_place


@pytest.fixture
def place():
    return free_place()


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def serve(place, heard):
    """Starts server 1."""
    made = []

    def start(handle=echo, protocol=ECHO, subject=SUBJECT, **changed):
        made.append(Server(place, 1, subject, SECRET, protocol, handle, heard, **changed))
        return made[-1]

    yield start
    for each in made:
        each.close()
        each.close()


@pytest.fixture
def ask(place):
    """Starts clients that can reach server 1."""
    made = []

    def start(silence=20.0, events=None, **changed):
        made.append(Client(["127.0.0.1:1", place], caller(events or Heard(), silence, **changed)))
        return made[-1]

    yield start
    for each in made:
        each.close()
        each.close()

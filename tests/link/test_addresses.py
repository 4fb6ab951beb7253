"""Addresses, and how network interfaces and names are resolved."""

import socket

import pytest

from link import addresses, hold, resolve
from link.server import Server
from tests.link.actors import ECHO, SECRET, SUBJECT, Heard, echo, free_place


@pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:b"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="Expected an address host:port"):
        addresses.split(address)


def test_addresses_come_apart_and_together():
    assert addresses.split("[::1]:80") == ("::1", 80) and addresses.endpoint("[::1]:80") == "tcp://[::1]:80"
    assert addresses.split("a:80") == ("a", 80) and addresses.endpoint("127.0.0.1:80") == "tcp://127.0.0.1:80"
    assert addresses.join("::1", 80) == "[::1]:80" and addresses.join("a", 80) == "a:80"


@pytest.mark.parametrize("bind, found", [("lo", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("localhost", None)])
def test_an_interface_or_a_name_stands_for_an_address(bind, found):
    assert resolve(bind) in ("127.0.0.1", "::1") if found is None else resolve(bind) == found


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "no-such-name.invalid"])
def test_what_is_no_single_address_is_refused(bind):
    with pytest.raises(OSError):
        resolve(bind)


def test_a_port_that_is_held_is_free_for_servers_alone():
    held, place = hold("lo")
    with held:
        host, port = addresses.split(place)
        assert host == "127.0.0.1" and hold("127.0.0.1", port)[1] == place
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
        Server(place, 1, SUBJECT, SECRET, ECHO, echo, Heard()).close()
        with socket.socket() as other, pytest.raises(OSError):
            other.bind((host, port))


def test_a_server_binds_to_one_address_alone():
    place = free_place()
    server = Server(place, 1, SUBJECT, SECRET, ECHO, echo, Heard())
    port = addresses.split(place)[1]
    socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
    with pytest.raises(OSError, match=f"a port that is free, got {place}"):
        Server(place, 1, SUBJECT, SECRET, ECHO, echo, Heard())
    server.close()

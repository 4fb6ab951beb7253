"""Connections that do not prove to know the secret: they are closed after a while, and no others are."""

import os
import socket
import time

import pytest
import zmq
import zmq.utils.monitor

from link import addresses, strangers
from tests.link.actors import Asker, echoes, until


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def knock(place):
    return socket.create_connection(addresses.split(place))


def has_ended(connection):
    """Whether the other side has closed the connection; reads all it has sent."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_stranger_is_shown_out_after_five_seconds_and_who_is_known_stays(serve, ask, place, context):
    serve()
    client = ask()
    assert echoes(client)
    known = Asker(place)
    known.shake_hands()
    silent, started = knock(place), time.monotonic()
    idle = context.socket(zmq.DEALER)
    idle.setsockopt(zmq.RECONNECT_IVL, -1)
    monitor = idle.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    idle.connect(f"tcp://{place}")
    assert until(lambda: has_ended(silent)) and 4 < time.monotonic() - started
    assert monitor.poll(60_000)
    silent.close()
    known.send(known.request(1))
    assert known.hear()["kind"] == "said" and echoes(client)
    known.close()


def test_a_crowd_of_strangers_is_shown_out_sooner(serve, ask, place):
    serve()
    crowd = [knock(place) for _ in range(80)]
    client = ask()
    assert echoes(client)
    assert until(lambda: sum(map(has_ended, crowd)) >= 16)
    assert echoes(client)
    for each in crowd:
        each.close()


def test_descriptors_that_are_used_again_are_not_taken_for_who_had_them(serve, ask, place, heard):
    """Strangers and known clients come and go in turn, and get each other's descriptors."""
    serve()
    client = ask(number=99)
    assert echoes(client)
    before = descriptors()
    for each in range(30):
        stranger, asker = knock(place), Asker(place, number=each)
        stranger.close()
        asker.shake_hands()
        asker.send(asker.request(1))
        assert asker.hear()["kind"] == "said"
        asker.close()
    assert until(lambda: len(heard.departed) == 30) and heard.departed == list(range(30))
    assert until(lambda: descriptors() <= before + 2)
    assert echoes(client) and heard.refusals == []


def test_who_leaves_at_once_has_gone(serve, place, heard):
    """Its disconnection may arrive before the server has found out which connection its last message came from."""
    serve()
    for each in range(100):
        asker = Asker(place, number=each)
        asker.shake_hands()
        asker.close()
    assert until(lambda: len(heard.departed) == 100) and sorted(heard.departed) == list(range(100))
    assert heard.refusals == []


def test_what_is_taken_for_a_descriptor_is_one(context):
    """Events of failed handshakes carry an error number instead."""
    server = context.socket(zmq.ROUTER)
    monitor = server.get_monitor_socket(zmq.EVENT_ACCEPTED | strangers._ENDED)
    place = f"127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}"
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03" + bytes(52)) * 5:
        stranger = knock(place)
        stranger.sendall(said)
        stranger.close()
    accepted, ended = [], []
    while len(ended) < 15 and monitor.poll(60_000):
        told = zmq.utils.monitor.recv_monitor_message(monitor)
        (accepted if told["event"] == zmq.EVENT_ACCEPTED else ended).append(int(told["value"]))
    assert sorted(ended) == sorted(accepted)
    server.disable_monitor()

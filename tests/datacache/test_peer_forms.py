"""What peers are told before they meet: the form of messages, addresses, the secret."""

import socket

import msgpack
import pytest

from datacache.peers import sockets, wire
from datacache.peers.wire import WireError
from datacache.world import World


class TestForms:
    @pytest.mark.parametrize(
        "header, told",
        [
            (b"", "no header"),
            (b"\x93\x01\x02\x03", "no header"),
            (b"\x01", "another kind came"),
            (wire.pack("refuse", reason="x"), "'ask' was expected, another kind came"),
            (wire.pack("ask", number=1), "other fields"),
            (wire.pack("ask", number="1", count=1), "a number of type str"),
            (wire.pack("ask", number=1, count=True), "a count of type bool"),
            (wire.pack("ask", number=1, count=-1), "negative"),
            (wire.pack("ask", number=1, count=wire.MOST_SAMPLES + 1), f"more than {wire.MOST_SAMPLES}"),
            (wire.pack("ask", number=1, count=1) + b"\x00", "no header"),
            (msgpack.packb({"kind": ["ask"]}), "no header"),
            (msgpack.packb({1: "ask"}), "no header"),
            (bytes(wire.HEADER_BYTES + 1), "a header of"),
        ],
    )
    def test_what_has_another_form_is_refused(self, header, told):
        with pytest.raises(WireError, match=told):
            wire.unpack(header, "ask")

    @pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:b"])
    def test_what_is_no_address_is_refused(self, address):
        with pytest.raises(ValueError, match="Expected an address host:port"):
            sockets.split(address)

    def test_addresses(self):
        assert sockets.split("[::1]:80") == ("::1", 80) and sockets.endpoint("[::1]:80") == "tcp://[::1]:80"
        assert sockets.endpoint("127.0.0.1:80") == "tcp://127.0.0.1:80"

    def test_a_server_binds_to_one_address_alone(self, serving, place):
        port = int(place.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


class TestWorld:
    def test_addresses_and_secret_from_the_environment(self, monkeypatch, tmp_path):
        path = tmp_path / "secret"
        path.write_text("0123456789abcdef0123456789abcdef\n")
        path.chmod(0o600)
        for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_RANK": 1}.items():
            monkeypatch.setenv(f"HOROVOD_{name}", str(value))
        monkeypatch.setenv("DATACACHE_PEERS", "a:1, b:2")
        with pytest.raises(ValueError, match="bind b:2 and no secret"):
            World.from_environment()
        monkeypatch.setenv("DATACACHE_SECRET_FILE", str(path))
        secret = b"0123456789abcdef0123456789abcdef"
        assert World.from_environment() == World(3, 4, 1, 2, ("a:1", "b:2"), "b:2", secret)
        monkeypatch.setenv("DATACACHE_BIND", "c:3")
        monkeypatch.setenv("DATACACHE_ENCRYPT", "1")
        assert World.from_environment() == World(3, 4, 1, 2, ("a:1", "b:2"), "c:3", secret, True)
        assert World.from_environment(["x:1", "y:1"], "y:2", bytes(16), False).peers == ("x:1", "y:1")
        path.chmod(0o640)
        with pytest.raises(PermissionError, match="chmod 600"):
            World.from_environment()

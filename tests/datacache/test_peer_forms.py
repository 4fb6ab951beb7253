"""What peers must know before they meet: addresses and secret, from the environment."""

import pytest

from datacache.world import World


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

"""Two hosts made of network namespaces on this machine: each has its own interface, address and name resolution."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

RANKS_PER_HOST = 2
_INTERFACE = "eth0"


@dataclasses.dataclass(frozen=True)
class Network:
    """How to start horovodrun on the first host.

    Attributes:
        hosts: the argument of -H.
        prefix: put before the command, to run it on the first host.
        environment: PATH with the replacement for ssh in front.
    """

    hosts: str
    prefix: list[str]
    environment: dict[str, str]


def unavailable() -> str | None:
    """Why such a network cannot be made here; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (package iproute2)"
    probe = subprocess.run(["ip", "netns", "add", _names()[0]], capture_output=True, text=True)
    if probe.returncode:
        return f"network namespaces cannot be made here: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", _names()[0]], check=True)
    return None


@contextlib.contextmanager
def two_hosts(loopback_names: bool) -> Iterator[Network]:
    """Makes two hosts connected by a virtual cable, and removes them afterwards.

    Args:
        loopback_names: whether each host's own name resolves to 127.0.1.1, as in the /etc/hosts of Debian's installer;
            otherwise it resolves to the host's address.
    """
    names = _names()
    addresses = ["10.79.0.1", "10.79.0.2"]
    with contextlib.ExitStack() as cleanup:
        for name, address in zip(names, addresses, strict=True):
            cleanup.callback(shutil.rmtree, f"/etc/netns/{name}", ignore_errors=True)
            cleanup.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            _make_host(name, "127.0.1.1" if loopback_names else address)
        first, second = names
        _ip(f"-n {first} link add {_INTERFACE} type veth peer name {_INTERFACE} netns {second}")
        for name, address in zip(names, addresses, strict=True):
            _ip(f"-n {name} addr add {address}/24 dev {_INTERFACE}")
            _ip(f"-n {name} link set {_INTERFACE} up")
        folder = cleanup.enter_context(tempfile.TemporaryDirectory())
        _write_ssh(pathlib.Path(folder), dict(zip(addresses, names, strict=True)))
        yield Network(
            hosts=",".join(f"{address}:{RANKS_PER_HOST}" for address in addresses),
            prefix=["ip", "netns", "exec", first],
            environment={"PATH": f"{folder}:{os.environ['PATH']}"},
        )


def _names() -> list[str]:
    return [f"hvd-sparse-{os.getpid()}-{host}" for host in (0, 1)]


def _make_host(name: str, own_address: str) -> None:
    hosts = pathlib.Path("/etc/netns") / name / "hosts"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(f"127.0.0.1 localhost\n{own_address} {socket.gethostname()}\n")
    _ip(f"netns add {name}")
    _ip(f"-n {name} link set lo up")


def _write_ssh(folder: pathlib.Path, names: dict[str, str]) -> None:
    """Writes a replacement for ssh that runs the command in the host's namespace: `ssh [-o OPTION] HOST COMMAND...`."""
    script = folder / "ssh"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"names = {names!r}\n"
        "host = next(word for word in sys.argv[1:] if word in names)\n"
        "rest = sys.argv[sys.argv.index(host) + 1:]\n"
        "while rest[0] == '-o':\n"
        "    rest = rest[2:]\n"
        "os.execvp('ip', ['ip', 'netns', 'exec', names[host], 'sh', '-c', ' '.join(rest)])\n"
    )
    script.chmod(0o755)


def _ip(command: str) -> None:
    subprocess.run(["ip", *shlex.split(command)], check=True)

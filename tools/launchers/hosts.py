"""Hosts made of network namespaces on this machine, each with its name, address and ssh server.

The machine itself has another interface to them than they have (a bridge, where they have eth0). However this process
ends, the cluster's guard kills what runs in the namespaces and removes them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from benchmarks.machines import cluster

PORT = 2222
_SSHD = """Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
"""
# ssh and mpirun would write the hosts' keys to the user's own file.
_SSH = """#!/bin/sh
exec {ssh} -q -p {port} -i {folder}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "$@"
"""


def unavailable(*programs: str) -> str | None:
    """Why there can be no such hosts here, or which of the programs is missing; None if nothing is."""
    missing = [each for each in ("sshd", "ssh", "ssh-keygen", *programs) if find(each) is None]
    return cluster.unavailable() or (f"These programs are missing: {', '.join(missing)}." if missing else None)


def find(program: str) -> str | None:
    """A program on the PATH or where Debian has its servers."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Hosts:
    """Two hosts or more, and how to start something on them.

    Attributes:
        names: of the hosts, as they know each other.
        addresses: of the hosts, which this machine and the hosts can use.
        own_address: of this machine, for the hosts.
        folder: for files; deleted at the end.
        key: private ssh key that all hosts accept, on `PORT`.
        path: PATH with an ssh in front that knows port and key.
    """

    def __init__(self, made: cluster.Cluster, folder: pathlib.Path):
        self._cluster = made
        self.names = made.names
        self.addresses = [made.address(node) for node in range(made.nodes)]
        self.own_address = made.own_address
        self.folder = folder
        self.key = folder / "key"
        self.path = f"{folder}:{os.environ['PATH']}:/usr/sbin:/sbin"

    def prefix(self, host: int) -> list[str]:
        """Put before a command, runs it on a host, which has its own name there."""
        naming = 'hostname "$0" && exec "$@"'
        return [*self._cluster.prefix(host), "unshare", "--uts", "sh", "-c", naming, self.names[host]]

    def start(self, host: int, command: Sequence[str], log: str) -> subprocess.Popen:
        """Starts a server on a host, which ends with the hosts; its output goes to the file `log` in the folder."""
        with open(self.folder / log, "ab") as output:
            return subprocess.Popen(
                [*self.prefix(host), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": self.path},
                start_new_session=True,
            )

    def read(self, log: str) -> str:
        """What a server has printed."""
        return (self.folder / log).read_text(errors="replace")


@contextlib.contextmanager
def made(number: int = 2, local: int = 1) -> Iterator[Hosts]:
    """Makes the hosts, each with an ssh server, and removes them afterwards.

    Raises:
        RuntimeError: if they cannot be made here.
    """
    reason = unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    with tempfile.TemporaryDirectory(prefix="launchers") as folder, cluster.Cluster(number, local) as nodes:
        hosts = Hosts(nodes, pathlib.Path(folder))
        _write_names(hosts)
        _start_ssh(hosts)
        yield hosts


def _write_names(hosts: Hosts) -> None:
    known = "".join(f"{address} {name}\n" for address, name in zip(hosts.addresses, hosts.names, strict=True))
    for name in hosts.names:
        pathlib.Path("/etc/netns", name, "hosts").write_text(f"127.0.0.1 localhost\n{known}")


def _start_ssh(hosts: Hosts) -> None:
    for name in ("key", "host_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(hosts.folder / name))
    settings = hosts.folder / "sshd_config"
    settings.write_text(_SSHD.format(port=PORT, folder=hosts.folder))
    client = hosts.folder / "ssh"
    client.write_text(_SSH.format(ssh=find("ssh"), port=PORT, folder=hosts.folder))
    client.chmod(0o755)
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    for host, address in enumerate(hosts.addresses):
        server = hosts.start(host, [find("sshd") or "sshd", "-D", "-e", "-f", str(settings)], f"sshd{host}.log")
        answered(address, PORT, server, lambda host=host: hosts.read(f"sshd{host}.log"))


def answered(address: str, port: int, server: subprocess.Popen, log, limit: float = 60.0) -> None:
    """Waits until something listens at a port.

    Raises:
        RuntimeError: with what the server printed, if it ended or the limit (in seconds) is over.
    """
    until = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
            return
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"Nothing listens at {address}:{port}. The server printed:\n{log()}")
        time.sleep(0.05)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)

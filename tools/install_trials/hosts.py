"""Two hosts in one system: each has a network, a name and an sshd of its own, and a cable joins them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from tools.install_trials.systems import KEEPER, USER, Host, System, keep

NAMES = ("node0", "node1")
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # those of RFC 5737, for examples: they lead nowhere else
ROOM = """
hostname {name}
mount -t sysfs -o ro sysfs {root}/sys
"""

INSIDE = ("--mount", "--pid", "--net", "--uts", "--")
KEYS = """
mkdir -p -m 700 ~/.ssh
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
"""


@contextlib.contextmanager
def two_hosts(system: System, user: str = USER) -> Iterator[list[Host]]:
    """Makes the hosts, between which a user has ssh without a password, for the duration of the block."""
    system.run(_addresses(), user="root", folder="/")
    system.run(KEYS, user=user, folder="/")
    with contextlib.ExitStack() as cleanup:
        numbers = [_host(system, name, cleanup) for name in NAMES]
        _join(numbers)
        hosts = [Host(system.root, ["nsenter", f"--target={number}", *INSIDE]) for number in numbers]
        for host in hosts:
            host.run("mkdir -p /run/sshd && /usr/sbin/sshd", user="root", folder="/")
        yield hosts


def _addresses() -> str:
    lines = [f"{address} {name}" for name, address in zip(NAMES, ADDRESSES, strict=True)]
    return "printf '%s\\n' '127.0.0.1 localhost' " + " ".join(f"'{line}'" for line in lines) + " >/etc/hosts"


def _host(system: System, name: str, cleanup: contextlib.ExitStack) -> str:
    """Makes a network and a name, which last until the keeper ends; returns the keeper's number."""
    made = ROOM.format(name=name, root=system.root)
    command = ["unshare", "--net", "--uts", "--mount", "bash", "-ec", made + KEEPER]
    return keep([*system.entered, *command], cleanup)


def _join(numbers: list[str]) -> None:
    first, second = numbers
    _ip(f"link add eth0 netns {first} type veth peer name eth0 netns {second}")
    for number, address in zip(numbers, ADDRESSES, strict=True):
        inside = ["nsenter", f"--target={number}", "--net", "--"]
        _ip("link set lo up", inside)
        _ip(f"addr add {address}/24 dev eth0", inside)
        _ip("link set eth0 up", inside)


def _ip(command: str, inside: list[str] | None = None) -> None:
    subprocess.run([*(inside or []), "ip", *command.split()], check=True)

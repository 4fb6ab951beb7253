"""A cluster in a box for an ordinary user: the right to make network namespaces, in a user namespace of one's own.

A command runs there as root of the namespace, with /run and /etc of its own, in which namespaces and their files can be
made; nothing of it exists for others. When the command ends, everything in it ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

_WITHIN = "HVD_SPARSE_SANDBOX"
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child")
# /etc gets a folder in which files can be made, and otherwise leads to what it had.
_PREPARED = """
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir /run/etc /run/netns
mount --bind /etc /run/etc
mount -t tmpfs tmpfs /etc
for each in /run/etc/*; do ln -s "$each" /etc/; done
rm -f /etc/netns
mkdir /etc/netns
ip link set lo up
"""
_PROBE = """
ip netns add probe
ip link add probe0 type veth peer name eth0 netns probe
ip link add probe1 type bridge
tc qdisc add dev probe0 root tbf rate 1gbit burst 70000 latency 100ms
ip netns exec probe true
"""


def is_within() -> bool:
    """Whether this process runs in such a sandbox."""
    return _WITHIN in os.environ


def unavailable() -> str | None:
    """Why there can be no sandbox here, in one line; None if there can."""
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name, path=_path()) is None]
    if missing:
        return f"the command {' and '.join(missing)} is missing: install the packages util-linux and iproute2"
    probe = subprocess.run(
        [*_UNSHARE, "sh", "-ec", _PREPARED + _PROBE], env=_environment(), capture_output=True, text=True
    )
    if probe.returncode == 0:
        return None
    said = probe.stderr.strip().splitlines()
    return f"the kernel forbids it to an ordinary user ({said[-1] if said else 'unshare failed'})"


def enter(command: Sequence[str]) -> None:
    """Runs a command in a sandbox in place of this process."""
    os.execvpe(_UNSHARE[0], [*_UNSHARE, "sh", "-ec", f'{_PREPARED}exec "$@"', "sh", *command], _environment())


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # an ordinary user's PATH may lack the last two


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _path(), _WITHIN: "1"}

"""Further settings for the links of a cluster in a box: segmentation offload, and the length of their queues."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.machines.cluster import Cluster

# ioctl's SIOCETHTOOL with ETHTOOL_STSO, ETHTOOL_SGSO and ETHTOOL_SGRO (linux/ethtool.h): like `ethtool -K`, which some
# machines lack. Runs in the namespace of the interface.
_SET_OFFLOAD = """
import array, fcntl, socket, struct, sys
name, on = sys.argv[1].encode(), int(sys.argv[2])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    for set, get in ((0x1F, 0x1E), (0x24, 0x23), (0x2C, 0x2B)):
        for command in (set, get):
            value = array.array("I", [command, on])
            fcntl.ioctl(own, 0x8946, struct.pack("16sP", name, value.buffer_info()[0]))
        assert value[1] == on, "the interface did not take it"
"""


def set_offload(cluster: Cluster, on: bool) -> None:
    """Turns segmentation offload (TSO, GSO, GRO) of all interfaces of a cluster on or off.

    Args:
        cluster: within its `with` block.
        on: whether to turn it on.
    """
    for where, device in _ends(cluster):
        subprocess.run([*where, sys.executable, "-c", _SET_OFFLOAD, device, str(int(on))], check=True)


def set_queue(cluster: Cluster, seconds: float) -> None:
    """Makes each end of each link drop packets that would wait longer.

    Args:
        cluster: shaped by tbf, within its `with` block.
        seconds: maximum seconds that a packet waits.
    """
    for where, device in _ends(cluster):
        listed = subprocess.run(
            [*where, "tc", "qdisc", "show", "dev", device, "root"], check=True, capture_output=True, text=True
        ).stdout.split()
        if "tbf" not in listed:
            raise ValueError(f"Expected links shaped by tbf, got {' '.join(listed)!r}.")
        rate, burst = (listed[listed.index(word) + 1] for word in ("rate", "burst"))
        change = ["tc", "qdisc", "change", "dev", device, "root", "tbf", "rate", rate, "burst", burst]
        subprocess.run([*where, *change, "latency", f"{1e3 * seconds:g}ms"], check=True)


def _ends(cluster: Cluster) -> list[tuple[list[str], str]]:
    """Both interfaces of each link, each with the command prefix for its namespace."""
    inside = [(cluster.prefix(node), "eth0") for node in range(cluster.nodes)]
    return inside + [([], cluster.outer(node)) for node in range(cluster.nodes)]

"""Two queues at both ends of each link of a cluster in a box, one with strict priority.

tbf at the root shapes, as before, and asks its child for packets. The child is HTB with two classes whose rates no link
comes near, so that neither ever waits for its own rate. HTB serves such classes by strict priority, like prio, which
not every kernel has. Without a filter all packets are in the second class, and wait in one queue.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from benchmarks.machines.cluster import Cluster, bits_per_second

_NEVER_SHORT = "10gbit"
_BURST = 1 << 20  # bytes
_SHAPED_SECONDS, _SHAPED_LEAST = 0.0005, 6000  # of the rate, and bytes: what the shaper lets through at once


def install(cluster: Cluster, seconds: float) -> None:
    """Puts both queues behind the shapers of a cluster, within its `with` block; no packet has priority yet.

    An idle shaper lets through at once what the link carries in 0.5 ms, instead of 70 KB. Otherwise a message on an
    idle link would take no time, and a sender of bursts would get more of the link than a steady one.

    Args:
        cluster: shaped by tbf, with segmentation offload off.
        seconds: of the link's rate that each queue holds; what comes beyond is dropped.
    """
    assert cluster.rate is not None and cluster.shaper == "tbf"
    held = int(bits_per_second(cluster.rate) / 8 * seconds)
    burst = max(_SHAPED_LEAST, int(bits_per_second(cluster.rate) / 8 * _SHAPED_SECONDS))
    for where, device in _ends(cluster):
        lines = [
            f"qdisc change dev {device} root handle 1: tbf rate {cluster.rate} burst {burst} limit {held}",
            f"qdisc add dev {device} parent 1:1 handle 2: htb default 2",
        ]
        for number in (1, 2):
            share = f"rate {_NEVER_SHORT} burst {_BURST} cburst {_BURST} quantum 60000"
            lines += [
                f"class add dev {device} parent 2: classid 2:{number} htb prio {number - 1} {share}",
                f"qdisc add dev {device} parent 2:{number} bfifo limit {held}",
            ]
        _tc(where, lines)


def put_first(cluster: Cluster, port: int | None) -> None:
    """Gives packets to and from a TCP port strict priority; they wait for at most one packet being sent.

    ARP has priority too, as nodes without recent contact need it before they can communicate.

    Args:
        cluster: one with both queues installed.
        port: None puts all packets in one queue, in order of arrival.
    """
    for where, device in _ends(cluster):
        lines = [f"filter del dev {device} parent 2:"]
        if port is not None:
            add = f"filter add dev {device} parent 2:"
            tcp = f"{add} protocol ip prio 1 u32 match ip protocol 6 0xff"
            lines += [f"{tcp} match ip {side} {port} 0xffff flowid 2:1" for side in ("sport", "dport")]
            lines.append(f"{add} protocol arp prio 2 u32 match u32 0 0 flowid 2:1")
        _tc(where, lines)


def sent(cluster: Cluster, node: int) -> tuple[int, int]:
    """Bytes that have left a node so far: through the priority queue, and through the other."""
    command = ["tc", "-n", cluster.names[node], "-s", "class", "show", "dev", "eth0"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    first, second = (re.search(rf"class htb 2:{number} .*?Sent (\d+) bytes", listed, re.DOTALL) for number in (1, 2))
    assert first is not None and second is not None
    return int(first[1]), int(second[1])


def _ends(cluster: Cluster) -> Iterator[tuple[list[str], str]]:
    """Both interfaces of each link, each with the arguments by which tc finds it."""
    for node in range(cluster.nodes):
        yield ["-n", cluster.names[node]], "eth0"
        yield [], cluster.outer(node)


def _tc(where: list[str], lines: list[str]) -> None:
    subprocess.run(["tc", *where, "-batch", "-"], input="\n".join(lines), text=True, check=True)

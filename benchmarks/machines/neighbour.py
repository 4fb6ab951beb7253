"""A neighbour on a node of a cluster in a box that fills a link in bursts.

    python -m benchmarks.machines.neighbour OWN OTHER ...

OWN is the address at which it receives and drops what neighbours send. OTHER is the address to which it sends datagrams
of full size, without checking whether they arrive. A burst is at --rate, headers included. The time between the
beginnings of two bursts is random, from half to one and a half of --period, by a seed, so that steps cannot fall into
its rhythm.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

PORT = 7171
_PAYLOAD, _WHOLE = 1472, 1514  # bytes of a datagram without and with the headers of UDP, IP and Ethernet
_RUN = 16  # datagrams per system call, about as many as in `Datagrams` at 1 Gbit/s
_UDP, _SEGMENT = 17, 103  # SOL_UDP, UDP_SEGMENT
_SEND_BUFFER, _SEND_BUFFER_FORCED = 4 << 20, 32  # bytes; so large that a full queue drops, and the sender never waits


def beginnings(period: float, seed: int) -> Iterator[float]:
    """Yields the seconds from the beginning of the first burst to that of each burst, from 0 on, without end."""
    random_numbers, at = random.Random(seed), 0.0
    while True:
        yield at
        at += period * random_numbers.uniform(0.5, 1.5)


@contextlib.contextmanager
def beside(cluster, rate: float, burst: float, period: float, seed: int = 0) -> Iterator[None]:
    """Runs a neighbour on node 1 of a cluster that sends to node 0, for the duration of a `with` block.

    Args:
        cluster: a `benchmarks.machines.cluster.Cluster` of two nodes or more.
        rate: bits per second in a burst.
        burst: seconds per burst.
        period: mean seconds between the beginnings of two bursts.
        seed: seed of the draws.
    """
    told = [f"--rate={rate}", f"--burst={burst}", f"--period={period}", f"--seed={seed}"]
    own, other = cluster.address(1), cluster.address(0)
    commands = [
        [*cluster.prefix(0), sys.executable, "-m", __name__, other],
        [*cluster.prefix(1), sys.executable, "-m", __name__, own, other, *told],
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        for each in running:
            assert each.stdout is not None
            if not each.stdout.readline():
                raise RuntimeError(f"the neighbour ended early, with status {each.wait()}")
        yield
        if any(each.poll() is not None for each in running):
            raise RuntimeError("the neighbour ended before the measurement did")
    finally:
        for each in running:
            each.kill()
            each.wait()


def listen(address: str) -> socket.socket:
    """A socket for sending and receiving; arriving data fills its buffer, and after that costs almost nothing."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind((address, PORT))
    own.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCED, _SEND_BUFFER)
    own.setsockopt(_UDP, _SEGMENT, _PAYLOAD)
    return own


def fill(sender: socket.socket, other: str, rate: float, begin: float, end: float) -> None:
    """Sends at a rate from one moment of the monotonic clock to another."""
    data = bytes(_PAYLOAD * _RUN)
    due, seconds = begin, _WHOLE * _RUN * 8 / rate
    while max(due, now := time.monotonic()) < end:
        time.sleep(max(0.0, due - now))
        with contextlib.suppress(OSError):  # the queue may drop datagrams
            sender.sendto(data, (other, PORT))
        due += seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("own")
    parser.add_argument("other", nargs="?")
    parser.add_argument("--rate", type=float, default=1e9, help="bits per second in a burst")
    parser.add_argument("--burst", type=float, default=0.05, help="seconds of a burst")
    parser.add_argument("--period", type=float, default=0.2, help="mean seconds between the starts of bursts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with listen(options.own) as own:
        print("ready", flush=True)
        if options.other is None:
            signal.pause()
        first = time.monotonic()
        for begin in (first + since for since in beginnings(options.period, options.seed)):
            time.sleep(max(0.0, begin - time.monotonic()))
            fill(own, options.other, options.rate, begin, begin + options.burst)


if __name__ == "__main__":
    main()

"""A cluster in a box: nodes are network namespaces on a bridge, each behind a shaped link, and ranks run in them.

    python -m benchmarks.machines.cluster --nodes 2 --local 2 --rate 1gbit -- python -m examples.keras_digits

Ranks are started through Horovod's own rendezvous, with Gloo, or with --launcher mpirun through Open MPI, if Horovod
was built with MPI. Each node has its own name resolution, as Horovod's process sets look up the host's own name to find
their address. However this program ends, a guard that outlives it stops the ranks and removes namespaces, bridge and
links. Needs root and the commands ip and tc (package iproute2).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousServer

_CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"  # that of the namespace of the process that opens it
LAUNCHERS = ("rendezvous", "mpirun")
_BURST_SECONDS = 0.0005
_LEAST_BURST = 70_000  # bytes: a packet before segmentation has up to 64 KB
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1",
}


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The traffic that an interface has sent."""

    bytes: int
    packets: int

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.bytes - other.bytes, self.packets - other.packets)


def bits_per_second(rate: str) -> float:
    """A rate in tc's notation ("100mbit", "1gbit") as a number.

    Raises:
        ValueError: if it is not a rate.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(k|m|g)bit", rate.strip().lower())
    if not found or float(found[1]) <= 0:
        raise ValueError(f"Expected a rate such as 100mbit or 1gbit, got {rate!r}.")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


def unavailable() -> str | None:
    """The reason why no cluster can be made here, with the remedy; None if one can."""
    if os.geteuid() != 0:
        return "A cluster in a box needs root, to make network namespaces: run it as root or with sudo."
    missing = [command for command in ("ip", "tc") if shutil.which(command) is None]
    if missing:
        return f"A cluster in a box needs the command {' and '.join(missing)}: install the package iproute2."
    return None


class Cluster:
    """Nodes on one bridge, for the duration of a `with` block.

    Attributes:
        nodes: number of nodes.
        local: ranks on each node.
        rate: rate of each node's link, in both directions, in tc's notation; None leaves it unshaped.
        shaper: queueing discipline that shapes the links, "tbf" or "htb".
        congestion: TCP's congestion control on the nodes: cubic, the default in Linux, or this machine's if the kernel
            does not let a namespace choose that. (BBR, for example, stops sending for 200 ms every 10 s.)
    """

    def __init__(self, nodes: int, local: int, rate: str | None = None, shaper: str = "tbf"):
        if nodes < 1 or local < 1 or nodes > 200:
            raise ValueError(f"Expected 1 to 200 nodes and at least 1 rank on each, got {nodes} and {local}.")
        if shaper not in ("tbf", "htb"):
            raise ValueError(f"Expected the shaper tbf or htb, got {shaper!r}.")
        if rate is not None:
            bits_per_second(rate)
        self.nodes, self.local, self.rate, self.shaper = nodes, local, rate, shaper
        self.congestion = ""
        self._prefix = f"hvds{os.getpid()}"
        self._network = f"10.78.{os.getpid() % 256}"  # so that two simultaneous clusters do not interfere
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        reason = unavailable()
        if reason is not None:
            raise RuntimeError(reason)
        self._cleanup.callback(self._start_guard())
        try:
            self._build()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def names(self) -> list[str]:
        """The namespaces, one per node."""
        return [f"{self._prefix}n{node}" for node in range(self.nodes)]

    @property
    def bridge(self) -> str:
        """The bridge interface that joins the nodes."""
        return f"{self._prefix}b"

    def address(self, node: int) -> str:
        """A node's address."""
        return f"{self._network}.{node + 1}"

    @property
    def own_address(self) -> str:
        """The bridge's address, where the rendezvous server listens."""
        return f"{self._network}.254"

    def outer(self, node: int) -> str:
        """The host's end of a node's link."""
        return f"{self._prefix}v{node}"

    def prefix(self, node: int) -> list[str]:
        """The command prefix that runs a command on a node."""
        return ["ip", "netns", "exec", self.names[node]]

    def traffic(self) -> list[Traffic]:
        """The traffic of each node to the others so far, headers included, as counted by the host's end of its link."""
        return [self._counted(node) for node in range(self.nodes)]

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] = {},
        limit: float | None = None,
        launcher: str = "rendezvous",
    ) -> list[int]:
        """Runs a command on all ranks; their output is passed through.

        Args:
            command: program and arguments.
            environment: variables to add to every rank's environment.
            limit: seconds after which all ranks are killed.
            launcher: "rendezvous" (Horovod's, with Gloo) or "mpirun" (Open MPI).

        Returns:
            Exit statuses by rank. When one rank fails, the others are killed after a moment. From mpirun there is one
            status for all.

        Raises:
            RuntimeError: if the launcher is not installed.
            TimeoutError: if the limit was reached.
            ValueError: if there is no such launcher.
        """
        if launcher not in LAUNCHERS:
            raise ValueError(f"Expected the launcher {' or '.join(LAUNCHERS)}, got {launcher!r}.")
        if launcher == "mpirun":
            return self._run_by_mpirun(command, environment, limit)
        hosts = [HostInfo(self.address(node), self.local) for node in range(self.nodes)]
        slots = get_host_assignments(hosts, self.nodes * self.local)
        server = RendezvousServer(verbose=0)
        port = server.start()
        server.init(slots)
        ranks = []
        try:
            for slot in slots:
                node = int(slot.hostname.rpartition(".")[2]) - 1
                whole = {**os.environ, **_QUIET, **slot_environment(slot, self.own_address, port), **environment}
                ranks.append(subprocess.Popen([*self.prefix(node), *command], env=whole, stdin=subprocess.DEVNULL))
            _wait(ranks, limit)
        finally:
            for rank in ranks:
                rank.kill()
            statuses = [rank.wait() for rank in ranks]
            server.stop()
        return statuses

    def _run_by_mpirun(self, command: Sequence[str], environment: Mapping[str, str], limit: float | None) -> list[int]:
        from benchmarks.machines import mpirun  # not at the top: the guard runs this file alone, without the package

        addresses = [self.address(node) for node in range(self.nodes)]
        whole = {**_QUIET, "HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi", **environment}
        status = mpirun.run(self._prefix, addresses, self.local, command, whole, limit)
        return [status] * (self.nodes * self.local)

    def _build(self) -> None:
        _ip(f"link add {self.bridge} type bridge")
        _ip(f"addr add {self.own_address}/24 dev {self.bridge}")
        _ip(f"link set {self.bridge} up")
        for node, name in enumerate(self.names):
            hosts = pathlib.Path("/etc/netns") / name / "hosts"
            hosts.parent.mkdir(parents=True)
            hosts.write_text(f"127.0.0.1 localhost\n{self.address(node)} {socket.gethostname()} {name}\n")
            outer = self.outer(node)
            _ip(f"netns add {name}")
            _ip(f"link add {outer} type veth peer name eth0 netns {name}")
            _ip(f"link set {outer} master {self.bridge} up")
            _ip(f"-n {name} addr add {self.address(node)}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")
            _ip(f"-n {name} link set lo up")
            if self.rate is not None:
                self._shape(outer, [])
                self._shape("eth0", ["-n", name])
            self.congestion = _choose_congestion(name)

    def _shape(self, device: str, where: Sequence[str]) -> None:
        assert self.rate is not None
        burst = max(_LEAST_BURST, int(bits_per_second(self.rate) / 8 * _BURST_SECONDS))
        add = ["tc", *where, "qdisc", "add", "dev", device, "root", "handle", "1:"]
        if self.shaper == "tbf":
            subprocess.run([*add, "tbf", "rate", self.rate, "burst", str(burst), "latency", "100ms"], check=True)
            return
        subprocess.run([*add, "htb", "default", "1"], check=True)
        group = ["tc", *where, "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb"]
        subprocess.run([*group, "rate", self.rate, "burst", str(burst), "cburst", str(burst)], check=True)

    def _counted(self, node: int) -> Traffic:
        statistics = pathlib.Path("/sys/class/net") / self.outer(node) / "statistics"
        return Traffic(int((statistics / "rx_bytes").read_text()), int((statistics / "rx_packets").read_text()))

    def _start_guard(self):
        """Starts the process that cleans up when its input is closed; returns the function that closes it."""
        guard = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--guard", self._prefix],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

        def release() -> None:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()

        return release


def slot_environment(slot, address: str, port: int, interface: str = "eth0") -> dict[str, str]:
    """The variables by which a rank finds the others, as Horovod's launcher sets them.

    Args:
        slot: of the rank, from Horovod's `get_host_assignments`.
        address: of the rendezvous server.
        port: of the rendezvous server.
        interface: the network interface that Gloo uses.
    """
    numbers = {
        "RANK": slot.rank,
        "SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_SIZE": slot.local_size,
        "CROSS_RANK": slot.cross_rank,
        "CROSS_SIZE": slot.cross_size,
    }
    return {
        **{f"HOROVOD_{name}": str(number) for name, number in numbers.items()},
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def _choose_congestion(namespace: str) -> str:
    """Requests cubic in a namespace; returns the congestion control that it has."""
    inside = ["ip", "netns", "exec", namespace]
    subprocess.run([*inside, "sh", "-c", f"echo cubic > {_CONGESTION}"], stderr=subprocess.DEVNULL)
    return subprocess.run([*inside, "cat", _CONGESTION], check=True, capture_output=True, text=True).stdout.strip()


def _wait(ranks: Sequence[subprocess.Popen], limit: float | None) -> None:
    """Waits until all ranks have ended, or some have failed and the others had a moment to report why."""
    began = time.monotonic()
    failed_since = None
    while any(rank.poll() is None for rank in ranks):
        now = time.monotonic()
        if limit is not None and now - began > limit:
            raise TimeoutError(f"The ranks were still running after {limit:g} s and were stopped.")
        if failed_since is None and any(rank.poll() for rank in ranks):
            failed_since = now
        if failed_since is not None and now - failed_since > 5:
            return
        time.sleep(0.05)


def _ip(command: str) -> None:
    subprocess.run(["ip", *shlex.split(command)], check=True)


def _guard(prefix: str) -> None:
    """Waits until its input is closed, then removes everything that a cluster has created."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    names = [name for name in listed if name.startswith(f"{prefix}n")]
    for name in names:
        inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        for process in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
    for device in pathlib.Path("/sys/class/net").glob(f"{prefix}[bv]*"):
        subprocess.run(["ip", "link", "del", device.name], check=False, capture_output=True)


def raw_rate(cluster: Cluster, seconds: float = 1.0) -> float:
    """Bits per second that one TCP connection transfers from node 0 to node 1."""
    receiver = (
        "import socket,sys,time\n"
        "server = socket.create_server(('0.0.0.0', 0)); print(server.getsockname()[1], flush=True)\n"
        "peer, _ = server.accept(); peer.recv(1 << 16); began = time.perf_counter(); count = 0\n"
        "while data := peer.recv(1 << 20): count += len(data)\n"
        "print(8 * count / (time.perf_counter() - began), flush=True)\n"
    )
    sender = (
        "import socket,sys,time\n"
        "peer = socket.create_connection((sys.argv[1], int(sys.argv[2]))); block = bytes(1 << 18)\n"
        "until = time.perf_counter() + float(sys.argv[3])\n"
        "while time.perf_counter() < until: peer.sendall(block)\n"
    )
    listening = subprocess.Popen(
        [*cluster.prefix(1), sys.executable, "-c", receiver], stdout=subprocess.PIPE, text=True
    )
    assert listening.stdout is not None
    port = listening.stdout.readline().strip()
    sending = [*cluster.prefix(0), sys.executable, "-c", sender, cluster.address(1), port, str(seconds)]
    subprocess.run(sending, check=True)
    measured = float(listening.stdout.readline())
    listening.wait()
    return measured


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guard", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes (default: %(default)s)")
    parser.add_argument("--local", type=int, default=2, help="ranks per node (default: %(default)s)")
    parser.add_argument("--rate", help="of each node's link, in tc's notation: 100mbit, 1gbit (default: unshaped)")
    parser.add_argument(
        "--shaper", default="tbf", choices=["tbf", "htb"], help="what shapes the links (default: %(default)s)"
    )
    parser.add_argument(
        "--launcher", default="rendezvous", choices=LAUNCHERS, help="what starts the ranks (default: %(default)s)"
    )
    parser.add_argument("command", nargs="*", help="command for every rank, after --")
    options = parser.parse_args()
    if options.guard is not None:
        _guard(options.guard)
        sys.exit(0)
    if not options.command:
        parser.error("expected the command for every rank after --")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        with Cluster(options.nodes, options.local, options.rate, options.shaper) as cluster:
            statuses = cluster.run(options.command, launcher=options.launcher)
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error))
    failed = {rank: status for rank, status in enumerate(statuses) if status}
    if failed:
        print("Failed: " + ", ".join(f"rank {rank} with status {status}" for rank, status in failed.items()))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

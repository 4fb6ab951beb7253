"""What a service on the same links gains if training has lower priority, and may lose messages (RPS, section 7).

Nodes are network namespaces behind links of 100 Mbit/s (benchmarks/machines/cluster.py), so root is needed; the paper
simulates packets of 16 servers at 1 Gbit/s. Each node runs a rank of the training
(benchmarks/averaging/service_rank.py) and a node of a request-reply service (benchmarks/averaging/service_node.py),
which is all-to-all, over TCP, with Poisson arrivals as in the paper. The paper's sizes and rates are not known. Chosen
here are a request of 256 bytes, a reply of 10 KB, and several loads, in messages per second over all nodes. Training
averages a vector in each step, between waits that stand for its computation: by Horovod's all-reduce over TCP, or by
datagrams.

Each end of each link has two queues (benchmarks/machines/priority.py) of 100 ms, Linux's default at this rate. In the
arms without priority all packets wait in one of them; in those with priority the service's packets go first.
Segmentation offload is off everywhere, so that a packet has at most 1,500 bytes and none waits behind 64 KB. All arms
run in turn, in another order each round, in the same processes. The service starts when training is in full swing, and
its last replies are awaited. Time that a message waits for a busy processor counts as well: two cores carry all nodes,
which is why the service's processes have priority there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.averaging import service_report as reports
from benchmarks.averaging.service_arms import ALONE, TRAINED, Arm, slower
from benchmarks.averaging.service_rank import new_decisions
from benchmarks.exchange import links
from benchmarks.machines import priority
from benchmarks.machines.cluster import Cluster, bits_per_second, unavailable
from benchmarks.machines.conductor import Conductor
from benchmarks.reporting import timing
from benchmarks.reporting.report import Section

PORT = 7117  # of the service
_LEAD = 0.5  # seconds of training before the service begins
_SOON = 0.2  # seconds until a cell begins, so that all have heard of it
_LIMIT = 600.0  # seconds for any command to a worker
_PATIENCE = 20.0  # seconds for the last replies
# By default Horovod's ranks negotiate every millisecond what to exchange, which in all arms would fill several percent
# of these links. Here they do so every 5 ms, which delays an all-reduce by 2.5 ms on average.
_ENVIRONMENT = {"HOROVOD_CYCLE_TIME": "5"}


class Plan(NamedTuple):
    """What to measure.

    Attributes:
        nodes: number of nodes.
        rate: of each link, in tc's notation.
        size: elements of the vector; ResNet-20 has as many.
        compute: seconds that stand for a step's computation.
        window: seconds per arm and round.
        rounds: in each of which all arms run.
        loads: messages per second over all nodes; the targets apply to the middle one.
        shares: maximum rates of the datagrams, as shares of the link's rate.
        queue: capacity of each queue, in seconds of the link's rate.
        batch: samples per rank and step.
    """

    nodes: int = 8
    rate: str = "100mbit"
    size: int = 270_000
    compute: float = 0.06
    window: float = 5.0
    rounds: int = 8
    loads: tuple[int, ...] = (300, 900, 2700)
    shares: tuple[float, ...] = (1.0, 0.9, 0.75)
    queue: float = 0.1
    batch: int = 32

    @property
    def load(self) -> int:
        """The load that the targets apply to."""
        return sorted(self.loads)[len(self.loads) // 2]


class Cell(NamedTuple):
    """An arm and its load in messages per second; 0 without the service."""

    arm: Arm
    load: int


def cells_of(plan: Plan) -> list[Cell]:
    """All arms at all loads, each training alone, and datagrams at lower rates at the targets' load."""
    full, *lower = plan.shares
    trained = [dataclasses.replace(arm, share=full) for arm in TRAINED]
    cells = [Cell(arm, load) for load in plan.loads for arm in (ALONE, *trained)]
    cells += [Cell(arm, 0) for arm in trained if not arm.first]
    return cells + [Cell(slower(share), plan.load) for share in lower]


_OPTIONS = {
    "nodes": "number of nodes",
    "rate": "of each link, in tc's notation",
    "size": "elements of the averaged vector",
    "compute": "seconds of computation per step",
    "window": "seconds per arm and round",
    "rounds": "rounds of all arms",
    "loads": "messages per second, total of all nodes, comma-separated",
    "shares": "maximum shares of the link's rate for datagrams, comma-separated",
    "queue": "maximum seconds that a packet waits in a queue",
}
_LISTS = {"loads": int, "shares": float}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    group = parser.add_argument_group("service")
    for name, told in _OPTIONS.items():
        default = getattr(Plan(), name)
        kind = str if name in _LISTS else type(default)
        shown = ",".join(f"{each:g}" for each in default) if name in _LISTS else default
        group.add_argument(f"--service-{name}", type=kind, default=shown, help=f"{told} (default: %(default)s)")


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan from the options; ValueError if a list contains anything but numbers."""
    asked = {name: getattr(options, f"service_{name}") for name in _OPTIONS}
    return Plan(**asked | {name: tuple(map(kind, asked[name].split(","))) for name, kind in _LISTS.items()})


def problem(options: argparse.Namespace) -> str | None:
    """Why the options are invalid; None if they are valid."""
    try:
        plan = plan_of(options)
        bits_per_second(plan.rate)
    except ValueError as error:
        return str(error)
    if not 2 <= plan.nodes <= 64:
        return f"expected 2 to 64 nodes, got {plan.nodes}"
    if plan.window <= _LEAD or min(plan.rounds, plan.size) < 1 or plan.compute < 0 or plan.queue <= 0:
        return (
            f"expected a window above {_LEAD} s, at least 1 round and element, a queue above 0 and no negative "
            f"compute, got {plan.window}, {plan.rounds}, {plan.size}, {plan.queue} and {plan.compute}"
        )
    if min(plan.loads) < 1 or not all(0 < share <= 1 for share in plan.shares):
        return f"expected loads of at least 1 and shares in (0, 1], got {plan.loads} and {plan.shares}"
    return None


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Runs all arms and reports on them."""
    reason = unavailable()
    if reason is not None:
        return Section(reports.TITLE, [f"Not measured: {reason}"], {}, [])
    plan = plan_of(options)
    return reports.summarise(run(plan, say), plan._asdict(), plan.load)


draw = reports.draw


def run(plan: Plan, say: Callable[[str], None]) -> list[reports.Row]:
    """The result of each cell in each round."""
    rows = []
    with Bench.on_nodes(plan) as bench:
        say(f"{len(bench.cells)} cells of {plan.window:g} s, {plan.rounds} rounds")
        for number in range(plan.rounds):
            for name in timing.shuffled(bench.cells, number):
                cell = bench.cells[name]
                row = bench.measure(cell, number)
                rows.append(row)
                say(f"[{number + 1}/{plan.rounds}] {name}: {reports.told(row)}")
    return rows


class Bench:
    """Nodes on which the service and the training wait for commands.

    Attributes:
        cells: by name.
    """

    def __init__(self, plan: Plan, cluster: Cluster, conductor: Conductor, folder: pathlib.Path):
        """Takes over nodes whose workers are all connected."""
        self._plan, self._cluster, self._conductor, self._folder = plan, cluster, conductor, folder
        self._ranks = [f"rank {node}" for node in range(plan.nodes)]
        self._nodes = [f"node {node}" for node in range(plan.nodes)]
        self._number = 0
        self.cells = {f"{cell.arm.name}, {cell.load}/s": cell for cell in cells_of(plan)}

    @classmethod
    @contextlib.contextmanager
    def on_nodes(cls, plan: Plan) -> Iterator[Bench]:
        """Creates the nodes, and removes them afterwards."""
        with contextlib.ExitStack() as cleanup:
            folder = pathlib.Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
            cluster = cleanup.enter_context(Cluster(plan.nodes, 1, plan.rate))
            links.set_offload(cluster, False)
            priority.install(cluster, plan.queue)
            ranks = threading.Thread(target=cls._train, args=(cluster, folder))
            conductor = cleanup.enter_context(Conductor(cluster.own_address, _LIMIT))
            (folder / "job.json").write_text(json.dumps({"end": conductor.end, "size": plan.size}))
            for process in cls._serve(cluster, conductor):
                cleanup.callback(process.wait)
                cleanup.callback(process.kill)
            ranks.start()
            cleanup.callback(ranks.join)
            cleanup.callback(conductor.close)  # ends the ranks
            said = conductor.await_workers(2 * plan.nodes)
            bench = cls(plan, cluster, conductor, folder)
            ends = [said[name] for name in bench._nodes]
            for node, name in enumerate(bench._nodes):
                conductor.ask([name], {"ends": ends, "me": node})
            yield bench

    @staticmethod
    def _train(cluster: Cluster, folder: pathlib.Path) -> None:
        cluster.run([sys.executable, "-m", "benchmarks.averaging.service_rank", str(folder / "job.json")], _ENVIRONMENT)

    @staticmethod
    def _serve(cluster: Cluster, conductor: Conductor) -> Iterator[subprocess.Popen]:
        end = ":".join(map(str, conductor.end))
        for node in range(cluster.nodes):
            words = [end, f"node {node}", cluster.address(node), str(PORT)]
            command = [*cluster.prefix(node), sys.executable, "-m", "benchmarks.averaging.service_node", *words]
            yield subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def measure(self, cell: Cell, seed: int) -> reports.Row:
        """Runs one cell.

        Args:
            cell: the arm and its load.
            seed: for the messages; the same for all arms of a round.

        Raises:
            RuntimeError: if a message was not answered, or a worker has ended.
        """
        arm, plan = cell.arm, self._plan
        self._number += 1
        priority.put_first(self._cluster, PORT if arm.first else None)
        if arm.transport:
            rate = arm.share * bits_per_second(plan.rate)
            told = {"number": self._number, "transport": arm.transport, "rate": rate, "compute": plan.compute}
            self._conductor.ask(self._ranks, {"what": "prepare", **told})
        before, since = self._counters(), time.monotonic()
        trained, served = self._carry_on(cell, since + _SOON, seed)
        seconds = time.monotonic() - since
        unanswered = sum(each["unanswered"] for each in served)
        if unanswered:
            raise RuntimeError(f"{arm.name}: {unanswered} messages were not answered within {_PATIENCE:g} s")
        used = reports.Used.of(self._counters() - before, plan.nodes * seconds * bits_per_second(plan.rate) / 8)
        return reports.row_of(arm.name, cell.load, trained, served, plan.window - _LEAD, used)

    def _carry_on(self, cell: Cell, begin: float, seed: int) -> tuple[list[dict], list[dict]]:
        """Trains and serves from a moment of the monotonic clock on; returns the reports of ranks and of nodes."""
        ranks, nodes = (self._ranks if cell.arm.transport else []), (self._nodes if cell.load else [])
        path = self._folder / f"decisions-{self._number}"
        new_decisions(path)
        told = {"what": "train", "path": str(path), "begin": begin, "seconds": self._plan.window}
        self._conductor.tell(ranks, told)
        asked = {"rate": cell.load, "seconds": self._plan.window - _LEAD, "seed": seed}
        self._conductor.tell(nodes, {**asked, "begin": begin + _LEAD, "limit": _PATIENCE})
        return self._conductor.hear(ranks), self._conductor.hear(nodes)

    def _counters(self) -> np.ndarray:
        """The counters of all nodes so far, in the form that `reports.Used.of` takes."""
        nodes = range(self._plan.nodes)
        sent = sum(each.bytes for each in self._cluster.traffic())
        first = sum(priority.sent(self._cluster, node)[0] for node in nodes)
        return np.array([sent, first, *np.sum([_segments(self._cluster, node) for node in nodes], axis=0)])


def _segments(cluster: Cluster, node: int) -> list[int]:
    command = [*cluster.prefix(node), "cat", "/proc/net/snmp"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names, values = (line.split() for line in listed if line.startswith("Tcp:"))
    return [int(values[names.index(name)]) for name in ("OutSegs", "RetransSegs")]

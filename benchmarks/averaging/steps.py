"""What a step of averaging by datagrams costs against Horovod's all-reduce over TCP, with and without a neighbour.

Nodes of one rank are network namespaces behind links of 1 Gbit/s (benchmarks/machines/cluster.py), so root is needed.
The two arms are `Datagrams` at the links' rate and Horovod's all-reduce (Gloo) of the same vector. They run in turn in
the same processes, in random order in each round; every result is checked, outside the timed section (rank.py). A step
lasts until the slowest rank has the result. Before it ranks synchronise through a file, which uses no link.

Without other traffic, the vector has 25M elements. Segmentation offload (TSO, GSO and GRO of all interfaces, and
UDP_SEGMENT and UDP_GRO for datagrams) is off, as on links where each packet has its full cost; on; or off only for the
interfaces, as `ethtool -K` leaves it. In that last case the kernel still segments TCP itself, and datagrams by
UDP_SEGMENT. The floor of each is the cost of the same number of datagrams with nothing but system calls. Processor time
is that of all threads of the process, from the beginning of a step until this rank has its result, averaged over ranks.

The neighbour sends UDP from node 1 to node 0 in bursts, faster than the link, so that its queue is full during a burst
(machines/neighbour.py). Here the vector is smaller, so that there are enough steps for a 99th percentile, queues are as
short as a switch's, and offload has its default. Measured with and without the neighbour, on the same links, are both
arms, and the training of a small network on handwritten digits over datagrams, from the same weights with the same
batches for each seed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.averaging import datagram_floor
from benchmarks.averaging import steps_report as reports
from benchmarks.exchange import links
from benchmarks.machines import neighbour
from benchmarks.machines.cluster import Cluster, bits_per_second, unavailable
from benchmarks.reporting.report import Section
from benchmarks.studies.paired import STUDENT

_LIMIT = 900.0  # seconds for one start of the ranks


@dataclasses.dataclass(frozen=True)
class Steps:
    """A part of the measurement in which both arms make steps.

    Attributes:
        name: of the part.
        size: elements of the vector.
        rounds: of both arms.
        kind: of the part.
    """

    name: str
    size: int
    rounds: int
    kind: str = "steps"


@dataclasses.dataclass(frozen=True)
class Training:
    """A part of the measurement that trains a small network on the digits.

    Attributes:
        name: of the part.
        seeds: number of trainings.
        epochs: of each.
        batch: samples per rank and step.
        step: learning rate.
        kind: of the part.
    """

    name: str
    seeds: int
    epochs: int
    batch: int = 16
    step: float = 0.1
    kind: str = "training"


class Plan(NamedTuple):
    """What to measure.

    Attributes:
        elements: size of the vector without other traffic, and `rounds` of both arms, for each offload setting.
        link: the rate of each node's link, in tc's notation.
        nodes: number of nodes, of one rank each.
        crowded_elements: size of the vector beside the neighbour, and `crowded_rounds` of both arms with it; without it
            there are `quiet_rounds`.
        flood: the neighbour's rate, in multiples of the links' rate.
        burst: seconds per burst, and `period` the average seconds from one beginning to the next.
        queue: maximum seconds that a packet waits, in parts with a neighbour.
        trainings: number of seeds, and `epochs` of each.
    """

    elements: int = 25_000_000
    rounds: int = 12
    link: str = "1gbit"
    nodes: int = 4
    crowded_elements: int = 1_000_000
    crowded_rounds: int = 300
    quiet_rounds: int = 60
    flood: float = 2.0
    burst: float = 0.02
    period: float = 0.2
    queue: float = 0.005
    trainings: int = 8
    epochs: int = 20

    @property
    def rate(self) -> float:
        """The rate of a link, in bits per second."""
        return bits_per_second(self.link)


_OPTIONS = {
    "elements": "number of elements averaged without a neighbour on the links",
    "rounds": "of both arms with those elements, for each setting of offload",
    "link": "rate of the links, in tc's notation",
    "crowded_elements": "number of elements averaged with a neighbour on the links",
    "crowded_rounds": "of both arms with those elements and a neighbour",
    "quiet_rounds": "of both arms with those elements without a neighbour",
    "flood": "sending rate of the neighbour, as a multiple of the links' rate",
    "burst": "seconds of each of the neighbour's bursts",
    "period": "mean seconds from the start of one burst to the next",
    "queue": "maximum seconds that a packet waits if there is a neighbour",
    "trainings": "number of seeds of the training with a neighbour",
    "epochs": "epochs of each training",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    group = parser.add_argument_group("steps")
    for name, told in _OPTIONS.items():
        default = getattr(Plan(), name)
        word = f"--steps-{name.replace('_', '-')}"
        group.add_argument(word, type=type(default), default=default, help=f"{told} (default: %(default)s)")


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan from the options."""
    return Plan(**{name: getattr(options, f"steps_{name}") for name in _OPTIONS})


def problem(options: argparse.Namespace) -> str | None:
    """Why the options are invalid; None if they are valid."""
    if "steps" not in options.questions.split(","):
        return None
    plan = plan_of(options)
    try:
        bits_per_second(plan.link)
    except ValueError as error:
        return str(error)
    if min(plan.elements, plan.rounds, plan.crowded_elements, plan.crowded_rounds, plan.quiet_rounds, plan.epochs) < 1:
        return "expected at least one element, round and epoch"
    if not 1 <= plan.trainings <= len(STUDENT):
        return f"expected 1 to {len(STUDENT)} trainings, got {plan.trainings}"
    if not 0 < plan.burst < plan.period / 2:
        return f"expected bursts shorter than half a period, got {plan.burst} s and a period of {plan.period} s"
    if plan.queue <= 0 or plan.flood <= 0:
        return f"expected a queue and a flood above 0, got {plan.queue} s and {plan.flood} times the rate"
    return unavailable()


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Measures everything."""
    plan = plan_of(options)
    alone = {}
    for name, interfaces, datagrams in (("off", False, False), (reports.KERNEL, False, True), ("on", True, True)):
        say(f"{plan.elements:,} elements, offload {name}")
        alone[name] = measure_alone(plan, interfaces, datagrams)
    say(f"{plan.crowded_elements:,} elements and training, without a neighbour and with one")
    return reports.summarise({**plan._asdict(), "rate": plan.rate}, alone, measure_crowded(plan))


def measure_alone(plan: Plan, interfaces: bool, datagrams: bool) -> reports.Told:
    """Steps of both arms without other traffic: every rank's report on each, and the floor.

    Args:
        plan: the whole plan.
        interfaces: whether interfaces segment and join packets.
        datagrams: whether the kernel may segment and join datagrams.
    """
    with Cluster(plan.nodes, 1, plan.link) as cluster, tempfile.TemporaryDirectory() as folder:
        links.set_offload(cluster, interfaces)
        told = run(cluster, [Steps("steps", plan.elements, plan.rounds)], plan.rate, datagrams)
        program = datagram_floor.build(pathlib.Path(folder))
        count = reports.datagrams_of(plan.elements, plan.nodes)
        floor = datagram_floor.measure(program, cluster, plan.rate, count, datagrams)
        return {**told, reports.FLOOR: [{"datagrams": count, "processor": floor}]}


def measure_crowded(plan: Plan) -> dict[str, reports.Told]:
    """Steps of both arms, and trainings, without a neighbour and beside one."""
    training = Training("training", plan.trainings, plan.epochs)
    told = {}
    with Cluster(plan.nodes, 1, plan.link) as cluster:
        links.set_queue(cluster, plan.queue)
        someone = neighbour.beside(cluster, plan.flood * plan.rate, plan.burst, plan.period)
        for name, beside, rounds in (
            (reports.QUIET, contextlib.nullcontext(), plan.quiet_rounds),
            (reports.CROWDED, someone, plan.crowded_rounds),
        ):
            with beside:
                told[name] = run(cluster, [Steps("steps", plan.crowded_elements, rounds), training], plan.rate, True)
    return told


def run(cluster: Cluster, parts: Sequence[Steps | Training], rate: float, offload: bool) -> reports.Told:
    """Starts ranks on a cluster's nodes, which run the parts in order; returns every rank's report on each part.

    Args:
        cluster: within its `with` block.
        parts: with distinct names.
        rate: bits per second at which datagrams are sent.
        offload: whether the system may segment and join them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.zeros([2, cluster.nodes], np.int64).tofile(folder / "meeting")
        job: dict[str, Any] = {"rate": rate, "offload": offload, "meeting": str(folder / "meeting")}
        job["parts"] = [dataclasses.asdict(part) for part in parts]
        (folder / "job.json").write_text(json.dumps(job))
        files = [str(folder / "job.json"), str(folder / "results.json")]
        statuses = cluster.run([sys.executable, "-m", "benchmarks.averaging.rank", *files], limit=_LIMIT)
        if any(statuses):
            raise RuntimeError(f"the ranks of benchmarks.averaging.rank ended with {statuses}")
        return json.loads((folder / "results.json").read_text())

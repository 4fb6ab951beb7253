"""Sharded parameter servers on emulated slow networks: `make bench-servers`.

Four nodes of one rank are network namespaces behind shaped links (benchmarks/machines/cluster.py), so root is needed. A
rank's step is a wait, which stands for the computation and leaves the cores free, then a push of a prepared gradient
and a pull of parameters; Adam runs on the servers. All arms run in turn, in rounds; after each arm all ranks must hold
the same parameters. Arms are dense or at 99% in both directions, on links of each rate and on unshaped ones;
asynchronous and synchronous with one rank at half speed; and TensorFlow's ParameterServerStrategy on the same nodes,
which sends everything in both directions.

Then the ranks train the LSTM of the study of gradient dropping (dropping/bench_dropping.py) at two batch sizes,
computing real gradients. Its finished runs say after how many steps a training reaches a score; with the measured rates
of steps that is a time to a score (Aji and Heafield 2017, Table 2).

Reported are the bytes counted by the nodes' interfaces and those that telemetry claims. Processor time is given as
well: two cores carry four ranks and four servers, which would not share them on real nodes. Each question can be run
alone, by `--questions`; the report keeps the earlier answers to the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.machines import local_ranks
from benchmarks.machines.cluster import Cluster, unavailable
from benchmarks.reporting import questions, timing, writing
from benchmarks.reporting.report import Section
from benchmarks.servers import report as servers_report
from benchmarks.servers import score as servers_score

TITLE = "Sharded servers"
NODES = 4
_LIMIT = 600.0  # seconds for one start of the ranks
# By default Horovod's ranks negotiate every millisecond what to exchange. Here that is nothing, but costs processor
# time and bytes, so they do so every 50 ms.
_ENVIRONMENT = {"HOROVOD_CYCLE_TIME": "50"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """A way in which ranks train.

    Attributes:
        name: of the arm.
        density: density of pushes and pulls; None sends all.
        wait: seconds per step that stand for the computation.
        seconds: training time of asynchronous ranks.
        synchronous: whether servers wait for all ranks.
        steps: steps of each rank, if synchronous.
        slower: factor of the last rank's wait.
    """

    name: str
    density: float | None
    wait: float
    seconds: float
    synchronous: bool = False
    steps: int = 0
    slower: float = 1.0


class Plan(NamedTuple):
    """What to measure.

    Attributes:
        size: number of parameters.
        rates: rates of the links, in tc's notation; None leaves them unshaped.
        wait: seconds of computation per step.
        window: training seconds per arm and round.
        rounds: in each of which all arms run.
        uneven_rate: rate of the links with one slower rank, and `uneven_wait` the wait of the other ranks.
        rival: whether ParameterServerStrategy takes part, and `rival_steps` its steps per round.
        translated: rates of the links on which the LSTM is trained, and `translation_window` seconds per arm and round.
        applied: parameters of the shard for which applying a push is timed, and `applications` how often.
    """

    size: int = 2_000_000
    rates: tuple[str | None, ...] = (None, "1gbit", "100mbit")
    wait: float = 0.15
    window: float = 6.0
    rounds: int = 3
    uneven_rate: str = "1gbit"
    uneven_wait: float = 0.3
    rival: bool = True
    rival_steps: int = 40
    translated: tuple[str, ...] = ("1gbit", "100mbit")
    translation_window: float = 8.0
    applied: int = 6_250_000
    applications: int = 60


def arms_of(plan: Plan) -> list[Arm]:
    """The arms that run on each link."""
    return [
        Arm(servers_report.DENSE, None, plan.wait, plan.window),
        Arm(servers_report.SPARSE, servers_report.DENSITY, plan.wait, plan.window),
    ]


def uneven_arms_of(plan: Plan) -> list[Arm]:
    """The arms with one slower rank."""
    alike = Arm(servers_report.UNEVEN, servers_report.DENSITY, plan.uneven_wait, plan.window, slower=2.0)
    steps = max(1, round(plan.window / (2 * plan.uneven_wait)))
    return [alike, dataclasses.replace(alike, name=servers_report.UNEVEN_TOGETHER, synchronous=True, steps=steps)]


def measure(rate: str | None, arms: Sequence[Arm], plan: Plan) -> list[dict[str, Any]]:
    """Runs arms in turn on one link; returns each rank's results for each arm of each round."""
    names = [arm.name for arm in arms]
    told = {arm.name: dataclasses.asdict(arm) for arm in arms}
    rounds = [[told[name] for name in timing.shuffled(names, number)] for number in range(plan.rounds)]
    return _on_nodes(rate, "benchmarks.servers.rank", {"size": plan.size, "rounds": rounds})


def measure_rival(rate: str | None, plan: Plan) -> list[float]:
    """Runs ParameterServerStrategy on one link; returns the updates per second of each round."""
    job = {"size": plan.size, "wait": plan.wait, "steps": plan.rival_steps, "rounds": plan.rounds}
    return _on_nodes(rate, "benchmarks.servers.strategy", job)


def measure_translation(rate: str, plan: Plan) -> dict[str, Any]:
    """Trains the LSTM on one link; returns what translation.py writes."""
    names = [arm.name for arm in servers_score.ARMS]
    rounds = [timing.shuffled(names, number) for number in range(plan.rounds)]
    job = {"arms": [arm._asdict() for arm in servers_score.ARMS], "rounds": rounds, "window": plan.translation_window}
    return _on_nodes(rate, "benchmarks.servers.translation", job)


def _on_nodes(rate: str | None, module: str, job: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as name, Cluster(NODES, 1, rate) as cluster:
        folder = pathlib.Path(name)
        addresses = [cluster.address(node) for node in range(NODES)]
        (folder / "job.json").write_text(json.dumps({**job, "addresses": addresses}))
        files = [str(folder / "job.json"), str(folder / "results.json")]
        statuses = cluster.run([sys.executable, "-m", module, *files], _ENVIRONMENT, _LIMIT)
        if any(statuses):
            raise RuntimeError(f"the ranks of {module} at {rate} ended with {statuses}")
        return json.loads((folder / "results.json").read_text())


def measure_applying(threads: int, plan: Plan) -> dict[str, list[float]]:
    """Seconds that a server takes to apply a push on `threads` threads, and those of the passes."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "results.json"
        words = ["benchmarks.servers.apply", str(path), "--size", str(plan.applied)]
        local_ranks.run_alone([*words, "--rounds", str(plan.applications)], threads, _LIMIT)
        return json.loads(path.read_text())


def answer_links(plan: Plan, tell: Callable[[str], None]) -> Section:
    """Asynchronous arms on each link, and TensorFlow's."""
    measured: dict[str, Any] = {"plan": plan._asdict(), "links": {}, "rival": {}}
    for rate in plan.rates:
        link = servers_report.named(rate)
        tell(link)
        measured["links"][link] = measure(rate, arms_of(plan), plan)
        if plan.rival:
            measured["rival"][link] = measure_rival(rate, plan)
    return servers_report.of_links(measured, NODES)


def answer_uneven(plan: Plan, tell: Callable[[str], None]) -> Section:
    """Arms with one slower rank."""
    tell(plan.uneven_rate)
    return servers_report.of_uneven(measure(plan.uneven_rate, uneven_arms_of(plan), plan), plan._asdict(), NODES)


def answer_score(plan: Plan, tell: Callable[[str], None]) -> Section:
    """The LSTM on each link."""
    measured = {}
    for rate in plan.translated:
        tell(rate)
        measured[rate] = measure_translation(rate, plan)
    return servers_score.section_of(measured, NODES)


def answer_applying(plan: Plan, tell: Callable[[str], None]) -> Section:
    """A push in a server, without a network."""
    measured = {}
    for threads in (1, 2):
        tell(f"{threads} threads")
        measured[str(threads)] = measure_applying(threads, plan)
    return servers_report.of_applying(measured, plan._asdict())


ANSWERS = {"links": answer_links, "uneven": answer_uneven, "score": answer_score, "applying": answer_applying}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions.add_arguments(parser, [*ANSWERS])
    parser.add_argument("--size", type=int, default=Plan().size, help="number of parameters (default: %(default)s)")
    parser.add_argument(
        "--wait", type=float, default=Plan().wait, help="seconds of computation per step (default: %(default)s)"
    )
    parser.add_argument(
        "--window", type=float, default=Plan().window, help="seconds per arm and round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=Plan().rounds)
    options = parser.parse_args()
    asked = questions.asked(parser, options, [*ANSWERS])
    reason = unavailable()
    if reason is not None and asked != ["applying"]:
        sys.exit(reason)
    plan = Plan(options.size, wait=options.wait, window=options.window, rounds=options.rounds)
    measures = {name: functools.partial(ANSWERS[name], plan) for name in asked}
    questions.ask("servers", TITLE, [*ANSWERS], measures, sys.argv[1:], not options.dry, draw)


def draw(name: str, section: Section) -> None:
    """Draws the picture of the links."""
    if name == "links":
        servers_report.draw(section, str(writing.RESULTS / "servers.png"))


if __name__ == "__main__":
    main()

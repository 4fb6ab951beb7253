"""The cluster in a box: links that are shaped and counted, ranks that are started, and complete removal."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.exchange import report as exchange_report
from benchmarks.machines import cluster
from benchmarks.machines.cluster import Cluster
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

ROOT = pathlib.Path(__file__).parents[2]
SIZE, DENSITY = 10**6, 0.1


def left_behind(prefix):
    """Remaining namespaces, interfaces and folders of a cluster; another cluster's prefix may begin like this one."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    names = [name for name in listed if name.startswith(f"{prefix}n")]
    links = [path.name for path in pathlib.Path("/sys/class/net").glob(f"{prefix}[bv]*")]
    folders = [path.name for path in pathlib.Path("/etc/netns").glob(f"{prefix}n*")]
    return names + links + folders


@pytest.mark.parametrize("text, wanted", [("100mbit", 1e8), ("1gbit", 1e9), ("2.5Gbit", 2.5e9), ("64 kbit", 64e3)])
def test_rates_are_read_as_tc_writes_them(text, wanted):
    assert cluster.bits_per_second(text) == wanted


@pytest.mark.parametrize("text", ["fast", "0gbit", "1gb", "-1gbit", ""])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match="a rate such as 100mbit"):
        Cluster(2, 1, text)


@pytest.mark.parametrize(
    "nodes, local, shaper, told", [(0, 1, "tbf", "nodes"), (2, 0, "tbf", "rank"), (2, 1, "x", "tbf or htb")]
)
def test_what_is_no_cluster_is_refused(nodes, local, shaper, told):
    with pytest.raises(ValueError, match=told):
        Cluster(nodes, local, shaper=shaper)


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match="needs root"), Cluster(2, 1):
        pass


@needs.namespaces
@pytest.mark.parametrize("shaper", ["tbf", "htb"])
def test_links_carry_what_they_are_shaped_to(shaper):
    """At most the rate, and a substantial part of it: a busy machine may be slower, but no link may be faster."""
    with Cluster(2, 1, "100mbit", shaper) as made:
        prefix, seconds = made.bridge[:-1], 3  # long compared with pauses of a process that is not scheduled
        before = made.traffic()[0]
        reached = cluster.raw_rate(made, seconds)
        sent = made.traffic()[0] - before
        assert 10e6 < reached < 110e6
        assert sent.bytes > 0.9 * reached * seconds / 8 and sent.packets > 10
    assert left_behind(prefix) == []


@needs.namespaces
def test_a_rank_that_fails_ends_all():
    with Cluster(2, 1) as made:
        program = "import os, sys, time; sys.exit(3) if os.environ['HOROVOD_RANK'] == '1' else time.sleep(500)"
        started = time.monotonic()
        statuses = made.run([sys.executable, "-c", program], limit=600)
        assert statuses == [-signal.SIGKILL, 3]
        assert time.monotonic() - started < 400
        with pytest.raises(TimeoutError, match="after 1 s"):
            made.run([sys.executable, "-c", "import time; time.sleep(100)"], limit=1)


@needs.namespaces
def test_nothing_is_left_when_it_is_killed(tmp_path):
    marker = tmp_path / "running"
    rank = f"import pathlib, time; pathlib.Path({str(marker)!r}).touch(); time.sleep(100)"
    command = [
        sys.executable,
        "-m",
        "benchmarks.machines.cluster",
        "--nodes",
        "2",
        "--local",
        "1",
        "--",
        sys.executable,
        "-c",
        rank,
    ]
    with subprocess.Popen(command, cwd=ROOT) as started:
        deadline = time.monotonic() + 300
        while not marker.exists():
            assert started.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        prefix = f"hvds{started.pid}"
        assert left_behind(prefix)
        started.kill()
    while left_behind(prefix):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@needs.namespaces
def test_claimed_bytes_are_those_that_the_interfaces_count(tmp_path):
    """Except for packet headers (5%) and Horovod's control traffic; the result of every arm is checked too."""
    arms = [
        "horovod.allreduce",
        "dense",
        "torus2d",
        "topk",
        "hitopk",
        "blocks",
        "NaiveAG, literal",
        "2DTAR, literal",
    ]
    rounds = dict.fromkeys(arms, 2)
    cell = {
        "name": "1M",
        "size": SIZE,
        "density": DENSITY,
        "groups": [arms],
        "rounds": rounds,
        "warm": dict.fromkeys(arms, 1),
        "steps": True,
    }
    job, results = tmp_path / "job.json", tmp_path / "results.json"
    with Cluster(2, 2) as made:
        job.write_text(json.dumps({"local": 2, "address": made.address(0), "port": 29500, "cells": [cell]}))
        statuses = made.run([sys.executable, "-m", "benchmarks.exchange.rank", str(job), str(results)], limit=600)
    assert statuses == [0] * 4
    run = json.loads(results.read_text())
    measured = run["cells"][0]
    assert list(measured["steps"]) == ["reduce-scatter", "selection", "across nodes", "all-gather and scatter"]
    for arm in arms:
        rounds = len(measured["seconds"][arm])
        control = max(run["idle"]) * measured["spans"][arm] / rounds
        counted = max(measured["sent"][arm]) / rounds
        claimed = exchange_report.link_bytes(arm, SIZE, DENSITY, 2, 2)
        assert claimed < counted < 1.05 * claimed + 3 * control + 50_000, arm

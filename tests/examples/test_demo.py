"""The demo, and its report."""

import json
import os
import subprocess
import sys

import pytest

from examples.demo import __main__ as demo
from examples.demo import report
from examples.demo.settings import RECIPES
from tests.parallel.launch import ROOT


def runs(accuracies, seconds):
    """The results of four ranks; the last is the slowest, and the first one's accuracies count."""
    return [
        [
            {
                "recipe": name,
                "curve": [
                    [(number + 1) * seconds[name] + 0.1 * rank, accuracy] for number, accuracy in enumerate(seen)
                ],
                "step_seconds": seconds[name] + 0.1 * rank,
                "across": 1e6 * (rank + 1),
                "weights": "same" if name != "hitopk" or rank < 3 else "other",
            }
            for name, seen in accuracies.items()
        ]
        for rank in range(4)
    ]


def summary():
    accuracies = {name: [0.2, 0.6] for name in RECIPES} | {"recommended": [0.3, 0.4]}
    seconds = {name: 2.0 for name in RECIPES} | {"dense": 10.0}
    return report.summarise(runs(accuracies, seconds), "100mbit")


def test_figures_are_of_the_slowest_rank_and_of_one_node():
    rows = summary()["recipes"]
    assert rows["dense"]["curve"] == [[10.3, 0.2], [20.3, 0.6]]
    assert rows["dense"]["seconds_to_target"] == 20.3 and rows["recommended"]["seconds_to_target"] is None
    assert rows["dense"]["bytes_across"] == 5e6 and rows["dense"]["step_seconds"] == 10.3
    assert [row["replicas_identical"] for row in rows.values()] == [True, True, False, True]


def test_the_table_compares_with_the_first_recipe(tmp_path):
    lines = [line.split() for line in report.table(summary())]
    row = {line[0]: line[1:] for line in lines if line}
    assert row["dense"][:2] == ["20.3", "1.0x"] and row["hitopk"][:2] == ["4.3", "4.7x"]
    assert row["recommended"][:2] == ["-", "-"] and row["hitopk"][-1] == "DIFFERENT"
    report.draw(summary(), tmp_path / "demo.png")
    assert [path.name for path in tmp_path.iterdir()] == ["demo.png"]


def test_without_a_network_the_table_says_why_nothing_is_gained():
    lines = list(report.table(summary() | {"network": None}))
    assert any("loopback" in line and "gain nothing" in line for line in lines)
    assert not any("loopback" in line for line in report.table(summary()))


IN_SANDBOX = """
import sys
from benchmarks import cluster, sandbox
if not sandbox.is_within():
    sandbox.enter([sys.executable, "-c", sys.argv[1], sys.argv[1]])
with cluster.Cluster(2, 1, "1gbit") as nodes:
    statuses, rate = nodes.run(["hostname", "-i"]), cluster.raw_rate(nodes, 0.2)
    print(statuses, 1e6 < rate < 1.1e9, nodes.traffic()[0].bytes > 1e4)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become an ordinary user")
def test_an_ordinary_user_has_a_cluster_in_a_namespace_of_their_own():
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", 'exec "$0" "$@"']
    probe = [sys.executable, "-c", "from benchmarks import sandbox; print(sandbox.unavailable() or '')"]
    reason = subprocess.run([*as_nobody, *probe], cwd=ROOT, capture_output=True, text=True)
    if reason.returncode or reason.stdout.strip():
        pytest.skip(reason.stdout.strip() or f"an ordinary user may not run {sys.executable}")
    before = subprocess.run(["ip", "link"], capture_output=True, text=True).stdout
    command = [*as_nobody, sys.executable, "-c", IN_SANDBOX, IN_SANDBOX]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout.endswith("[0, 0] True True\n"), ended.stdout + ended.stderr
    assert subprocess.run(["ip", "link"], capture_output=True, text=True).stdout.count("hvds") == before.count("hvds")


def test_the_network_is_asked_for_and_said(monkeypatch):
    monkeypatch.setenv("DEMO_NETWORK", "none")
    rate, told = demo.network()
    assert rate is None and "loopback" in told and "gain nothing" in told
    monkeypatch.setenv("DEMO_NETWORK", "1gbit")
    monkeypatch.setattr(demo.cluster, "unavailable", lambda: "It needs root.")
    monkeypatch.setattr(demo.sandbox, "unavailable", lambda: "the kernel forbids it")
    rate, without = demo.network()
    assert rate is None and "It needs root. A namespace of your own instead: the kernel forbids it." in without
    assert without.endswith(told.partition(": ")[2].replace("the ranks", "The ranks"))
    monkeypatch.setattr(demo.cluster, "unavailable", lambda: None)
    rate, told = demo.network()
    assert rate == "1gbit" and "links of 1gbit; they are removed at the end" in told
    monkeypatch.setenv("DEMO_NETWORK", "fast")
    with pytest.raises(SystemExit, match="DEMO_NETWORK=fast"):
        demo.network()


@pytest.mark.thorough
@pytest.mark.parametrize("network", ["1gbit"])
def test_it_runs(network, tmp_path):
    """With shaped links, if they can be made here."""
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "DEMO_NETWORK": network, "PYTHONPATH": path}
    command = [sys.executable, "-m", "examples.demo", "--epochs", "1"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    written = json.loads((tmp_path / "results" / "demo.json").read_text())
    assert list(written["recipes"]) == list(RECIPES)
    assert all(row["replicas_identical"] for row in written["recipes"].values())
    assert written["recipes"]["hitopk"]["bytes_across"] < 0.1 * written["recipes"]["dense"]["bytes_across"]
    expected = None if network == "none" or demo.cluster.unavailable() else network
    assert written["network"] == expected and (tmp_path / "results" / "demo.png").exists()

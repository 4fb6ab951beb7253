"""Links that are down for a while, in a cluster in a box: training waits, and goes on."""

import subprocess
import sys
import threading
import time

import pytest

from benchmarks.machines.cluster import Cluster, unavailable
from tests.parallel.launch import QUIET

LIMIT = 400.0
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(unavailable() is not None, reason="needs root, and the commands ip and tc"),
]


def trained_over_an_outage(folder, recipe, seconds):
    """The exit statuses of two nodes, the link of one of which is down for some seconds while they train."""
    command = [sys.executable, "-m", "tests.faults.mortal_rank", str(folder), "--recipe", recipe, "--steps", "1500"]
    ended = []
    with Cluster(nodes=2, local=1) as cluster:
        job = threading.Thread(target=lambda: ended.extend(cluster.run(command, QUIET, LIMIT)))
        job.start()
        while job.is_alive() and not all((folder / f"began.rank{rank}").exists() for rank in range(2)):
            time.sleep(0.05)
        link = ["ip", "link", "set", cluster.outer(1)]
        subprocess.run([*link, "down"], check=True)
        job.join(seconds)
        assert job.is_alive(), f"the job has ended with {ended} while the link was down"
        subprocess.run([*link, "up"], check=True)
        job.join()
    return ended


def test_servers_without_replicas_survive_what_recipes_survive(tmp_path):
    assert trained_over_an_outage(tmp_path, "lone_servers", seconds=20) == [0, 0]


def test_control_a_recipe_survives_it(tmp_path):
    assert trained_over_an_outage(tmp_path, "hitopk", seconds=20) == [0, 0]

"""Horovod ends while collectives begin, as when a rank dies: each of them must be answered."""

import os
import subprocess
import sys
import time

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousServer

from benchmarks.machines.cluster import slot_environment
from tests.faults.late_rank import ROUNDS, THREADS
from tests.parallel.launch import QUIET, ROOT, START


def test_what_begins_while_horovod_ends_is_answered(tmp_path):
    slots = get_host_assignments([HostInfo("localhost", 2)], 2)
    server = RendezvousServer(verbose=0)
    port = server.start()
    command = [sys.executable, "-m", "tests.faults.late_rank", str(tmp_path)]
    places = [slot_environment(slot, "127.0.0.1", port, "lo") for slot in slots]
    ranks = [subprocess.Popen(command, cwd=ROOT, env={**os.environ, **QUIET, **place}) for place in places]
    try:
        for number in range(ROUNDS):
            server.init(slots)
            (tmp_path / f"begin.{number}").touch()
            assert answered(tmp_path / f"answered.{number}", ranks) == THREADS
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        server.stop()


def answered(path, ranks):
    """What rank 1 writes to a file, when it has."""
    deadline = time.monotonic() + START
    while not path.exists():
        assert time.monotonic() < deadline and not any(rank.poll() for rank in ranks), [rank.poll() for rank in ranks]
        time.sleep(0.01)
    return int(path.read_text())

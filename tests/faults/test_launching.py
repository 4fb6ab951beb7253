"""Starting ranks by examples/launch/horovodrun.sh: hosts whose interfaces have other names, and a rank that fails."""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks.machines import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOINED = """
import horovod.tensorflow as horovod, tensorflow as tf
horovod.init()
print("of both", int(horovod.allreduce(tf.constant(horovod.rank() + 1), op=horovod.Sum)))
"""
# Called as horovodrun calls ssh, with the address of node 0 or 1 and a command for the shell.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
namespace={prefix}$((${{1##*.}} - 1))
shift
while [ "$1" = -o ]; do shift 2; done
exec ip netns exec "$namespace" sh -c "$*"
"""


def start(*arguments, path="", limit=300):
    """Runs the launch file, with a folder in front of PATH."""
    return subprocess.run(
        [str(ROOT / "examples" / "launch" / "horovodrun.sh"), *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
    )


def python(program):
    return ["--", sys.executable, "-c", program]


@contextlib.contextmanager
def hosts(folder):
    """Two hosts, each with eth0, which this machine reaches by a bridge; yields the hosts for the option -H."""
    with cluster.Cluster(2, 1) as nodes:
        ssh = folder / "ssh"
        ssh.write_text(SSH.format(prefix=nodes.names[0][:-1]))
        ssh.chmod(0o755)
        yield ",".join(f"{nodes.address(node)}:1" for node in range(2))


@pytest.mark.skipif(cluster.unavailable() is not None, reason=str(cluster.unavailable()))
def test_hosts_may_have_other_interfaces_than_this_machine(tmp_path):
    with hosts(tmp_path) as both:
        ended = start("-H", both, *python(JOINED), path=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("of both 3") == 2


def test_the_last_words_are_not_a_traceback_of_the_launcher():
    ended = start("-np", "2", *python("import sys; sys.exit('the reason')"))
    assert ended.returncode == 1 and "the reason" in ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


def test_control_ranks_are_started():
    ended = start("-np", "2", *python("import os; print('this is', os.environ['HOROVOD_RANK'])"))
    assert ended.returncode == 0 and "this is 0" in ended.stdout and "this is 1" in ended.stdout

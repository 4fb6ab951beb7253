"""Processes that are forked, interrupted, or contacted by strangers: none hangs, and none runs out of resources."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import zmq

from tests.datacache.node import BATCH, COUNT, ROOT, Node, free_addresses

LIMIT = 90  # seconds until a process counts as hanging

COMMON = """
import os, signal, sys, threading, time
import numpy as np
import datacache

def decode(payload):
    return np.frombuffer(payload, np.int64)

def opened(read, **options):
    source = datacache.Indexed(read, 400, "numbers", labels=range(400))
    return datacache.DataCache(source, decode, sys.argv[1], memory_bytes=0, world=datacache.World(), **options)
"""

FORKED = (
    COMMON
    + """
cache = opened(lambda index: np.int64(index).tobytes(), workers=4)
begun = cache.batches(4, 0)
next(begun)
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends what hangs
    for batches in (lambda: begun, lambda: cache.batches(4, 1)):
        try:
            assert all((samples[:, 0] == labels).all() for samples, labels in batches())
        except RuntimeError as error:
            assert "forked" in str(error), error
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert sum(len(labels) for _, labels in begun) == 400 - 4
cache.close()
"""
)

ENDING = (
    COMMON
    + """
cache = opened(lambda index: np.int64(index).tobytes(), workers=4)
batches = cache.batches(4, 0)
read = len(next(batches)[1])
for _ in range(8):
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    read += len(next(batches)[1])
print(read + sum(len(labels) for _, labels in batches))
"""
)

INTERRUPTED = (
    COMMON
    + """
never, _ = os.pipe()

def read(index):
    if index > 0:
        print("reading", flush=True)
        {wait}
    return np.int64(index).tobytes()

{begin}
"""
)
WAITS = {"slow": "time.sleep(1)", "hung": "os.read(never, 1)"}
# A signal that another thread takes does not end the main thread's wait, as one that comes just before it begins.
WAITS["unnoticed"] = "time.sleep(0.5); signal.pthread_kill(threading.get_ident(), signal.SIGINT); " + WAITS["hung"]
BEGINNINGS = {
    "closed": "with opened(read, workers=1) as cache:\n    next(cache.batches(64, 0))",
    "left open": "cache = opened(read, workers=1)\nnext(cache.batches(64, 0))",
}


def test_a_forked_child_that_only_ends_leaves_the_readers_of_its_parent(tmp_path):
    """Its interpreter then frees all objects, including LMDB's readers, which parent and child share."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
    )
    assert (ended.returncode, ended.stdout) == (0, "400\n"), ended.stderr


def test_a_forked_child_neither_hangs_nor_disturbs(tmp_path):
    """What it cannot do raises an error; it ends, and its parent continues."""
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
    )
    assert (ended.returncode, ended.stdout) == (0, "7\n"), ended.stderr


@pytest.mark.parametrize(
    "source, beginning", [("slow", "left open"), ("hung", "closed"), ("hung", "left open"), ("unnoticed", "left open")]
)
def test_an_interrupted_process_ends_though_the_source_is_slow(source, beginning, tmp_path):
    """It has requested 320 samples, each of which takes a second or never arrives."""
    script = INTERRUPTED.replace("{wait}", WAITS[source]).replace("{begin}", BEGINNINGS[beginning])
    heeding = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs ignore it
    process = subprocess.Popen(
        [sys.executable, "-c", heeding + script, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        for _ in range(2 if source == "slow" else 1):  # after the second line, all samples have been requested
            assert process.stdout.readline() == b"reading\n"
        if source != "unnoticed":
            process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGINT and b"KeyboardInterrupt" in told


def descriptors(process):
    """The number of files that a process has open."""
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def until(condition):
    """Waits for a condition; returns whether it became true."""
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def read_together(nodes, epoch):
    """Makes all nodes read an epoch at the same time."""
    steps = COUNT // (BATCH * len(nodes))
    for node in nodes:
        node.tell(f"read {epoch} {steps}")
    assert [node.hear() for node in nodes] == [steps] * len(nodes)
    for node in nodes:
        node.assert_read(epoch)


def test_connections_without_the_secret_use_nobody_up(tmp_path):
    """Connections that stay silent, or stop after ZeroMQ's greeting; a peer that knows the secret is still served."""
    peers = free_addresses(2)
    nodes = [Node(tmp_path, peers, rank) for rank in range(2)]
    context = zmq.Context()
    host, port = peers[0].split(":")
    try:
        assert [node.hear() for node in nodes] == ["ready"] * 2
        read_together(nodes, 0)
        before, served = descriptors(nodes[0].process), nodes[1].ask("numbers")["samples.peers"]
        silent = [socket.create_connection((host, int(port))) for _ in range(200)]
        idle = [context.socket(zmq.DEALER) for _ in range(200)]
        for each in idle:
            each.setsockopt(zmq.RECONNECT_IVL, -1)
            each.connect(f"tcp://{peers[0]}")
        assert until(lambda: descriptors(nodes[0].process) > before + 50)
        read_together(nodes, 1)
        assert nodes[1].ask("numbers")["samples.peers"] > served
        assert until(lambda: descriptors(nodes[0].process) < before + 20)
        read_together(nodes, 2)
        assert "failures.peers" not in nodes[1].ask("numbers")
        for each in silent:
            each.close()
    finally:
        context.destroy(linger=0)
        for node in nodes:
            node.end()

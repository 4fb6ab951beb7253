"""datacache: a process that waits for a stopped one logs that process and the sample or lock that it holds."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

LIMIT = 60  # seconds to wait for a message
# The first process stops itself once, while it holds the sample or while it lists the source.
READ = """
import os, signal, sys
import numpy as np
import datacache

once = iter([True])  # several threads read

def stop(of):
    if sys.argv[2] == of and next(once, False):
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

class Source(datacache.Indexed):
    def scan(self, progress=None):
        stop("listing")
        return super().scan(progress)

def read(index):
    stop("sample")
    return bytes([index])

read.datacache_fingerprint = "1"  # it holds an iterator, which cannot be compared with a later one

def decode(payload):
    return np.frombuffer(payload, np.uint8)

source = Source(read, 3, "bytes", labels=range(3))
with datacache.DataCache(source, decode, sys.argv[1], memory_bytes=0, world=datacache.World()) as cache:
    print(sum(len(labels) for _, labels in cache.batches(1, 0)), flush=True)
"""


@contextlib.contextmanager
def started(folder, stops):
    command = [sys.executable, "-c", READ, str(folder), stops]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stops, what", [("sample", r"sample \d"), ("listing", "local/Indexed-")])
def test_who_is_held_up_by_a_stopped_process_says_so(stops, what, tmp_path):
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(started(tmp_path / "local", stops))
        assert first.stdout.readline() == "stopping\n"
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
        second = stack.enter_context(started(tmp_path / "local", "nowhere"))
        limit = threading.Timer(LIMIT, second.kill)
        limit.start()
        said = second.stderr.readline()
        limit.cancel()
        assert re.search(f"waiting for .*{what}.* s now.* held by process {first.pid} .*which is stopped", said), said
        first.send_signal(signal.SIGCONT)
        assert second.communicate(timeout=LIMIT)[0] == "3\n"

"""Processes that are killed, and what they leave."""

import os
import signal
from collections.abc import Callable
from typing import Any


def orphan(work: Callable[[], Any]) -> None:
    """Runs work in a process of its own that keeps what it returns, and is killed then."""
    begun, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept = work()
            os.write(tell, b"x")
            signal.pause()
            del kept  # which was to be held until here
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(begun, 1) == b"x"
    finally:
        os.close(begun)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

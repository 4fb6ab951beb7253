"""Processes that are killed, and what they leave behind."""

import os
import signal
from collections.abc import Callable
from typing import Any


def orphan(work: Callable[[], Any]) -> None:
    """Runs work in a subprocess that holds the result until it is killed."""
    begun, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept = work()
            os.write(tell, b"x")
            signal.pause()
            del kept  # it had to be held until here
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(begun, 1) == b"x"
    finally:
        os.close(begun)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

"""Imported before all else: `python -m hvd_sparse.planner` is a command of ours, and prints its own lines alone.

Python imports this package before it runs the module, so that the module itself would be too late.
"""

import sys

from quiet_tensorflow import quiet

COMMANDS = ("hvd_sparse.planner",)


def is_running() -> bool:
    """Whether Python was started as `python -m` one of COMMANDS, and is about to run it."""
    started = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in started and started[started.index("-m") + 1] in COMMANDS


if is_running():
    quiet()

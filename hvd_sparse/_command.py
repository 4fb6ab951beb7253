"""Imported before all else: `python -m hvd_sparse.planner` is a command of ours, and prints its own lines alone.

Python imports this package before it runs the module, so that the module itself would be too late.
"""

import sys

from quiet_tensorflow import quiet

DOCTOR = "hvd_sparse.doctor"
COMMANDS = (DOCTOR, "hvd_sparse.planner")


def running() -> str | None:
    """Which of COMMANDS Python is about to run, if it was started as `python -m` one of them."""
    started = sys.orig_argv
    if sys.argv[:1] != ["-m"] or "-m" not in started:
        return None
    module = started[started.index("-m") + 1]
    return module if module in COMMANDS else None


if running():
    quiet()

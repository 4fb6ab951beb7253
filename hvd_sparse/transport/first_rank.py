"""Messages that rank 0 prints for all ranks."""

from __future__ import annotations

import inspect
import os
import sysconfig
import warnings

from hvd_sparse.transport import topology

_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
_NOT_THE_USERS = (_OWN, *sysconfig.get_paths().values(), "<")


def is_here() -> bool:
    """Whether `init` was called and this is rank 0."""
    return topology.is_initialized() and topology.rank() == 0


def warn(text: str) -> None:
    """Warns, on rank 0 only."""
    if is_here():
        warnings.warn(text, stacklevel=users_level())


def users_level() -> int:
    """The `stacklevel` with which the caller's `warnings.warn` points at the innermost line of the user's code."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    return level if frame is not None else 2

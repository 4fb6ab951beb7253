"""Whether Horovod's background loop, which carries all its collectives, still runs."""

from __future__ import annotations

import ctypes
from typing import Any


def ended_function() -> Any:
    """The C function `int32_t (void)` that tells whether the loop has ended; None if Horovod was built without it.

    Horovod has it if it was built by tools/horovod/build_wheel.sh, which adds it (patches/1_rank_gone.patch).
    """
    return getattr(ctypes.CDLL(None), "horovod_has_ended", None)  # Horovod's symbols are global once it is imported


def has_ended() -> bool:
    """Whether the loop is known to have ended: no collective of Horovod will work until it is started again."""
    function = ended_function()
    return function is not None and function() != 0


def address() -> ctypes.c_void_p:
    """The address of `ended_function` for native code; NULL if there is none."""
    function = ended_function()
    return ctypes.c_void_p(None) if function is None else ctypes.cast(function, ctypes.c_void_p)

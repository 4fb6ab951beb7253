"""The processes of ranks, as other processes of their host see them: by /proc."""

from __future__ import annotations

import os
from typing import NamedTuple

RUNS, STOPPED, GONE = "runs", "stopped", "gone"


class Process(NamedTuple):
    """A process of some host; JSON-serializable.

    Attributes:
        number: its process id.
        began: when it was started, in clock ticks since its host was; tells it apart from later ones of that number.
        space: the host and the process namespace in which the number is valid.
    """

    number: int
    began: str
    space: str

    @classmethod
    def own(cls) -> Process:
        """This process."""
        return cls(os.getpid(), _stat(os.getpid())[1], _space())

    def state(self) -> str | None:
        """RUNS, STOPPED (by a signal, or held by a debugger) or GONE; None if it cannot be seen from here."""
        if self.space != _space():
            return None
        try:
            letter, began = _stat(self.number)
        except (FileNotFoundError, ProcessLookupError):
            return GONE
        except OSError:  # may not be read
            return None
        if began != self.began or letter in "ZX":
            return GONE
        return STOPPED if letter in "Tt" else RUNS


def _stat(number: int) -> tuple[str, str]:
    """The state letter and the start of a process."""
    with open(f"/proc/{number}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()  # the name before may contain anything
    return fields[0], fields[19]


def _space() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"

"""The progress of a long task, in one line on the terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 30
_INTERVAL = 0.1  # seconds between two updates


class Bar:
    """A bar for a terminal; elsewhere, such as in a log, only the last line is written."""

    def __init__(self, label: str, stream: TextIO | None = None):
        """Takes the name of the task."""
        self._label, self._stream = label, stream or sys.stderr
        self._started, self._drawn = time.monotonic(), 0.0
        self._line = ""

    def __call__(self, done: int, total: int | None) -> None:
        """Shows how much is done, and out of how much if that is known."""
        now = time.monotonic()
        self._line = self._describe(done, total, now - self._started)
        if self._stream.isatty() and (now - self._drawn >= _INTERVAL or done == total):
            self._stream.write(f"\r{self._line}\x1b[K")
            self._stream.flush()
            self._drawn = now

    def close(self) -> None:
        """Ends the line."""
        if self._line:
            self._stream.write(f"\r{self._line}\x1b[K\n" if self._stream.isatty() else f"{self._line}\n")

    def _describe(self, done: int, total: int | None, seconds: float) -> str:
        rate = f"{done / seconds:,.0f}/s" if seconds > 0 else ""
        if not total:
            return f"{self._label} {done:,} {rate}"
        filled = _WIDTH * done // total
        left = f", {seconds * (total - done) / done:.0f} s left" if 0 < done < total else ""
        return f"{self._label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {total:,} {rate}{left}"

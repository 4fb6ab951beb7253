"""The logger "hvd_sparse": without a handler of the script's, it prints news to stdout and warnings to stderr."""

from __future__ import annotations

import logging
import sys


class Printer(logging.Handler):
    """Prints on the streams that `sys` has at that time, as tests and notebooks replace them."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        try:
            print(self.format(record), file=stream, flush=True)
        except Exception:  # as the handlers of the standard library
            self.handleError(record)


def prepare() -> None:
    """Gives the logger the handler and the level that it has by default."""
    log = logging.getLogger("hvd_sparse")
    if not log.handlers:
        printer = Printer()
        printer.setFormatter(logging.Formatter("hvd_sparse: %(message)s"))
        log.addHandler(printer)
        log.propagate = False  # otherwise the root logger's handlers would print it again
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)

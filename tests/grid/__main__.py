"""Runs cells by name, or prints the table of what is refused, in Markdown: `python -m tests.grid [CELL ...]`."""

import os
import sys

from tests.parallel.launch import QUIET

os.environ.update(QUIET)

import hvd_sparse as hvd  # noqa: E402 - TensorFlow reads the environment when it is first imported
from tests.grid import check, refusals  # noqa: E402
from tests.grid.cell import Cell  # noqa: E402


def main() -> int:
    """The number of cells that are wrong."""
    if not sys.argv[1:]:
        print(refusals.table())
    hvd.init()
    told = {name: check.wrong(Cell.named(name)) for name in sys.argv[1:]}
    for name, text in told.items():
        print(f"{name}: {text or 'right'}")
    return sum(map(bool, told.values()))


if __name__ == "__main__":
    sys.exit(main())

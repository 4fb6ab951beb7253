"""Runs Python blocks on real ranks: `horovodrun -np 2 python -m tests.docs.ranks --folder FOLDER "docs/start.md 2" ...`

The blocks of a page run one after another with the same names. Before the first, these are the names of the page's
module in `tests/docs/pages`, which has what the page presupposes, such as a model and data; its function `before_3`, if
there is one, returns names that the third block finds changed. Each block is a file in the folder, in which tracebacks
find the lines of the page. Paths that a cluster has are put into the folder, which is the current one, and trainings
are short.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import re
import traceback
from collections.abc import Sequence
from typing import Any

from tests.docs import blocks
from tests.parallel.launch import horovodrun

CHANGES = {r'"(/scratch|/shared)/': r'"{folder}\1/', r"\bepochs=\d+": "epochs=2"}
LIMIT = 600.0  # seconds of a launch, including imports on a busy machine


def names_given(page: str) -> dict[str, Any]:
    """The names that the page presupposes."""
    return dict(vars(importlib.import_module(f"tests.docs.pages.{pathlib.Path(page).stem.lower()}")))


def write(block: blocks.Block, folder: pathlib.Path) -> None:
    """Writes a block into a file, in the line where the page has it."""
    text = block.text
    for pattern, instead in CHANGES.items():
        text = re.sub(pattern, instead.format(folder=folder), text)
    path = _file(block, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n" * (block.line - 1) + text)


def run(block: blocks.Block, names: dict[str, Any], folder: pathlib.Path) -> None:
    """Runs a block that was written."""
    names.update(names.get(f"before_{block.number}", dict)())
    path = _file(block, folder)
    exec(compile(path.read_text(), path, "exec"), names)


def _file(block: blocks.Block, folder: pathlib.Path) -> pathlib.Path:
    return folder / "blocks" / f"{block.name}.py"


def launch(wanted: Sequence[blocks.Block], ranks: int, folder: pathlib.Path, **environment: str) -> dict[str, str]:
    """Runs blocks on `ranks` ranks and returns for each what went wrong on any of them; "" if nothing did."""
    for block in wanted:
        write(block, folder)
    command = ["-m", "tests.docs.ranks", "--folder", str(folder), *(block.name for block in wanted)]
    ended = horovodrun(ranks, command, LIMIT, environment=environment)
    faults = {}
    for block in wanted:
        told = [_outcome(folder / f"rank{rank}.jsonl", block.name) for rank in range(ranks)]
        lines = [f"rank {rank}: {fault}" for rank, fault in enumerate(told) if fault]
        end = f"--- the launch ended with {ended.status}; it printed\n{ended.output[-3000:]}"
        faults[block.name] = "\n".join([*lines, end]) if lines else ""
    return faults


def _outcome(path: pathlib.Path, name: str) -> str:
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(json.loads(line) for line in lines).get(name, "did not end it")


def main() -> None:
    """Runs on a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    options = parser.parse_args()
    os.chdir(options.folder)
    with open(f"rank{os.environ['HOROVOD_RANK']}.jsonl", "a", buffering=1) as outcomes:
        names, page = {}, ""
        for block in (block for block in blocks.collect() if block.name in options.names):
            fault = ""
            try:
                names, page = (names if block.page == page else names_given(block.page)), block.page
                run(block, names, options.folder)
            except Exception:
                fault = traceback.format_exc()
            outcomes.write(json.dumps([block.name, fault]) + "\n")


if __name__ == "__main__":
    main()

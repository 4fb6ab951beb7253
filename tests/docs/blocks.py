"""The code blocks of the documents."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
FENCED = re.compile(r"^( *)(```+|~~~+)(.*)\n((?:.*\n)*?)\1\2 *$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: the path of its document.
        number: how many blocks the page has up to it.
        line: of its first line.
        language: as written after the fence; without one it is "sh".
        text: its lines.
    """

    page: str
    number: int
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Such as "docs/start.md 2", for the second block of that page."""
        return f"{self.page} {self.number}"


def pages() -> list[pathlib.Path]:
    """All documents."""
    folders = ("docs", "examples", "benchmarks/results")
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))])


def of_page(path: pathlib.Path) -> Iterator[Block]:
    """The blocks of one document, in order."""
    text = path.read_text()
    for number, found in enumerate(FENCED.finditer(text), 1):
        line = text.count("\n", 0, found.start(4)) + 1
        name = path.relative_to(ROOT).as_posix()
        yield Block(name, number, line, found[3].strip() or "sh", textwrap.dedent(found[4]))


def collect() -> list[Block]:
    """The blocks of all documents."""
    return [block for path in pages() for block in of_page(path)]

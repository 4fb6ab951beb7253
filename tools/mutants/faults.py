"""A fault: a piece of text in one file, and its replacement."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib


@dataclasses.dataclass(frozen=True)
class Fault:
    """One small change of one file.

    Attributes:
        name: short and unique in a run.
        room: a key of `rooms.ROOMS`.
        path: path of the file, from the root of the repository.
        line: line where it begins, from 1; 0 if `was` occurs once in the file and so locates it.
        was: the text in the file; whole lines if `line` is given.
        becomes: the replacement.
        breaks: a description of what it breaks; empty for a drawn fault.
    """

    name: str
    room: str
    path: str
    line: int
    was: str
    becomes: str
    breaks: str = ""

    @property
    def key(self) -> str:
        """A key that is the same for the same change of the same text."""
        return hashlib.sha256("\0".join([self.path, str(self.line), self.was, self.becomes]).encode()).hexdigest()[:16]

    @property
    def is_native(self) -> bool:
        """Whether libraries have to be built for it."""
        return self.path.startswith("ops/")

    def start(self, text: str) -> int:
        """The position of the fault in the file's text.

        Raises:
            ValueError: if the text to be replaced does not occur in the file, or occurs twice.
        """
        if self.line:
            start = sum(map(len, text.splitlines(keepends=True)[: self.line - 1]))
            found = text.startswith(self.was, start)
        else:
            start, found = text.find(self.was), text.count(self.was) == 1
        if not found:
            raise ValueError(
                f"{self.path} does not contain exactly once, at line {self.line}, the text that {self.name} replaces."
            )
        return start

    def planted(self, text: str) -> str:
        """The file's text with the fault in it."""
        start = self.start(text)
        return text[:start] + self.becomes + text[start + len(self.was) :]

    def place(self, text: str) -> str:
        """File and line."""
        return f"{self.path}:{self.line or text.count(chr(10), 0, self.start(text)) + 1}"

    def difference(self, text: str) -> str:
        """The lines that are removed and added."""
        lines = difflib.unified_diff(text.splitlines(), self.planted(text).splitlines(), lineterm="", n=0)
        return "\n".join([line for line in lines if not line.startswith(("---", "+++", "@@"))])

    def told(self, text: str) -> dict[str, str]:
        """The fault's entries in a report, from the file's text."""
        told = {"name": self.name, "room": self.room, "breaks": self.breaks, "place": self.place(text)}
        return {**told, "difference": self.difference(text)}


def between(name: str, room: str, path: str, text: str, other: str) -> Fault:
    """The fault that turns one text of a file into the other: the lines that differ."""
    before, after = text.splitlines(keepends=True), other.splitlines(keepends=True)
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        first += 1
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    was, becomes = before[first : len(before) - last], after[first : len(after) - last]
    return Fault(name, room, path, first + 1, "".join(was), "".join(becomes))

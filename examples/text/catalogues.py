"""English-German pairs from the message catalogues (GNU gettext's *.mo files) that are installed on a machine.

Such catalogues hold the messages of programs and their translations, tens of thousands on a Debian machine with its
usual packages. Messages were written by people and are short, technical, and full of placeholders.
"""

from __future__ import annotations

import pathlib
import re
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SYSTEM = ("/usr/share/locale", "/usr/local/share/locale", "/usr/share/locale-langpack")
_WITHIN = "LC_MESSAGES/*.mo"
_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}  # byte order by the file's first four bytes
_CONTEXT = "\x04"


class Pair(NamedTuple):
    """A text and its translation."""

    source: str
    target: str


class Found(NamedTuple):
    """The contents of catalogues.

    Attributes:
        pairs: messages and translations, unchanged, in the order of the files.
        catalogues: number of catalogues that were read.
        unread: one line with the reason for each catalogue that could not be read.
    """

    pairs: list[Pair]
    catalogues: int
    unread: list[str]

    def and_then(self, other: Found) -> Found:
        """The contents of both."""
        return Found(self.pairs + other.pairs, self.catalogues + other.catalogues, self.unread + other.unread)

    def __str__(self) -> str:
        """A summary in one line."""
        unread = f" (not read: {'; '.join(self.unread)})" if self.unread else ""
        return f"{len(self.pairs):,} messages of {self.catalogues} catalogues{unread}"


def of_system(language: str, folders: Sequence[str | pathlib.Path] = SYSTEM) -> list[pathlib.Path]:
    """The catalogues of installed packages, sorted."""
    return sorted(path for folder in folders for path in pathlib.Path(folder).glob(f"{language}/{_WITHIN}"))


def of_python(language: str, folders: Sequence[str] | None = None) -> list[pathlib.Path]:
    """The catalogues within installed Python packages, sorted; looks through all of sys.path."""
    folders = [folder for folder in sys.path if folder.endswith("-packages")] if folders is None else folders
    return sorted(path for folder in folders for path in pathlib.Path(folder).rglob(f"{language}/{_WITHIN}"))


def read_all(paths: Iterable[pathlib.Path]) -> Found:
    """Reads catalogues one after the other; those that cannot be read are skipped and reported."""
    pairs: list[Pair] = []
    unread: list[str] = []
    catalogues = 0
    for path in paths:
        try:
            pairs += read(path)
            catalogues += 1
        except (OSError, ValueError) as error:
            unread.append(f"{path}: {error}")
    return Found(pairs, catalogues, unread)


def read(path: pathlib.Path) -> list[Pair]:
    """The messages of a catalogue and their translations.

    A message with a plural gives two pairs, singular and plural, if the language has these two forms. Contexts and the
    catalogue's header are left out. Python's gettext can look up messages but not list them, so this function reads the
    format itself (GNU gettext manual, section 10.3, "The Format of GNU MO Files").

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is not a catalogue, is truncated, or is not in the encoding that it names.
    """
    data = path.read_bytes()
    if data[:4] not in _ORDERS:
        raise ValueError("expected a message catalogue of GNU gettext (*.mo), got something else")
    order = _ORDERS[data[:4]]
    try:
        count, sources, targets = struct.unpack_from(f"{order}3I", data, 8)
        messages = list(zip(_strings(data, order, sources, count), _strings(data, order, targets, count), strict=True))
        charset = _charset(dict(messages).get(b"", b""))
        decoded = [(source.decode(charset), target.decode(charset)) for source, target in messages if source]
    except (struct.error, LookupError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a whole message catalogue in the encoding that it names: {error}") from error
    return [pair for source, target in decoded for pair in _pairs(source, target)]


def _strings(data: bytes, order: str, table: int, count: int) -> list[bytes]:
    """The strings that a table of lengths and offsets refers to."""
    numbers = struct.unpack_from(f"{order}{2 * count}I", data, table)
    strings = [data[start : start + length] for length, start in zip(numbers[::2], numbers[1::2], strict=True)]
    if any(len(string) != length for string, length in zip(strings, numbers[::2], strict=True)):
        raise struct.error("a string lies beyond the end of the file")
    return strings


def _charset(header: bytes) -> str:
    named = re.search(rb"charset=([\w.:-]+)", header)
    return named[1].decode("ascii") if named else "ascii"


def _pairs(source: str, target: str) -> list[Pair]:
    sources = source.rpartition(_CONTEXT)[2].split("\0")
    targets = target.split("\0")
    return [Pair(*pair) for pair in zip(sources, targets, strict=True)] if len(sources) == len(targets) else []

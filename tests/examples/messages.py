"""Message catalogues for tests, with messages in a made-up language, in the format of msgfmt."""

from __future__ import annotations

import itertools
import pathlib
import struct
from collections.abc import Mapping

COLOURS = {
    "red": "rote",
    "green": "grüne",
    "blue": "blaue",
    "old": "alte",
    "new": "neue",
    "large": "große",
    "wet": "nasse",
}
COLOURS |= {"small": "kleine", "empty": "leere", "warm": "warme", "cold": "kalte", "broken": "kaputte"}
THINGS = {"lamp": "Lampe", "shop": "Bude", "street": "Straße", "flower": "Blume", "pear": "Birne", "cat": "Katze"}
THINGS |= {"door": "Tür", "bag": "Tasche", "box": "Kiste", "clock": "Uhr", "card": "Karte", "bell": "Glocke"}
DOINGS = {"see": "sieht", "seek": "sucht", "take": "nimmt", "find": "findet", "want": "will", "sell": "verkauft"}
PEOPLE = {"she": "sie", "the man": "der Mann", "the child": "das Kind", "nobody": "niemand"}


def sentences() -> dict[str, str]:
    """3,456 English sentences and their German translations; they can be learnt in seconds."""
    chosen = itertools.product(PEOPLE, DOINGS, COLOURS, THINGS)
    return {
        f"{who} can {does} the {what} {thing}": f"{PEOPLE[who]} {DOINGS[does]} die {COLOURS[what]} {THINGS[thing]}"
        for who, does, what, thing in chosen
    }


def write(path: pathlib.Path, messages: Mapping[str, str], charset: str = "UTF-8", order: str = "<") -> None:
    """Writes a catalogue (GNU gettext manual, 10.3): header, tables of lengths and offsets, zero-terminated strings.

    Args:
        path: its folder is created.
        messages: a context precedes the message and "\\4"; a plural follows it and "\\0".
        charset: that of the file.
        order: byte order, "<" or ">".
    """
    header = f"Content-Type: text/plain; charset={charset}\nPlural-Forms: nplurals=2; plural=(n != 1);\n"
    encoded = {source.encode(charset): target.encode(charset) for source, target in {"": header, **messages}.items()}
    sources = sorted(encoded)
    count, strings, tables = len(sources), b"", ([], [])
    start = 28 + 16 * count
    for table, texts in zip(tables, (sources, [encoded[source] for source in sources]), strict=True):
        for text in texts:
            table += (len(text), start + len(strings))
            strings += text + b"\0"
    numbers = (0x950412DE, 0, count, 28, 28 + 8 * count, 0, start)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f"{order}{7 + 4 * count}I", *numbers, *tables[0], *tables[1]) + strings)


def write_sentences(folder: pathlib.Path) -> pathlib.Path:
    """A folder like /usr/share/locale, with the sentences in two catalogues."""
    everything = list(sentences().items())
    write(folder / "de" / "LC_MESSAGES" / "first.mo", dict(everything[::2]))
    write(folder / "de" / "LC_MESSAGES" / "second.mo", dict(everything[1::2]))
    return folder

"""The package index that `apt-get update` leaves on a Debian or Ubuntu machine (deb822 paragraphs)."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

LISTS = pathlib.Path("/var/lib/apt/lists")
_HELPER = "/usr/lib/apt/apt-helper"  # reads every format that apt writes

Package = dict[str, str]


class Index(NamedTuple):
    """The contents of an index file.

    Attributes:
        packages: one per name, sorted by name; each maps field names ("Section") to their text on one line.
        digest: SHA-256 of the text, hexadecimal, which identifies the snapshot.
        path: path of the file.
    """

    packages: list[Package]
    digest: str
    path: pathlib.Path


def read(path: pathlib.Path | None = None, lists: pathlib.Path = LISTS) -> Index:
    """Reads an index; by default the largest one on the machine.

    The largest is that of the release itself, which changes a few times a year; those of security fixes change daily.

    Args:
        path: a file `*Packages`, plain or in any compression that the machine's apt supports.
        lists: folder to search if no path is given.

    Raises:
        RuntimeError: if there is no index, or it cannot be read.
    """
    path = _largest(lists) if path is None else path
    text = _text(path)
    packages: dict[str, Package] = {}
    for package in paragraphs(text.decode("utf8", "replace")):
        packages.setdefault(package.get("Package", ""), package)
    packages.pop("", None)
    if not packages:
        raise RuntimeError(f"Expected package paragraphs in {path}, found none: pass a Packages file.")
    return Index([packages[name] for name in sorted(packages)], hashlib.sha256(text).hexdigest(), path)


def _largest(lists: pathlib.Path) -> pathlib.Path:
    found = [path for path in lists.glob("*Packages*") if path.suffix in ("", ".lz4", ".xz", ".gz", ".zst")]
    if not found:
        raise RuntimeError(
            f"Expected a package index in {lists}, found none: run `apt-get update` (on Debian or Ubuntu), or pass a "
            "Packages file from there."
        )
    return max(found, key=lambda path: (path.stat().st_size, path.name))


def _text(path: pathlib.Path) -> bytes:
    if not path.suffix or path.suffix == ".txt":
        return path.read_bytes()
    try:
        return subprocess.run([_HELPER, "cat-file", path], check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        raise RuntimeError(
            f"Expected {_HELPER} to read {path}, got {said or error}: pass the file without compression."
        ) from error


def paragraphs(text: str) -> Iterator[Package]:
    """The paragraphs of a text, divided by empty lines: fields `Name: value`; continuation lines begin with a blank."""
    fields: Package = {}
    last = ""
    for line in text.splitlines():
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] not in " \t":
            last, _, value = line.partition(":")
            fields[last] = value.strip()
        elif last:
            fields[last] += f" {line.strip()}"
    if fields:
        yield fields

"""A made-up package index for tests: a release in which the packages of a kind have similar dependencies."""

from __future__ import annotations

import pathlib

KINDS = {
    "gtk": ["libgtk", "libglib", "libpango", "libcairo", "libatk", "libgdk"],
    "qt": ["libqtcore", "libqtgui", "libqtwidgets", "libqtnet", "libqtxml", "libqtdbus"],
    "sdl": ["libsdl", "libsdlimage", "libsdlmixer", "libsdlttf", "libopenal", "libgl"],
    "py": ["python3", "python3-numpy", "python3-yaml", "python3-lxml", "python3-six", "python3-attr"],
}
SECTIONS = ("games", "utils")

# Two packages of one source, in the format of Debian's index; long lists are shortened.
REAL = """\
Package: 0ad
Version: 0.0.26-3
Installed-Size: 28591
Maintainer: Debian Games Team <pkg-games-devel@lists.alioth.debian.org>
Architecture: amd64
Depends: 0ad-data (>= 0.0.26), libc6 (>= 2.34), libgcc-s1:any (>= 3.4), zlib1g | zlib1g-ng [amd64]
Pre-Depends: dpkg (>= 1.15.6~)
Description: Real-time strategy game of ancient warfare
Homepage: https://play0ad.com/
Tag: game::strategy, interface::graphical, role::program,
 uitoolkit::sdl, x11::application
Section: games
Priority: optional
Filename: pool/main/0/0ad/0ad_0.0.26-3_amd64.deb
Size: 7891488

Package: 0ad-dbg
Source: 0ad (0.0.26-2)
Version: 0.0.26-3
Size: 1

"""


def text(sources: int = 400) -> str:
    """The index; each source has a program and its data."""
    return "".join(_source(number) for number in range(sources))


def write(path: pathlib.Path, sources: int = 400) -> pathlib.Path:
    """Writes the index and returns the path."""
    path.write_text(text(sources))
    return path


def _source(number: int) -> str:
    kind = list(KINDS)[number % len(KINDS)]
    family = KINDS[kind]
    own = [family[(number // len(KINDS) + step * (1 + number % 2)) % len(family)] for step in range(4)]
    name = f"prog{number}"
    depends = ", ".join(["libc6 (>= 2.3)", *sorted({f"{each} (>= {number}.1)" for each in own})])
    common = f"Section: {SECTIONS[number // 4 % 2]}\nMaintainer: {kind} Team <{kind}@lists.example.org>\n"
    size = f"Size: {1_000 + 37 * number}\nInstalled-Size: {5 + number}\nVersion: 1.{number % 7}-1\n"
    main = f"Package: {name}\nArchitecture: amd64\nDepends: {depends}\nDescription: A program for {kind}\n"
    data = f"Package: {name}-data\nSource: {name}\nArchitecture: all\nDepends: {name}, {own[0]}, {own[1]}\n"
    return f"{main}{common}{size}\n{data}Description: Data of a program\n{common}{size}\n"

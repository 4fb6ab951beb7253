"""Which dependency was left out: rows made from a package index.

One of a package's dependencies is left out of the features. A row asks whether a candidate is that dependency. The
candidate is either the one left out (yes), or one that is left out of packages of the same section, drawn as often as
it is left out there, and that the package does not have (no). Everything but the candidate is the same in both rows,
and within a section both answers have nearly the same candidates, so no feature predicts the answer by itself. What
predicts it is which candidate goes with which package, as with users and items; a linear model cannot express that.

Only dependencies that many sources have are candidates. The versions that a dependency requires are not a feature, and
packages of one source, which are much alike, are in the same part.
"""

from __future__ import annotations

import collections
import hashlib
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from examples.recommenders import tables
from examples.recommenders.index import Index, Package
from examples.recommenders.tables import InMemory, Table, Task

NUMBERS = (
    *("size", "installed size", "recommended", "suggested", "provided", "broken", "replaced", "tags"),
    *("description's length", "name's length", "version's length", "packages of the source", "other dependencies"),
)
OTHERS = 9
CATEGORIES = (
    *("candidate", "section", "maintainer", "maintainer's domain", "architecture", "multi-arch", "first tag"),
    *("name's first part", "name's second part", "name's last part", "name's last part without digits"),
    *("source's first part", "name and source", "home", "description's first word", "description's last word"),
    *("version's form", *(f"other dependency {number}" for number in range(1, OTHERS + 1))),
)
TEST, VALIDATION = 0.25, 0.05
_TRIES = 50
_WORD = re.compile(r"[a-z]+")


class Settings(NamedTuple):
    """How rows are made.

    Attributes:
        each: maximum number of dependencies that are left out of a package, one at a time.
        popular: minimum number of sources that depend on a candidate.
        fewest: minimum number of training sources with a category for it to have an embedding of its own.
        largest: maximum number of embeddings per table.
        fold: 0 to 3, the quarter of the sources that is the test set.
    """

    each: int = 6
    popular: int = 20
    fewest: int = 10
    largest: int = 4_096
    fold: int = 0


USUAL = Settings()


class Row(NamedTuple):
    """One row, with categories as texts; see `Table`."""

    source: str
    numbers: list[float]
    categories: list[str]
    label: bool


class Questions(NamedTuple):
    """The questions about one package.

    Attributes:
        package: package from the index.
        groups: its dependencies, each as a list of alternatives; the first alternative counts.
        left_out: dependencies that are left out, one at a time.
    """

    package: Package
    groups: list[list[str]]
    left_out: list[str]


def source(package: Package) -> str:
    """The name of a package's source."""
    return package.get("Source", package["Package"]).split()[0]


def dependencies(text: str) -> list[list[str]]:
    """The names in a field such as Depends, each with its alternatives."""
    found = [[re.split(r"[ (:\[]", name.strip())[0] for name in group.split("|")] for group in text.split(",")]
    return [group for group in found if group[0]]


def make(index: Index, settings: Settings = USUAL) -> Task:
    """Makes the task from an index.

    Raises:
        ValueError: if the fold does not exist.
        RuntimeError: if there are too few packages for rows in all parts.
    """
    if settings.fold not in range(round(1 / TEST)):
        raise ValueError(f"Expected a fold of 0 to {round(1 / TEST) - 1}, got {settings.fold}.")
    asked = rows(index.packages, settings)
    names = [row.source for row in asked]
    places = {name: place(name, settings.fold) for name in set(names)}
    parts = np.array([part(places[name]) for name in names])
    if not {"train", "validation", "test"} <= set(parts.tolist()):
        raise RuntimeError(
            f"Expected packages enough for training, validation and test, found {len(index.packages):,} with "
            f"{len(asked):,} rows in {index.path}: pass the index of a whole release."
        )
    groups = np.unique(names, return_inverse=True)[1].astype(np.int32)
    train = parts == "train"
    fields = list(zip(*(row.categories for row in asked), strict=True))
    columns = [tables.numbered(field, groups, train, settings.fewest, settings.largest) for field in fields]
    table = Table(
        _scaled(np.array([row.numbers for row in asked]), train),
        np.stack([column for column, _ in columns], axis=1),
        np.array([row.label for row in asked], np.float32),
        groups,
    )
    divided = [table.rows(parts == name) for name in ("train", "validation", "test")]
    digest = hashlib.sha256(f"{index.digest} {tables.digest(*divided)}".encode()).hexdigest()
    origin = f"{len(asked):,} rows of {len(index.packages):,} packages in {index.path.name} ({index.digest[:16]})"
    sizes = tuple(size for _, size in columns)
    return Task(*map(InMemory, divided), len(NUMBERS), sizes, origin, digest)


def place(name: str, fold: int = 0) -> float:
    """The position of a source in [0, 1), the same on every machine."""
    return (_drawn("part", name) + fold * TEST) % 1.0


def part(where: float) -> str:
    """The part that a position belongs to."""
    return "test" if where < TEST else "validation" if where < TEST + VALIDATION else "train"


def rows(packages: Sequence[Package], settings: Settings = USUAL) -> list[Row]:
    """All rows: a yes and a no for each dependency that is left out."""
    asking = _questions(packages, settings)
    pools: dict[str, list[str]] = collections.defaultdict(list)
    for each in asking:
        pools[each.package.get("Section", "")] += each.left_out
    binaries = collections.Counter(map(source, packages))
    popularity = _popularity(packages)
    made: list[Row] = []
    for each in asking:
        pool = pools[each.package.get("Section", "")]
        about = _numbers(each.package, binaries), _categories(each.package)
        for dependency in each.left_out:
            other = _other(each, dependency, pool)
            if other is not None:
                made += _pair(each, dependency, other, about, popularity)
    return made


def _questions(packages: Sequence[Package], settings: Settings) -> list[Questions]:
    popularity = _popularity(packages)
    asking = []
    for package in packages:
        groups = dependencies(package.get("Depends", ""))
        names = list(dict.fromkeys(group[0] for group in groups))
        known = [name for name in names if popularity[name] >= settings.popular]
        known.sort(key=lambda name: _drawn("left out", package["Package"], name))
        if len(names) > 1 and known:
            asking.append(Questions(package, groups, known[: settings.each]))
    return asking


def _popularity(packages: Sequence[Package]) -> collections.Counter[str]:
    """The number of sources that depend on each name."""
    pairs = {(group[0], source(package)) for package in packages for group in dependencies(package.get("Depends", ""))}
    return collections.Counter(name for name, _ in pairs)


def _other(asked: Questions, dependency: str, pool: Sequence[str]) -> str | None:
    """A dependency of the section that the package does not have; None if several draws find none."""
    had = {name for group in asked.groups for name in group}
    for attempt in range(_TRIES):
        drawn = pool[int(_drawn("other", asked.package["Package"], dependency, str(attempt)) * len(pool))]
        if drawn not in had:
            return drawn
    return None


def _pair(
    asked: Questions,
    dependency: str,
    other: str,
    about: tuple[list[float], list[str]],
    popularity: collections.Counter[str],
) -> list[Row]:
    rest = sorted({group[0] for group in asked.groups} - {dependency}, key=lambda name: (-popularity[name], name))
    numbers = [*about[0], math.log1p(len(rest))]
    shown = [*about[1], *(rest + [""] * OTHERS)[:OTHERS]]
    candidates = ((dependency, True), (other, False))
    return [Row(source(asked.package), numbers, [candidate, *shown], label) for candidate, label in candidates]


def _numbers(package: Package, binaries: collections.Counter[str]) -> list[float]:
    """All of NUMBERS but the last."""
    fields = ("Recommends", "Suggests", "Provides", "Breaks", "Replaces", "Tag")
    counts = [len(dependencies(package.get(field, ""))) for field in fields]
    counts[3] += len(dependencies(package.get("Conflicts", "")))
    sizes = [int(package.get(field, 0)) for field in ("Size", "Installed-Size")]
    lengths = [float(len(package.get(field, ""))) for field in ("Description", "Package", "Version")]
    return [*map(math.log1p, sizes), *map(math.log1p, counts), *lengths, math.log1p(binaries[source(package)])]


def _categories(package: Package) -> list[str]:
    """Those of CATEGORIES between the candidate and the other dependencies."""
    name, origin = package["Package"], source(package)
    maintainer = package.get("Maintainer", "")
    parts, words = re.split(r"[-_.+]", name), _WORD.findall(package.get("Description", "").lower()) or [""]
    tags = package.get("Tag", "").split(",")
    home = re.sub(r"^https?://(www\.)?", "", package.get("Homepage", "")).split("/")[0]
    return [
        package.get("Section", ""),
        maintainer,
        maintainer.rpartition("@")[2].rstrip(">"),
        package.get("Architecture", ""),
        package.get("Multi-Arch", ""),
        tags[0],
        parts[0],
        parts[1] if len(parts) > 1 else "",
        parts[-1],
        re.sub(r"[0-9]+", "#", parts[-1]),
        re.split(r"[-_.+]", origin)[0],
        _relation(name, origin),
        home,
        words[0],
        words[-1],
        re.sub(r"[0-9]+", "0", package.get("Version", "")),
    ]


def _relation(name: str, origin: str) -> str:
    if name == origin:
        return "same"
    return "begins" if name.startswith(origin) else "ends" if name.endswith(origin) else "has" if origin in name else ""


def _scaled(numbers: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Scales to mean 0 and standard deviation 1 over the training part."""
    deviation = numbers[train].std(axis=0)
    return ((numbers - numbers[train].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)


def _drawn(*words: str) -> float:
    """A number in [0, 1) that depends on the words alone."""
    return int.from_bytes(hashlib.blake2b("\0".join(words).encode(), digest_size=6).digest()) / 2**48

"""Pairs of sentences, cleaned and divided into training, validation and test data."""

from __future__ import annotations

import hashlib
import pathlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from examples.text import catalogues
from examples.text.catalogues import Pair

FEWEST = 2_000  # pairs: with fewer, nothing is learnt that helps on held-out pairs
_LANGUAGE = "de"
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+ #0']*[\d*.]*(?:hh|h|ll|l|z|j|t|L|q)?[a-zA-Z%]"  # C
    r"|%\(\w+\)[\d.]*[a-z]|\{[^{}]*\}|\$\{?\w+\}?"  # Python, shells
    r"|<[^<>]*>"  # tags
)
_WORD = re.compile(r"[^\W\d_]+")
_RATIO, _SHORT = 3, 20  # of characters: a longer text is not a translation, unless it is short


class Corpus(NamedTuple):
    """Pairs for training, for validation after each epoch, and for a test at the end.

    Attributes:
        train: training pairs.
        validation: pairs whose sources are not in `train`.
        test: pairs whose sources are not in the other parts.
        origin: one line that says what the corpus is made of.
    """

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    origin: str


def of_catalogues(
    folder: pathlib.Path | None = None,
    least_words: int = 1,
    most_words: int | None = None,
    held_out: float = 0.04,
    fewest: int = FEWEST,
) -> Corpus:
    """The English-German messages that are installed on the machine.

    These are the system's messages and, if they are too few, those in installed Python packages as well. Identical
    sources count once, with their most frequent translation. Pairs are divided by a hash of the source's words. The
    division is therefore the same on every machine and does not change when packages are added, and messages that
    differ only in case, numbers, punctuation or placeholders are in the same part.

    Args:
        folder: folder with catalogues de/LC_MESSAGES/*.mo, as /usr/share/locale; None for those of the machine.
        least_words: sources with fewer words are left out; those of one or two words are mostly names.
        most_words: pairs with more words on either side, separated by spaces, are left out; None keeps them.
        held_out: share of the pairs for validation, and the same share for the test.
        fewest: minimum number of pairs.

    Raises:
        RuntimeError: if there are fewer pairs.
    """
    found = catalogues.read_all(catalogues.of_system(_LANGUAGE, catalogues.SYSTEM if folder is None else [folder]))
    pairs = _usable(found.pairs, least_words, most_words)
    if len(pairs) < fewest and folder is None:
        found = found.and_then(catalogues.read_all(catalogues.of_python(_LANGUAGE)))
        pairs = _usable(found.pairs, least_words, most_words)
    origin = f"{len(pairs):,} English-German pairs out of {found}"
    if len(pairs) < fewest:
        raise RuntimeError(
            f"Expected at least {fewest:,} pairs of sentences in message catalogues, found {origin}. Install more "
            "packages with their translations (on Debian containers: without path-exclude=/usr/share/locale in "
            "/etc/dpkg/dpkg.cfg.d), or pass a corpus of your own as text files."
        )
    return Corpus(*divide(pairs, held_out), origin)


def _usable(messages: Iterable[Pair], least_words: int, most_words: int | None) -> list[Pair]:
    pairs = [pair for pair in deduplicate(clean(messages)) if len(words(pair.source)) >= least_words]
    return [pair for pair in pairs if most_words is None or max(len(side.split()) for side in pair) <= most_words]


def of_files(
    train: tuple[pathlib.Path, pathlib.Path],
    validation: tuple[pathlib.Path, pathlib.Path],
    test: tuple[pathlib.Path, pathlib.Path] | None = None,
) -> Corpus:
    """A corpus from pairs of text files, in which line n of the target translates line n of the source.

    Training pairs are cleaned like those of catalogues, and pairs whose source is held out are removed; held-out pairs
    are not changed. Without files for the test, the validation data are the test data as well.

    Raises:
        ValueError: if source and target have different numbers of lines.
        OSError: if a file cannot be read.
    """
    held_out = [_lines(*paths) for paths in (validation, test) if paths is not None]
    barred = {pair.source for pairs in held_out for pair in pairs}
    pairs = [pair for pair in deduplicate(clean(_lines(*train))) if pair.source not in barred]
    return Corpus(pairs, held_out[0], held_out[-1], f"{len(pairs):,} pairs of {train[0]} and {train[1]}")


def _lines(source: pathlib.Path, target: pathlib.Path) -> list[Pair]:
    sources, targets = (_tidy_lines(path) for path in (source, target))
    if len(sources) != len(targets):
        raise ValueError(
            f"Expected as many lines in {source} as in {target}, got {len(sources):,} and {len(targets):,}: line n of "
            "the one is to be the translation of line n of the other."
        )
    return [Pair(*pair) for pair in zip(sources, targets, strict=True)]


def _tidy_lines(path: pathlib.Path) -> list[str]:
    with open(path, encoding="utf8", newline="\n") as file:  # Unicode's other line separators do not end a line
        return [tidy(line) for line in file]


def tidy(text: str) -> str:
    """The text on one line, with single spaces, in Unicode's composed form."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean(pairs: Iterable[Pair]) -> list[Pair]:
    """Removes pairs that are no translations: no letters outside placeholders, equal texts, or one far longer."""
    tidied = (Pair(tidy(source), tidy(target)) for source, target in pairs)
    return [pair for pair in tidied if _is_translation(pair)]


def _is_translation(pair: Pair) -> bool:
    if not all(words(side) for side in pair) or pair.source == pair.target:
        return False
    shorter, longer = sorted(map(len, pair))
    return longer <= max(_RATIO * shorter, _SHORT)


def words(text: str) -> list[str]:
    """The words of a text, without case, numbers, punctuation and placeholders."""
    return _WORD.findall(_PLACEHOLDER.sub(" ", text).casefold())


def deduplicate(pairs: Iterable[Pair]) -> list[Pair]:
    """One pair per source, sorted by source, with its most frequent translation; ties go to the first when sorted."""
    targets: dict[str, Counter[str]] = defaultdict(Counter)
    for source, target in pairs:
        targets[source][target] += 1
    return [Pair(source, _most_frequent(counted)) for source, counted in sorted(targets.items())]


def _most_frequent(counted: Counter[str]) -> str:
    return min(counted, key=lambda text: (-counted[text], text))


def divide(pairs: Iterable[Pair], held_out: float) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Pairs for training, validation and test; the part of a pair depends only on the words of its source."""
    if not 0 < held_out < 0.5:
        raise ValueError(f"Expected a share between 0 and 0.5 to hold out, got {held_out}.")
    parts: tuple[list[Pair], list[Pair], list[Pair]] = [], [], []
    for pair in pairs:
        digest = hashlib.blake2b(" ".join(words(pair.source)).encode(), digest_size=8).digest()
        place = int.from_bytes(digest) / 2**64
        parts[1 if place < held_out else 2 if place < 2 * held_out else 0].append(pair)
    return parts


def digest(corpus: Corpus) -> str:
    """A digest of a corpus, hexadecimal."""
    state = hashlib.blake2b(digest_size=16)
    for part in corpus[:3]:
        for text in (text for pair in part for text in pair):
            state.update(text.encode() + b"\n")
        state.update(b"\0")
    return state.hexdigest()

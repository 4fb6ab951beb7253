"""Writes a real, very wide and very sparse classification task: is a Python file a test module?

    python -m examples.make_ngrams --out ngrams                              # 16,609,143 dimensions, as in Webspam
    python -m examples.make_ngrams --out ngrams --dimensions 3231961         # as in URL

Each sample is a Python file that is installed on this machine. Its features are the 5-grams of characters that occur in
it, hashed (CRC-32 of the UTF-32-LE bytes, modulo the dimensions), all with the same value, so that samples have length
1. The label is 1 if the file is a test module, judged by its name and folders, which the features do not show, and -1
otherwise; a share of the labels is flipped, in the training and the test file. Files with the same content count once.
Split, noise and order depend only on content and seed, so two runs on a machine give the same bytes, and a file stays
in its half when packages are added. OUT receives train.svm and test.svm in libsvm's format, which examples/linear.py
reads.
"""

from __future__ import annotations

import argparse
import contextlib
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import xxhash

LENGTH = 5  # characters of an n-gram
# The CRC-32 table: its value for each single byte.
_TABLE = np.array([zlib.crc32(bytes([entry ^ 0xFF])) ^ 0xFF000000 for entry in range(256)], np.uint32)


class Source(NamedTuple):
    """A Python file: its path, whether it is a test module, and a digest of its content."""

    path: Path
    is_test: bool
    digest: str


class Written(NamedTuple):
    """What was written to a file: the numbers of samples, of label-1 samples and of nonzeros, and a digest."""

    samples: int
    positive: int
    nonzeros: int
    digest: str


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line, or of `words`."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory for train.svm and test.svm")
    made.add_argument(
        "--dimensions",
        type=int,
        default=16_609_143,
        help="number of features that 5-grams are hashed to (default: %(default)s)",
    )
    made.add_argument(
        "--folder", type=Path, nargs="+", help="folders of Python files (default: those of this Python installation)"
    )
    made.add_argument("--most", type=int, help="maximum number of files (default: all)")
    made.add_argument(
        "--characters",
        type=int,
        default=20_000,
        help="use only this many of each file's first characters (default: %(default)s)",
    )
    made.add_argument("--fewest", type=int, default=200, help="skip files with fewer characters (default: %(default)s)")
    made.add_argument(
        "--held-out", type=float, default=0.2, help="share of files for the test set (default: %(default)s)"
    )
    made.add_argument("--noise", type=float, default=0.05, help="share of labels to flip (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args(words)
    if not 1 <= options.dimensions < 2**31:
        made.error(f"expected --dimensions from 1 to {2**31 - 1}, got {options.dimensions}")
    if options.fewest < LENGTH:
        made.error(f"expected --fewest of at least {LENGTH}, the length of an n-gram, got {options.fewest}")
    return options


def installed() -> list[Path]:
    """The folders of this Python's own modules, of its installed packages, and of the system's Python."""
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    folders = [*own, *sorted(Path("/usr/lib").glob("python3*"))]
    return [folder for folder in dict.fromkeys(each.resolve() for each in folders) if folder.is_dir()]


def sources(folders: Iterable[Path], fewest: int, seed: int) -> list[Source]:
    """The Python files under the folders, in an order given by the seed; of equal files, the first one by name."""
    found: dict[str, Source] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = _content(path)
            if content is not None and len(content) >= fewest:
                digest = xxhash.xxh3_128_hexdigest(content.encode())
                found.setdefault(digest, Source(path, is_test(path.relative_to(folder)), digest))
    return sorted(found.values(), key=lambda source: (drawn("order", seed, source), source.digest))


def _content(path: Path) -> str | None:
    """The text of a file; None if it is not a regular file, cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError):
        return None


def is_test(name: PurePath) -> bool:
    """Whether a module is a test, judged by its name and by the folders it is in."""
    by_folder = not {"test", "tests"}.isdisjoint(name.parts[:-1])
    return by_folder or name.stem in ("test", "tests") or name.stem.startswith("test_") or name.stem.endswith("_test")


def drawn(purpose: str, seed: int, source: Source) -> float:
    """A number in [0, 1) that depends on a file's content, the seed and the purpose."""
    return xxhash.xxh3_64_intdigest(f"{purpose} {seed} {source.digest}".encode()) / 2**64


def crc32_of_ngrams(text: str) -> np.ndarray:
    """zlib.crc32 of the UTF-32-LE bytes of each n-gram [len(text) - 4], computed for all at once."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint8).reshape(-1, 4)
    count = len(characters) - LENGTH + 1
    remainder = np.full(max(count, 0), 0xFFFFFFFF, np.uint32)
    for place in range(LENGTH if count > 0 else 0):
        for byte in range(4):
            entries = (remainder ^ characters[place : place + count, byte]) & 0xFF
            remainder = _TABLE[entries] ^ (remainder >> 8)
    return ~remainder


def line(label: int, text: str, dimensions: int) -> tuple[str, int]:
    """A sample in libsvm's format, with a line end, and the number of its features."""
    features = np.unique(crc32_of_ngrams(text) % np.uint32(dimensions)).astype(np.int64) + 1
    value = f":{len(features) ** -0.5:.5g}"
    return f"{label:+d} {' '.join(f'{feature}{value}' for feature in features.tolist())}\n", len(features)


def write(path: Path, files: Iterable[Source], options: argparse.Namespace) -> Written:
    """Writes one libsvm file, under a temporary name until it is complete."""
    samples = positive = nonzeros = 0
    digest = xxhash.xxh3_64()
    with _replacing(path) as part, open(part, "wb") as file:
        for source in files:
            turned = drawn("noise", options.seed, source) < options.noise
            label = 1 if source.is_test != turned else -1
            text = source.path.read_text(encoding="utf8")[: options.characters]
            written, count = line(label, text, options.dimensions)
            encoded = written.encode()
            file.write(encoded)
            digest.update(encoded)
            samples, positive, nonzeros = samples + 1, positive + (label > 0), nonzeros + count
    return Written(samples, positive, nonzeros, digest.hexdigest())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main(words: list[str] | None = None) -> dict[str, Written]:
    """Writes both files and prints what they contain."""
    options = parse(words)
    folders = options.folder or installed()
    found = sources(folders, options.fewest, options.seed)[: options.most]
    if not 0 < sum(source.is_test for source in found) < len(found):
        raise SystemExit(
            f"make_ngrams: expected Python files, some of them test modules, under {', '.join(map(str, folders))}, "
            f"found {len(found)}, {sum(source.is_test for source in found)} of them test modules. Pass other folders "
            "with --folder."
        )
    held_out = [drawn("held out", options.seed, source) < options.held_out for source in found]
    options.out.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, side in (("train.svm", False), ("test.svm", True)):
        files = (source for source, held in zip(found, held_out, strict=True) if held == side)
        made[name] = written = write(options.out / name, files, options)
        print(
            f"{options.out / name}: {written.samples:,} samples, {written.positive:,} of them with label 1, "
            f"{written.nonzeros:,} nonzeros in {options.dimensions:,} dimensions, XXH3 {written.digest}"
        )
    return made


if __name__ == "__main__":
    main()

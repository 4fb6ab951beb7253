"""Damages the LMDB file of a closed cache in many ways, then opens the cache and reads all samples.

    .venv/bin/python -m tests.datacache.damage 500

Each trial is determined by its number. It passes if no process dies, nothing is raised, and every sample is unchanged;
damaged samples are read from the source again. It uses only public names, so it can also run against other commits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import datacache

COUNT, PAGE = 150, 4096
LIMIT = 600  # seconds per process of trials
_ROOT = Path(__file__).parents[2]
_HEAD = np.dtype([("number", "<u8"), ("unused", "<u2"), ("flags", "<u2"), ("count", "<u4")])  # of a page


def sample(index: int) -> bytes:
    """The source's bytes: most samples are small and share pages; others have their own pages."""
    generator = np.random.default_rng(index)
    return generator.bytes(int(generator.integers(1, 12_000 if index % 3 == 0 else 600)))


def decode(payload: bytes) -> np.ndarray:
    """A sample as an array."""
    return np.frombuffer(payload, np.uint8)


def opened(local: Path) -> datacache.DataCache:
    """A cache without a memory level, so that it reads everything from disk."""
    source = datacache.Indexed(sample, COUNT, "samples of the tests of damage", labels=range(COUNT))
    return datacache.DataCache(
        source, decode, local, memory_bytes=0, shape=(None,), world=datacache.World(), workers=1, disk_bytes=32 << 20
    )


def read_all(local: Path) -> int:
    """Opens the cache, asserts that all samples are right, and returns how many came from the source."""
    with opened(local) as cache:
        for samples, labels in cache.batches(50, 0):
            for got, label in zip(samples, labels, strict=True):
                assert got.tobytes() == sample(int(label)), f"sample {label} is wrong"
        return int(cache.counters.numbers().get("samples.source", 0))


def data_file(local: Path) -> Path:
    """The LMDB file of the source's bytes."""
    (found,) = local.glob("*/*/source/data.mdb")
    return found


# ---- kinds of damage: each changes the bytes of a file ----

Damage = Callable[[bytearray, np.random.Generator], None]


def pages(content: bytearray, *flags: int) -> np.ndarray:
    """The numbers of all pages of these kinds: 1 branch, 2 leaf, 4 the first page of a large value, 8 meta."""
    heads = np.frombuffer(bytes(content), np.uint8).reshape(-1, PAGE)[:, : _HEAD.itemsize].copy().view(_HEAD)[:, 0]
    right = heads["number"] == np.arange(len(heads))
    return np.flatnonzero(right & np.isin(heads["flags"], flags))


def _flip(content: bytearray, generator: np.random.Generator, begin: int, length: int) -> None:
    for _ in range(int(generator.integers(1, 4))):
        content[begin + int(generator.integers(length))] ^= 1 << int(generator.integers(8))


def _any_of(generator: np.random.Generator, found: np.ndarray) -> int:
    return PAGE * int(generator.choice(found))


def in_meta_page(content: bytearray, generator: np.random.Generator) -> None:
    """Flips bits of the metadata that say where the trees are."""
    _flip(content, generator, PAGE * int(generator.integers(2)), 16 + 136)


def in_tree_page(content: bytearray, generator: np.random.Generator) -> None:
    """Flips bits anywhere in a page of a tree."""
    _flip(content, generator, _any_of(generator, pages(content, 1, 2)), PAGE)


def in_head_of_tree_page(content: bytearray, generator: np.random.Generator) -> None:
    """Flips bits of a page's header and of its table of entry offsets."""
    _flip(content, generator, _any_of(generator, pages(content, 1, 2)), 40)


def in_head_of_value(content: bytearray, generator: np.random.Generator) -> None:
    """Flips bits at the start of a large value: in its number of pages and in its first bytes."""
    _flip(content, generator, _any_of(generator, pages(content, 4)), 24)


def in_an_entry(content: bytearray, generator: np.random.Generator) -> None:
    """Flips bits of an entry's header, its key, or the reference to its value."""
    page = _any_of(generator, pages(content, 1, 2))
    lower = int.from_bytes(content[page + 12 : page + 14], "little")
    place = page + 16 + 2 * int(generator.integers(max(1, (lower - 16) // 2)))
    _flip(content, generator, page + int.from_bytes(content[place : place + 2], "little") % (PAGE - 24), 24)


def truncated(content: bytearray, generator: np.random.Generator) -> None:
    """Removes the end of the file."""
    del content[int(generator.integers(len(content))) :]


def zeroed(content: bytearray, generator: np.random.Generator) -> None:
    """Fills pages with zeros."""
    for _ in range(int(generator.integers(1, 4))):
        page = _any_of(generator, np.arange(len(content) // PAGE))
        content[page : page + PAGE] = bytes(PAGE)


def zeroed_tree_page(content: bytearray, generator: np.random.Generator) -> None:
    """Fills a page of a tree, or a meta page, with zeros."""
    page = _any_of(generator, pages(content, 1, 2, 8))
    content[page : page + PAGE] = bytes(PAGE)


def garbage(content: bytearray, generator: np.random.Generator) -> None:
    """Fills a page with random bytes."""
    page = _any_of(generator, np.arange(len(content) // PAGE))
    content[page : page + PAGE] = generator.bytes(PAGE)


def another_page(content: bytearray, generator: np.random.Generator) -> None:
    """Writes one page in place of another."""
    one, other = (_any_of(generator, np.arange(len(content) // PAGE)) for _ in range(2))
    content[one : one + PAGE] = content[other : other + PAGE]


KINDS: tuple[Damage, ...] = (
    in_meta_page,
    in_tree_page,
    in_head_of_tree_page,
    in_head_of_value,
    in_an_entry,
    truncated,
    zeroed,
    zeroed_tree_page,
    garbage,
    another_page,
)


# ---- trials ----


def trial(number: int, whole: Path, folder: Path) -> str:
    """Damages a copy and reads it; returns an error message, or "" if all was right."""
    local = folder / f"trial-{number}"
    shutil.copytree(whole, local)
    content = bytearray(data_file(local).read_bytes())
    KINDS[number % len(KINDS)](content, np.random.default_rng([number, 7]))
    data_file(local).write_bytes(bytes(content))
    try:
        read_all(local)
        again = read_all(local)
        return f"{again} samples were not kept" if again > 1 else ""
    except Exception:
        return traceback.format_exc(limit=-3)
    finally:
        shutil.rmtree(local)


def run(numbers: list[int]) -> dict[int, str]:
    """Runs trials in subprocesses; returns error messages by the number of the trial."""
    wrong = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        read_all(folder / "whole")
        left = list(numbers)
        while left:
            command = [sys.executable, "-m", "tests.datacache.damage", "--within", name, *map(str, left)]
            ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=LIMIT)
            told = [json.loads(line) for line in ended.stdout.splitlines()]
            wrong |= {number: fault for number, fault in told if fault}
            if len(told) < len(left):
                number = left[len(told)]
                wrong[number] = f"the process ended with {ended.returncode}: {ended.stderr[-2000:]}"
                shutil.rmtree(folder / f"trial-{number}", ignore_errors=True)
            left = left[len(told) + 1 :]
    return {number: f"{KINDS[number % len(KINDS)].__name__}: {fault}" for number, fault in wrong.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Damages LMDB files, and reads them.")
    parser.add_argument("--within", type=Path, help="run the trials of these numbers in this folder, in this process")
    parser.add_argument("numbers", nargs="+", type=int, help="how many trials; with --within, which")
    options = parser.parse_args()
    if options.within is not None:
        for number in options.numbers:
            print(json.dumps([number, trial(number, options.within / "whole", options.within)]), flush=True)
        return 0
    count = options.numbers[0]
    wrong: dict[int, str] = {}
    for begin in range(0, count, 100):
        wrong |= run(list(range(begin, min(begin + 100, count))))
        print(f"{min(begin + 100, count)} trials, {len(wrong)} failures", flush=True)
    for number, fault in wrong.items():
        print(f"trial {number}, {fault}")
    return int(bool(wrong))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

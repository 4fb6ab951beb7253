"""Shows and manages the contents of the cache: python -m datacache plan | warm | verify | stats | clear.

    python -m datacache plan --images /data/train --local-dir /scratch/cache --decode mycode:decode
    python -m datacache warm --images /data/train --local-dir /scratch/cache

The source is named by --images (a folder for each class, numbered in the order of their names or as --classes says),
--tfrecords, --tar (in the layout of WebDataset) or --files (any files, each a sample); each is a directory, or an
address such as s3://bucket/train, whose store takes its options from the environment. `plan` lists it and forecasts
what the levels take. `warm` fills the local disk before a run. Both need --shape if decoded samples vary in shape, as
DataCache does: --shape None,None,3 for colour images of any size. `verify` looks for changes of the source, and with
--records for damaged records; it exits with status 1 if it finds any. `stats` shows where samples came from and what
readers waited for. `clear` removes what is kept of the source, and memory that killed processes have left.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import decimal
import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datacache import counters, disk, files, fingerprint, memory, slab
from datacache.any_files import Files
from datacache.cache import DataCache
from datacache.counters import Counters
from datacache.disk import DiskLevel
from datacache.levels import DamagedRecordError, Nowhere
from datacache.progress import Bar
from datacache.reader import Decoder, ReadThrough
from datacache.sources import ImageFolder, Source, TFRecords
from datacache.store import Store, directory_of, remove_unused
from datacache.tar import Tar
from datacache.world import World
from quiet_tensorflow import quiet

_LOOKED_AT = 32  # samples from which the size of all is estimated if it varies


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    options = _parser().parse_args(arguments)
    sys.path.insert(0, os.getcwd())  # as `python -m` does, so that --decode is found
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"datacache: {error}", file=sys.stderr)
        return 2


def plan(options: argparse.Namespace) -> int:
    """Lists the source and prints what the levels will take."""
    with _store(options) as store:
        listing, forecast = store.listing, store.forecast()
        _row("source", f"{len(listing):,} samples in {listing.file_count:,} files, {_size(listing.total_bytes)}")
        _row("local disk", f"{_size(forecast)} at most, {_free(store.directory)}")
        if options.decode is None:
            _row("memory", "unknown: pass --decode MODULE:FUNCTION to see")
            return 0
    with DataCache(
        _source(options), _function(options), options.local_dir, 0, world=World(), shape=options.shape
    ) as cache:
        each, needed = _forecast_memory(cache)
        _row("samples", f"{cache.elements}, {each}")
        _row("memory", f"{needed}, {_free(memory.DIRECTORY)}")
    return 0


def _forecast_memory(cache: DataCache) -> tuple[str, str]:
    """The size of a decoded sample, and of all; estimated from a few of them if their shapes vary."""
    if not cache.layout.varies:
        return f"{_size(cache.layout.size)} each", _size(slab.needed(len(cache), cache.layout.size))
    looked_at = np.linspace(0, len(cache) - 1, min(len(cache), _LOOKED_AT)).astype(int)
    mean = int(np.mean([cache.stored_bytes(int(index)) for index in looked_at]))
    needed = disk.forecast(np.full(len(cache), mean))
    return f"{_size(mean)} each on average over {len(looked_at)} samples", f"about {_size(needed)}"


def warm(options: argparse.Namespace) -> int:
    """Fills the local disk: with the source's bytes, and with decoded samples where a decode function is given."""
    with _store(options) as store:
        tally, bar = Counters(), Bar("reading")
        with contextlib.closing(store.open_source_level(options.disk_bytes)) as level:
            reader = _reader(store, level, tally)
            _each(options.workers, reader.fetch_encoded, len(store.listing), bar)
        tally.save(store.stats)
        lost = int(tally.numbers().get("not kept.disk", 0))
    if lost:
        print(f"{lost:,} samples did not fit: increase --disk-bytes, or free space on the disk.")
    if options.decode is not None:
        _warm_decoded(options)
    return 1 if lost else 0


def verify(options: argparse.Namespace) -> int:
    """Compares the source with its listing, and records with their checksums."""
    with _store(options) as store:
        bar, found = Bar("checking files"), 0
        for complaint in store.source.changes(store.listing, bar):
            found += 1
            print(complaint)
        bar.close()
        if options.records:
            found += _verify_records(store)
    if found and options.relist:
        with _store(options, relist=True) as store:
            print(f"Listed again: {len(store.listing):,} samples. Samples are read again from the source when wanted.")
            return 0
    print(f"{found:,} problems." if found else "Everything is as listed.")
    return 1 if found else 0


def stats(options: argparse.Namespace) -> int:
    """Prints what all processes together have counted, and what the levels hold."""
    if not (directory_of(_source(options), options.local_dir) / "manifest.json").exists():
        _, named = _named(options)
        raise FileNotFoundError(
            f"{options.local_dir} holds nothing of {named}: expected the directories that `plan`, `warm` or a run used."
        )
    with _store(options) as store:
        numbers = counters.total(store.stats)
        for level in ("memory", "peers", "decoded", "disk", "source"):
            samples, size = numbers.get(f"samples.{level}", 0), numbers.get(f"bytes.{level}", 0)
            _row(f"from {level}", f"{samples:,.0f} samples, {_size(int(size))}")
        if "served.samples" in numbers:
            served, size = numbers["served.samples"], numbers["served.bytes"]
            _row("served to peers", f"{served:,.0f} samples, {_size(int(size))}")
        for name in sorted(name for name in numbers if name.startswith("stalls.")):
            stage = name.removeprefix("stalls.")
            _row(f"waited for {stage}", f"{numbers[name]:,.0f} times, {numbers[f'seconds.{stage}']:.1f} s in all")
        for name in sorted(name for name in numbers if name.startswith(("damaged.", "not kept."))):
            _row(name.replace(".", " in "), f"{numbers[name]:,.0f}")
        for name, what in (("failures.peers", "peers left alone"), ("refused.peers", "peers refused")):
            if name in numbers:
                _row(what, f"{numbers[name]:,.0f} times")
        for path in _disk_levels(store):
            with contextlib.closing(_existing(store, path)) as kept:
                name = path.name.partition("-")[0]
                _row(f"{name} on disk", f"{kept.count():,} records, {_size(kept.used_bytes())}")
        for entry in store.quarantine.entries():
            print(f"sample {entry['index']} was damaged in {entry['level']}: {entry['reason']}")
    return 0


def clear(options: argparse.Namespace) -> int:
    """Removes what nobody uses."""
    in_use, levels = [], memory.directory()
    root = directory_of(_source(options), options.local_dir)
    if root.exists():
        with files.locked(root):
            in_use += remove_unused(root)
            if not in_use:
                shutil.rmtree(root)
    if levels.exists():
        with files.locked(levels):
            in_use += memory.sweep(levels)
    for path in in_use:
        print(f"{path} is in use and was kept.")
    return 1 if in_use else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m datacache", description="Looks after the cache of a source.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for run in (plan, warm, verify, stats, clear):
        command = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        source = command.add_mutually_exclusive_group(required=True)
        source.add_argument("--images", metavar="DIR", help="a folder of images for each class")
        source.add_argument("--tfrecords", metavar="DIR", help="TFRecord files")
        source.add_argument("--tar", metavar="DIR", help="tar files, in the layout of WebDataset")
        source.add_argument("--files", metavar="DIR", help="files, each of which is a sample")
        command.add_argument("--classes", type=_classes, metavar="NAMES", help=_classes.__doc__)
        command.add_argument("--pattern", help="of files' names: *.tfrecord* by default, *.tar, or **/* with --files")
        command.add_argument("--local-dir", metavar="DIR", required=True, help="on a disk of this machine")
        if run in (plan, warm):
            command.add_argument("--decode", metavar="MODULE:FUNCTION", help="from bytes to a sample")
            command.add_argument("--shape", type=_shape, help="of the arrays, None where it varies, e.g. None,None,3")
        if run is warm:
            command.add_argument("--disk-bytes", type=bytes_in, metavar="SIZE", help=bytes_in.__doc__)
            command.add_argument("--workers", type=int, default=16, help="threads that read")
        if run is verify:
            command.add_argument("--records", action="store_true", help="read all records and check them")
            command.add_argument("--relist", action="store_true", help="list the source again where it has changed")
    return parser


def _source(options: argparse.Namespace) -> Source:
    kind, path = _named(options)
    if kind == "images":
        return ImageFolder(path, classes=options.classes)
    if options.classes is not None:
        raise ValueError("Expected --classes with --images: other sources have no classes.")
    pattern = {} if options.pattern is None else {"pattern": options.pattern}
    kinds: dict[str, Callable[..., Source]] = {"tfrecords": TFRecords, "tar": Tar, "files": Files}
    return kinds[kind](path, **pattern)


def _named(options: argparse.Namespace) -> tuple[str, str]:
    """Which kind of source is named, and where it is."""
    kinds = ("images", "tfrecords", "tar", "files")
    return next((kind, path) for kind in kinds if (path := getattr(options, kind)) is not None)


@contextlib.contextmanager
def _store(options: argparse.Namespace, relist: bool = False) -> Iterator[Store]:
    bar = Bar("listing")
    store = Store(_source(options), options.local_dir, relist, bar)
    bar.close()
    with contextlib.closing(store):
        yield store


def _function(options: argparse.Namespace) -> Callable[..., Any]:
    module, colon, name = options.decode.partition(":")
    if not colon:
        raise ValueError(f"Expected --decode MODULE:FUNCTION, got {options.decode}.")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--decode {options.decode} cannot be found: {error}.") from error


def _shape(text: str) -> tuple[int | None, ...]:
    return tuple(None if each.strip() == "None" else int(each) for each in text.split(","))


def _classes(text: str) -> list[str]:
    """The class folders in the order of their numbers: names with commas between them, or @FILE with one a line."""
    if not text.startswith("@"):
        return [name.strip() for name in text.split(",")]
    try:
        return [name.strip() for name in Path(text[1:]).read_text().splitlines() if name.strip()]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error.strerror}.") from None


def bytes_in(text: str) -> int:
    """What each level on the local disk may take: bytes, or 40G (powers of 1000) or 40Gi (of 1024), as for numfmt."""
    parts = re.fullmatch(r"(\d+|\d+\.\d+(?=\s*[KMGTP]))\s*(?:([KMGTP])(i?))?B?", text.strip(), re.IGNORECASE)
    if parts is None:
        raise argparse.ArgumentTypeError(f"Expected bytes, such as 40000000000, 40G or 37.5GiB, got {text!r}.")
    number, unit, binary = parts.groups()
    power = " KMGTP".index((unit or " ").upper())
    return int(decimal.Decimal(number) * (1024 if binary else 1000) ** power)


def _reader(store: Store, level: Any, tally: Counters) -> ReadThrough:
    decoder = Decoder(lambda payload: payload)  # which is not asked for anything
    return store.read_through(decoder, Nowhere("memory"), Nowhere("decoded"), level, tally, range(0))


def _each(workers: int, work: Callable[[int], Any], count: int, bar: Bar) -> None:
    """Does a piece of work for every sample, on several threads; the first error ends it."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            for done, _ in enumerate(pool.map(work, range(count)), start=1):
                bar(done, count)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            bar.close()


def _warm_decoded(options: argparse.Namespace) -> None:
    bar, function = Bar("decoding"), _function(options)
    levels = {"memory_bytes": 0, "disk_bytes": options.disk_bytes, "keep_decoded": True, "shape": options.shape}
    with DataCache(_source(options), function, options.local_dir, world=World(), **levels) as cache:
        _each(options.workers, cache.fetch, len(cache), bar)
    print(f"Decoded by {options.decode}, fingerprint {fingerprint.of(function)}.")


def _verify_records(store: Store) -> int:
    found = 0
    for path in _disk_levels(store):
        bar = Bar(f"checking {path.name}")
        with contextlib.closing(_existing(store, path)) as level:
            for index in range(len(store.listing)):
                try:
                    level.get(index)
                except DamagedRecordError as damage:
                    found += 1
                    store.quarantine.note(path.name, index, str(damage))
                    print(f"{path}: sample {index} is damaged ({damage}); it was removed and will be read again.")
                    with store.locks.hold(index):
                        level.drop(index)
                bar(index + 1, len(store.listing))
        bar.close()
    return found


def _disk_levels(store: Store) -> list[Path]:
    return sorted(path.parent for path in store.directory.glob("*/data.mdb"))


def _existing(store: Store, path: Path) -> DiskLevel:
    with store.opening():
        return DiskLevel(path, files.read_json(path / "size.json"))


def _free(path: Path) -> str:
    device = os.statvfs(path)
    return f"{_size(device.f_bavail * device.f_frsize)} are free on {path}"


def _size(count: int | None) -> str:
    if count is None:
        return "an unknown number of bytes"
    number, units = float(count), iter(("bytes", "KB", "MB", "GB", "TB"))
    unit = next(units)
    while number >= 1000 and unit != "TB":
        number, unit = number / 1000, next(units)
    return f"{count} bytes" if unit == "bytes" else f"{number:.1f} {unit}"


def _row(name: str, text: str) -> None:
    print(f"{name:<28}{text}")


if __name__ == "__main__":
    quiet()
    sys.exit(main())

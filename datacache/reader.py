"""The read-through: each sample comes from the highest level that has it, and is kept in those above on its way.

    memory (decoded)  <-  peers  <-  local disk (decoded, if wanted)  <-  local disk (as in the source)  <-  source

Peers are asked in whole batches, by `Batches`; everything else is here. One process of a node fetches a sample while
the others wait for it. A record with a wrong checksum is removed and fetched again from below.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from datacache import files, nests, waiting
from datacache.counters import Counters
from datacache.elements import Elements
from datacache.errors import DecodeError
from datacache.files import IndexLocks
from datacache.layout import Layout, common
from datacache.levels import DamagedRecordError, Level, Quarantine, Record
from datacache.listing import NO_LABEL, Listing, label_of
from datacache.nests import Leaf
from datacache.signatures import takes
from datacache.sources import Source

_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class Fetched(NamedTuple):
    """A record, the level that it came from, and the seconds that each stage took."""

    record: Record
    origin: str
    seconds: dict[str, float]


class Decoder:
    """The user's function, with its results checked.

    Attributes:
        elements: what all samples are; None before the first.
        takes_key: whether the function gets the key of a sample.
    """

    def __init__(self, decode: Callable[..., Any], shape: Any = None):
        """Takes the function that maps a sample's bytes, and its key if it has such a parameter, to an element.

        Shapes are those of the element's parts (see `nests.parse_shapes`); without them all have those of the first.
        """
        self._decode, self._shape, self.takes_key = decode, shape, takes(decode, "key")
        self.elements: Elements | None = None

    @property
    def layout(self) -> Layout | None:
        """Of what levels keep; None before the first sample."""
        return None if self.elements is None else self.elements.layout

    def __call__(self, payload: Any, label: int, name: str, key: Any) -> Record:
        """Decodes what a source has opened of a sample; its label is the source's if the function returns none.

        Raises:
            DecodeError: if the function fails, or its result does not match the other samples.
        """
        try:
            made = self._decode(payload, key=key) if self.takes_key else self._decode(payload)
        except Exception as error:
            raise DecodeError(
                f"{name} cannot be decoded ({type(error).__name__}: {error}): remove or repair it, or let the decode "
                "function return a substitute."
            ) from error
        if self.elements is None:
            self.elements = self._like(made, label, name)
        return self._packed(made, label, name) if self.elements.packing else self._plain(made, label, name)

    def _like(self, made: Any, label: int, name: str) -> Elements:
        """What all samples are, if this is one."""
        if not nests.is_nested(self._shape or ()) and _is_plain(made):
            array = _array(made[0] if isinstance(made, tuple) else made, name)
            shape = array.shape if self._shape is None else self._shape
            return Elements(Leaf(array.dtype.name, shape), False, isinstance(made, tuple) or label != NO_LABEL)
        try:
            nest = nests.described(made)
        except nests.MismatchError as error:
            raise DecodeError(f"{name} is decoded to what cannot be kept: {error}") from None
        labelled = not isinstance(made, tuple) and label != NO_LABEL
        return Elements(nests.with_shapes(nest, self._shape), True, labelled)

    def _packed(self, made: Any, label: int, name: str) -> Record:
        assert self.elements is not None and self.elements.packing is not None
        try:
            packed = self.elements.packing.pack(made)
        except nests.MismatchError as error:
            raise DecodeError(f"{name} is not decoded to {self.elements}, {self._reason}: {error}") from None
        return Record(self.elements.layout.pack(packed), label)

    def _plain(self, made: Any, label: int, name: str) -> Record:
        assert self.elements is not None
        if isinstance(made, tuple):
            made, label = _parted(made, name)
            if not self.elements.labelled:
                raise DecodeError(f"Expected {self.elements} from decoding {name}, {self._reason}, got a label too.")
        elif label == NO_LABEL and self.elements.labelled:
            raise DecodeError(f"{name} has no label, {self._reason}: let the decode function return (array, label).")
        array, expected = _array(made, name), self.elements.layout
        layout = Layout(array.dtype.name, array.shape)
        if layout.dtype not in _DTYPES:
            raise DecodeError(f"Expected an array of numbers from decoding {name}, got {layout.dtype}.")
        if not expected.admits(layout):
            raise DecodeError(
                f"Expected {expected} from decoding {name}, {self._reason}, got {layout}: {_remedy(expected, layout)}."
            )
        return Record(expected.pack(array), label)

    @property
    def _reason(self) -> str:
        return "as other samples are" if self._shape is None else f"as shape={self._shape} says"


class ReadThrough:
    """Fetches samples through the levels; may be called by several threads at once.

    Attributes:
        memory: the highest level.
    """

    def __init__(
        self,
        source: Source,
        listing: Listing,
        decoder: Decoder,
        memory: Level,
        decoded: Level,
        disk: Level,
        locks: IndexLocks,
        quarantine: Quarantine,
        counters: Counters,
        owned: range,
    ):
        """Takes the levels from the source up, what all processes of the node share, and the memory's contents."""
        self._source, self._listing, self._decoder = source, listing, decoder
        self.memory, self._decoded, self._disk = memory, decoded, disk
        self._locks, self._quarantine, self._counters, self._owned = locks, quarantine, counters, owned

    def gather(self, indices: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Copies what is in memory, as `Level.gather`; call `fetch` for the rest."""
        found = self.memory.gather(indices, rows, labels)
        count = int(found.sum())
        if count:
            self._counters.add("samples.memory", count)
            self._counters.add("bytes.memory", count * rows.shape[1])
        return found

    def collect(self, indices: np.ndarray) -> list[Record | None]:
        """The records in memory, as `Level.collect`, and of the decoder's layout; call `fetch` for the rest."""
        records = [self._sample_or_none(record) for record in self.memory.collect(indices)]
        lengths = [len(record.payload) for record in records if record is not None]
        if lengths:
            self._counters.add("samples.memory", len(lengths))
            self._counters.add("bytes.memory", sum(lengths))
        return records

    def holds(self, indices: np.ndarray) -> np.ndarray:
        """Which samples (uint64 [n]) are in memory: bool [n]."""
        return self.memory.holds(indices)

    def fetch(self, index: int) -> Fetched:
        """A sample, decoded; afterwards it is in every level that has room for it.

        Raises:
            SourceChangedError, DamagedFileError: from the source.
            DecodeError: as `Decoder`.
        """
        seconds: dict[str, float] = {}
        started = time.perf_counter()
        with self._locks.hold(index):
            seconds["another process"] = time.perf_counter() - started
            record, origin = self._held(self.memory, index, self._decoder.layout), "memory"
            if record is None:
                record, origin = self._decoded_sample(index, seconds)
            self._counters.add(f"samples.{origin}")  # before others find it in memory: what they find is counted
            if origin != self.memory.name and index in self._owned:
                self._keep(self.memory, index, record)
        return Fetched(record, origin, seconds)

    def fetch_record(self, index: int) -> Record:
        """As `fetch`, the record alone."""
        return self.fetch(index).record

    def fetch_encoded(self, index: int) -> str:
        """Makes sure that a sample's bytes are on the local disk; returns where they came from."""
        with self._locks.hold(index):
            _, origin = self._encoded_sample(index, {})
        self._counters.add(f"samples.{origin}")
        return origin

    def _decoded_sample(self, index: int, seconds: dict[str, float]) -> tuple[Record, str]:
        with _timed(seconds, "disk"):
            kept = self._held(self._decoded, index, self._decoder.layout)
        if kept is not None:
            return kept, "decoded"
        encoded, origin = self._encoded_sample(index, seconds)
        with _timed(seconds, "decode"):
            key = self._source.key(self._listing, index) if self._decoder.takes_key else None
            record = self._decoder(self._source.opened(encoded.payload), encoded.label, self._name(index), key)
        self._keep(self._decoded, index, record)
        return record, origin

    def _encoded_sample(self, index: int, seconds: dict[str, float]) -> tuple[Record, str]:
        with _timed(seconds, "disk"):
            kept = self._held(self._disk, index, None)
        if kept is not None:
            return kept, "disk"
        with _timed(seconds, "source"), files.accessing(f"{self._name(index)} cannot be read"):
            payload = self._source.read(self._listing, index)
        self._counters.add("bytes.source", len(payload))
        record = Record(payload, int(self._listing.labels[index]))
        self._keep(self._disk, index, record)
        return record, "source"

    def _name(self, index: int) -> str:
        return self._source.describe(self._listing, index)

    def _held(self, level: Level, index: int, layout: Layout | None) -> Record | None:
        """The record of a level, if it is whole and, if a layout is given, of this layout."""
        try:
            record = level.get(index)
            if record is not None and layout is not None:
                layout.shape_in(record.payload)
        except DamagedRecordError as damage:
            self._quarantine.note(level.name, index, str(damage))
            self._counters.add(f"damaged.{level.name}")
            level.drop(index)
            return None
        if record is not None:
            self._counters.add(f"bytes.{level.name}", len(record.payload))
        return record

    def _sample_or_none(self, record: Record | None) -> Record | None:
        if record is None or self._decoder.layout is None:
            return None
        try:
            self._decoder.layout.shape_in(record.payload)
        except DamagedRecordError:  # `fetch` finds it too, and removes it
            return None
        return record

    def _keep(self, level: Level, index: int, record: Record) -> None:
        with waiting.told(f"room for sample {index} in the {level.name} level, where one process writes at a time"):
            kept = level.put(index, record)
        if not kept:
            self._counters.add(f"not kept.{level.name}")


def _is_plain(made: Any) -> bool:
    """Whether a decode function has returned an array of numbers that every level knows, or one and its label."""
    if isinstance(made, tuple):
        return len(made) == 2 and _is_integer(made[1]) and _is_plain(made[0]) and not isinstance(made[0], tuple)
    if isinstance(made, Mapping | str | bytes):
        return False
    with contextlib.suppress(Exception):  # what cannot be an array is refused, with its parts
        return np.asarray(made).dtype.newbyteorder("=").name in _DTYPES
    return False


def _is_integer(label: Any) -> bool:
    with contextlib.suppress(ValueError):
        label_of(label, "")
        return True
    return False


def _parted(made: tuple, name: str) -> tuple[Any, int]:
    """The array and the label that a decode function has returned for a sample."""
    if len(made) != 2:
        raise DecodeError(f"Expected (array, label) from decoding {name}, as for other samples, got {len(made)} parts.")
    try:
        return made[0], label_of(made[1], name)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _array(made: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(made, order="C")
    except Exception as error:  # such as a list of lists of unequal length; other objects may raise anything
        raise DecodeError(
            f"Expected an array of numbers from decoding {name}, got {type(made).__name__} that is none ({error}): "
            "return an array of one shape; pad rows of unequal length, or put them end to end."
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # a dtype's name does not tell its byte order


def _remedy(expected: Layout, layout: Layout) -> str:
    """What to do about a sample that does not match the others."""
    remedy = "let the decode function bring all to one shape"
    shape = common(expected.shape, layout.shape)
    if layout.dtype != expected.dtype:
        return f"{remedy} and dtype"
    return remedy if shape is None else f"{remedy}, or pass DataCache(shape={shape}), where it may vary"


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started

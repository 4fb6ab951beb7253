"""TFRecord files: the framing, read and written without TensorFlow.

A record is its length (uint64), the masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the data; all
little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from datacache.errors import DamagedFileError
from datacache.native import crc32c

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x78\x9c": "zlib", b"\x78\x01": "zlib", b"\x78\xda": "zlib"}


class Place(NamedTuple):
    """Where a record's data are in their file, in bytes."""

    offset: int
    length: int


def masked_crc(data: bytes) -> int:
    """The checksum as it is stored: rotated and shifted, so that a checksum of checksums is still useful."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def index(file: BinaryIO, name: str, size: int) -> Iterator[Place]:
    """Finds the records of a file by their headers: 12 bytes are read for each.

    Raises:
        DamagedFileError: if a header is cut off or has a wrong checksum, or a record extends beyond the end.
    """
    position = 0
    while position < size:
        file.seek(position)
        header = file.read(HEADER.size)
        length = _length(header, name, position)
        end = position + HEADER.size + length + FOOTER.size
        if end > size:
            raise DamagedFileError(
                f"{name} is truncated: its record at byte {position} ends at {end}, the file at {size}."
            )
        yield Place(position + HEADER.size, length)
        position = end


def check(data: bytes, footer: bytes, name: str, offset: int) -> None:
    """Checks a record's data against the checksum that follows it.

    Raises:
        DamagedFileError: if they differ.
    """
    if len(footer) != FOOTER.size or FOOTER.unpack(footer)[0] != masked_crc(data):
        raise DamagedFileError(f"{name} is damaged: the checksum of the record at byte {offset} is wrong.")


def write(path: Path, records: Iterable[bytes]) -> None:
    """Writes a file of records."""
    with open(path, "wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + FOOTER.pack(masked_crc(length)) + data + FOOTER.pack(masked_crc(data)))


def _length(header: bytes, name: str, position: int) -> int:
    if len(header) == HEADER.size:
        length, crc = HEADER.unpack(header)
        if crc == masked_crc(header[:8]):
            return length
    kind = _COMPRESSED.get(header[:2]) if position == 0 else None
    if kind:
        raise DamagedFileError(f"{name} looks like TFRecords compressed with {kind}: expected uncompressed ones.")
    raise DamagedFileError(f"{name} is not a TFRecord file, or is damaged: there is no record at byte {position}.")

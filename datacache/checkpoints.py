"""Checkpoint files of `training`: Keras weights, the position as an attribute, and at the end a digest of everything.

Readers of an HDF5 file ignore what comes after its end, so `keras.Model.load_weights` and every other reader can read a
checkpoint. A file without a digest is damaged.
Everything is assembled in memory and written at once: HDF5 cannot handle a disk that fills up.
"""

from __future__ import annotations

import io
import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import xxhash

from datacache import files

SUFFIX = ".weights.h5"
FORMAT = "datacache training 2"
_ATTRIBUTE = "datacache"
_PART = f".part{SUFFIX}"  # one name for all: what a killed process leaves is overwritten
_MAGIC = b"datacache digest"
_TRAILER = struct.Struct("<16sQ16s")  # magic, number of bytes before this, their 128-bit XXH3
_log = logging.getLogger(__name__)


class DamagedCheckpointError(Exception):
    """A checkpoint that differs from what was written."""


class WeightsFile(io.BytesIO):
    """An HDF5 file in memory; Keras checks how its name ends."""

    def __str__(self) -> str:
        return f"memory{SUFFIX}"


class Checkpoint(NamedTuple):
    """A whole checkpoint.

    Attributes:
        name: of the file.
        content: of the file.
        told: its description of itself.
    """

    name: str
    content: bytes
    told: dict[str, Any]


def write(path: Path, save_weights: Callable[[WeightsFile], Any], told: dict[str, Any]) -> None:
    """Writes a checkpoint, which gets its name when it is complete and on the disk.

    Args:
        path: ends in `SUFFIX`.
        save_weights: writes the model's weights into the given file.
        told: the checkpoint's description of itself, JSON-serialisable; its format is added.

    Raises:
        NoSpaceError: if the disk is full.
    """
    made, part = WeightsFile(), path.with_name(_PART)
    save_weights(made)
    with h5py.File(made, "r+") as file:
        file.attrs[_ATTRIBUTE] = json.dumps({"format": FORMAT, **told})
    content = made.getbuffer()
    try:
        with files.needing_room_for(path), open(part, "wb") as file:
            file.write(content)
            file.write(_TRAILER.pack(_MAGIC, len(content), _digest(content)))
        files.rename_whole(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises:
        DamagedCheckpointError: if it differs from what was written.
        OSError: if it cannot be read.
    """
    content = path.read_bytes()
    if not content[-_TRAILER.size :].startswith(_MAGIC):
        raise DamagedCheckpointError("the digest at its end is missing")
    _compare(content)
    try:
        with h5py.File(WeightsFile(content), "r") as file:
            told = json.loads(file.attrs[_ATTRIBUTE])
    except Exception as error:  # HDF5 raises many kinds for an invalid file
        raise DamagedCheckpointError(f"it is not a checkpoint: {error}") from None
    return Checkpoint(path.name, content, told)


def in_order(directory: Path) -> list[Path]:
    """The checkpoints of a directory, whole or not, from the oldest to the newest."""
    return sorted(directory.glob(f"epoch-*{SUFFIX}"))


def newest(directory: Path, check: Callable[[Path], None]) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest whole checkpoint; warns about damaged ones after it, by name.

    Args:
        directory: where checkpoints are.
        check: checks a checkpoint's companion files; raises `DamagedCheckpointError` if they are damaged.

    Returns:
        The checkpoint, None if none is whole, and the names of those that are not.
    """
    complaints: dict[str, str] = {}
    found = None
    for path in reversed(in_order(directory)):
        try:
            found = read(path)
            check(path)
            break
        except (DamagedCheckpointError, OSError) as error:
            found, complaints[path.name] = None, str(error)
    instead = f"training resumes from {found.name}" if found else "no older one is intact, so training starts over"
    for name, complaint in complaints.items():
        _log.warning("datacache: %s cannot be read (%s); %s.", directory / name, complaint, instead)
    return found, list(complaints)


def _compare(content: bytes) -> None:
    _, length, digest = _TRAILER.unpack(content[-_TRAILER.size :])
    if length != len(content) - _TRAILER.size:
        raise DamagedCheckpointError(f"it has {len(content) - _TRAILER.size} bytes before its digest, not {length}")
    if digest != _digest(memoryview(content)[:length]):
        raise DamagedCheckpointError("its digest is wrong")


def _digest(content: Any) -> bytes:
    return xxhash.xxh3_128(content).digest()

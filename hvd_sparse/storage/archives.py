"""Archives of arrays with a manifest in one file, in which every byte is checked before any is used.

An archive is a NumPy file (.npz) without pickled objects, which numpy.load(path, allow_pickle=False) can read: a JSON
manifest, the arrays, and a SHA-256 of both. Its last bytes, the comment of the zip file, hold the SHA-256 of all bytes
before them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hvd_sparse.storage import files

FORMAT = "hvd_sparse residuals 2"
_MANIFEST, _NAMES, _DIGEST = "manifest", "names", "sha256"
_SEAL, _HEXADECIMALS = b"hvd_sparse sha256 ", 64
_OTHER_DIGEST = "it is damaged: its checksum does not match"
_REMEDY = "use an older checkpoint"
Path = str | os.PathLike


class Archive(NamedTuple):
    """The content of an archive."""

    manifest: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write(path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Writes an archive under a temporary name, and renames it when all of it is on the disk.

    Args:
        path: the file, ending in .npz or in .npz and a suffix.
        manifest: JSON-serializable; its "format" is `FORMAT`.
        arrays: arrays of any shape and dtype that NumPy stores without pickling.

    Returns:
        The SHA-256 of the file.

    Raises:
        OSError: if it cannot be written; an earlier file of this name is then unchanged.
    """
    text = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    numbered = {f"array{number}": array for number, array in enumerate(arrays.values())}
    inner = np.frombuffer(bytes.fromhex(digest(manifest, arrays)), np.uint8)
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    with files.replacing(path) as file:
        np.savez(file, allow_pickle=False, **{_MANIFEST: text, _DIGEST: inner, _NAMES: names, **numbered})
        return _seal(file)


def read(path: Path) -> Archive:
    """The manifest and the arrays of an archive.

    Raises:
        OSError: if it is missing, incomplete or damaged; the message names the file.
    """
    with open(path, "rb") as file:
        try:
            sealed = _is_sealed(file)
            file.seek(0)
            manifest, arrays = _parsed(file)
        except Exception as error:  # a damaged byte can make the parsers raise almost any exception
            told = str(error) or type(error).__name__
            raise OSError(f"{path} is not an intact archive of residuals ({told}); {_REMEDY}.") from error
    if manifest.get("format") != FORMAT:
        raise OSError(
            f"{path} holds {manifest.get('format')!r}, expected {FORMAT!r}; {_REMEDY} or another version of hvd_sparse."
        )
    if not sealed:
        raise OSError(f"{path} is damaged: the checksum at its end is missing; {_REMEDY}.")
    return Archive(manifest, arrays)


def digest(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of a manifest and arrays, independent of the file they are in."""
    made = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name, array in arrays.items():
        made.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        made.update(np.ascontiguousarray(array).data)
    return made.hexdigest()


def _seal(file: BinaryIO) -> str:
    """Appends the SHA-256 of a zip file as its comment, after the comment's length; returns that of the whole file."""
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(_SEAL) + _HEXADECIMALS) + _SEAL)
    made = files.sha256_of_start(file, file.tell())
    seal = made.hexdigest().encode()
    file.write(seal)
    made.update(seal)
    return made.hexdigest()


def _is_sealed(file: BinaryIO) -> bool:
    """Whether a file ends with a seal; raises ValueError if the seal does not match its bytes."""
    length = file.seek(0, os.SEEK_END) - _HEXADECIMALS
    file.seek(max(0, length - len(_SEAL)))
    end = file.read()
    if not end.startswith(_SEAL):
        return False
    if files.sha256_of_start(file, length).hexdigest().encode() != end[len(_SEAL) :]:
        raise ValueError(_OTHER_DIGEST)
    return True


def _parsed(file: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The manifest and the arrays, after checking their SHA-256."""
    with np.load(file, allow_pickle=False) as archive:
        manifest = json.loads(archive[_MANIFEST].tobytes())
        names = json.loads(archive[_NAMES].tobytes())
        arrays = {name: archive[f"array{number}"] for number, name in enumerate(names)}
        expected = archive[_DIGEST].tobytes().hex()
    if not isinstance(manifest, dict):
        raise TypeError("its manifest is not a dictionary")
    if digest(manifest, arrays) != expected:
        raise ValueError(_OTHER_DIGEST)
    return manifest, arrays

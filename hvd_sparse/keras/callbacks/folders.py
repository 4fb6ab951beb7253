"""The folders of checkpoints: which are ours, which are intact, and which are no longer needed.

A checkpoint is a folder `epoch-0007`. Its marker is written last. It contains the SHA-256 of each file and of itself,
so that no byte of a checkpoint can change unnoticed. Nothing here is a collective.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import pathlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hvd_sparse.storage import files
from hvd_sparse.transport import first_rank

MARKER, WEIGHTS, RESIDUALS, SERVERS = "whole.json", "model.weights.h5", "residuals.npz", "servers.npz"
_FORMAT = "hvd_sparse checkpoint 2"
_NAME = re.compile(r"epoch-(\d{4,})")
_TEMPORARY = r"(\.\d+\.tmp)?"
_FIRST_WRITTEN = re.compile(rf"(residuals(-\d+)?|servers)\.npz(\.rank\d+of\d+)?{_TEMPORARY}")
_RESIDUALS = re.compile(r"residuals(-\d+)?\.npz")
_LAST_WRITTEN = re.compile(rf"(whole\.json|model\.weights\.h5){_TEMPORARY}|whole\.tmp")
Digest = Callable[[pathlib.Path], str]


class Checkpoint(NamedTuple):
    """A checkpoint as its marker describes it.

    Attributes:
        epoch: the epoch that had ended, which is the folder's number.
        ranks: the number of ranks that wrote it.
        digests: the SHA-256 of its files, by name.
        optimizers: for each distributed optimizer, where the model has it ("attribute"), the places of its variables
            among the trainable ones ("variables"), and the file with its residuals ("residuals"), or None for those
            that have not exchanged yet. Empty if an earlier version wrote it, with one optimizer.
    """

    epoch: int
    ranks: int
    digests: dict[str, str]
    optimizers: Sequence[Mapping[str, Any]] = ()

    @property
    def of_servers(self) -> bool:
        """Whether it is a checkpoint of sharded servers."""
        return any(name.startswith(SERVERS) for name in self.digests)

    def needed(self, folder: pathlib.Path) -> list[pathlib.Path]:
        """The files in its folder, besides the weights, that every rank needs to continue."""
        if not self.of_servers:
            return [folder / name for name in sorted({RESIDUALS, *filter(_RESIDUALS.fullmatch, self.digests)})]
        return [files.of_rank(folder / SERVERS, rank, self.ranks) for rank in range(self.ranks)]


def path(directory: pathlib.Path, epoch: int) -> pathlib.Path:
    """The folder of an epoch's checkpoint."""
    return directory / f"epoch-{epoch:04d}"


def epochs(directory: pathlib.Path) -> list[int]:
    """The numbers of the folders that are checkpoints, intact or not, ascending; other folders are ignored.

    Raises:
        OSError: if the directory exists and cannot be read.
    """
    if not directory.exists():
        return []
    matches = [_NAME.fullmatch(entry.name) for entry in directory.iterdir()]
    numbers = [int(match[1]) for match in matches if match]
    return sorted(number for number in set(numbers) if _is_ours(path(directory, number)))


def residuals_of(number: int) -> str:
    """The name of the file with the residuals of the optimizer with this number among those that have any."""
    return RESIDUALS if number == 0 else RESIDUALS.replace(".", f"-{number + 1}.")


def write_marker(
    folder: pathlib.Path,
    epoch: int,
    ranks: int,
    digests: Mapping[str, str],
    optimizers: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes the marker, which turns a folder into a checkpoint; for the arguments see `Checkpoint`."""
    told = {"format": _FORMAT, "epoch": epoch, "ranks": ranks, "files": dict(digests)}
    if optimizers:
        told["optimizers"] = list(optimizers)
    with files.replacing(folder / MARKER) as file:
        file.write(_signed(told))


def open_whole(directory: pathlib.Path, epoch: int, digest: Digest = files.sha256) -> Checkpoint:
    """The checkpoint of an epoch, after checking its marker, its weights, and its residual sums or servers' files.

    Args:
        directory: the directory with its folder.
        epoch: its number.
        digest: returns the SHA-256 of a file.

    Raises:
        OSError: if one of them is missing or damaged; the message names the file.
    """
    folder = path(directory, epoch)
    checkpoint = _read_marker(folder / MARKER, epoch)
    check_file(checkpoint, folder / WEIGHTS, digest)
    for file in checkpoint.needed(folder):
        check_file(checkpoint, file, digest)
    return checkpoint


def check_file(checkpoint: Checkpoint, file: pathlib.Path, digest: Digest = files.sha256) -> None:
    """Checks that a file of a checkpoint is as it was written.

    Raises:
        OSError: if it is not; the message names the file.
    """
    if not file.exists():
        raise OSError(f"{file} is missing")
    if digest(file) != checkpoint.digests.get(file.name):
        raise OSError(f"{file} is damaged: its checksum does not match")


def oldest_kept(directory: pathlib.Path, newest: int, keep: int) -> int:
    """The number of the oldest checkpoint to keep after `newest` was written; only intact ones count.

    It is 0 if fewer than `keep` are intact, as damaged ones may be all that is left to repair.
    """
    whole = [newest]
    with contextlib.suppress(OSError):
        for epoch in reversed([number for number in epochs(directory) if number < newest]):
            if len(whole) < keep and _counts(directory, epoch):
                whole.append(epoch)
    return whole[-1] if len(whole) >= keep else 0


def remove_before(directory: pathlib.Path, oldest: int) -> None:
    """Removes the checkpoints before an epoch, intact or not; other files in their folders stay."""
    try:
        for epoch in [number for number in epochs(directory) if number < oldest]:
            discard(path(directory, epoch))
    except OSError as error:
        warnings.warn(
            f"Older checkpoints in {directory} could not be removed: {error}", stacklevel=first_rank.users_level()
        )


def discard(folder: pathlib.Path) -> None:
    """Removes a checkpoint, its marker first, and its folder unless other files are in it."""
    for file in sorted(_own_files(folder), key=lambda file: file.name != MARKER):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # other files are in it, or another rank was faster
        folder.rmdir()


def _is_ours(folder: pathlib.Path) -> bool:
    """Whether a folder has a checkpoint, possibly with its writing interrupted: its marker, or files written first."""
    return any(file.name == MARKER or _FIRST_WRITTEN.fullmatch(file.name) for file in _own_files(folder))


def _own_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that we write, including those with temporary names."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another rank may be removing it
        names = [file.name for file in folder.iterdir()]
        return [folder / name for name in names if _FIRST_WRITTEN.fullmatch(name) or _LAST_WRITTEN.fullmatch(name)]
    return []


def _counts(directory: pathlib.Path, epoch: int) -> bool:
    """Whether a checkpoint is intact; its files are read again only if they were written since."""
    try:
        open_whole(directory, epoch, _digest_once)
    except OSError:
        return False
    return True


def _signed(told: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return json.dumps({**told, "sha256": digest}, sort_keys=True, indent=1).encode()


def _read_marker(marker: pathlib.Path, epoch: int) -> Checkpoint:
    if not marker.exists():
        raise OSError(f"{marker} is missing: writing the checkpoint was interrupted")
    text = marker.read_bytes()
    try:
        told = dict(json.loads(text))
        told.pop("sha256", None)
        if _signed(told) != text or told["format"] != _FORMAT:
            raise ValueError("its checksum does not match")
        if told["epoch"] != epoch:
            raise ValueError(f"it names epoch {told['epoch']}")
        digests = told["files"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise OSError(f"{marker} is damaged: {error}") from error
    return Checkpoint(epoch, told["ranks"], digests, told.get("optimizers", ()))


def _digest_once(file: pathlib.Path) -> str:
    """The SHA-256 of a file, which is remembered if it was read before."""
    status = file.stat()
    return _remembered(file, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=1024)
def _remembered(file: pathlib.Path, size: int, changed: int, number: int) -> str:
    return files.sha256(file)

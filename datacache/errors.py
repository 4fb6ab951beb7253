"""What can go wrong with the data, apart from wrong arguments: each message says what came and what to do."""

from __future__ import annotations


class SourceChangedError(OSError):
    """A file of the source is not what it was when the source was listed."""


class DamagedFileError(OSError):
    """A file of the source breaks the rules of its format."""


class DecodeError(ValueError):
    """A sample could not be decoded, or is not like the others."""


class NoSpaceError(OSError):
    """A level was asked for more than its device has."""


class UnsuitableFileSystemError(OSError):
    """A directory lies on a file system that a level cannot use."""

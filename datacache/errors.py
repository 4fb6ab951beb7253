"""The errors of the data, apart from invalid arguments: each message says what was found and what to do."""

from __future__ import annotations


class SourceChangedError(OSError):
    """A file of the source has changed since the source was listed."""


class DamagedFileError(OSError):
    """A file of the source violates its format."""


class DecodeError(ValueError):
    """A sample could not be decoded, or is not like the others."""


class NoSpaceError(OSError):
    """A level needs more bytes than its device has."""


class UnsuitableFileSystemError(OSError):
    """A directory is on a file system that a level cannot use."""

"""Stands in for the package filelock if it is not installed: a file lock as a context manager."""

import fcntl
import os


class FileLock:
    def __init__(self, path):
        self._path = path

    def __enter__(self):
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return self

    def __exit__(self, *fault):
        os.close(self._descriptor)

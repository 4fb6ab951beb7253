"""Files in any store that fsspec opens: S3, GCS, HTTP, archives, memory."""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeAlias

from datacache.errors import SourceChangedError
from datacache.folders import REMEDY, Folder, Found, require_length

StorageOptions: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "Content-MD5", "Digest", "CRC")
_TIMES = ("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created", "date_time")
_ENDPOINTS = ("endpoint_url", "host", "port", "account_name", "project")  # no secrets, and two stores differ by them


class RemoteFolder(Folder):
    """A directory, or what begins like one, in a store.

    A file is asked for once more after each read: only if its version is the one that was listed, the bytes count.
    """

    def __init__(self, address: str, options: StorageOptions = None):
        """Takes an address, as s3://bucket/train, and the options of fsspec's file system.

        Args:
            address: without a password or a query: what is kept on the disk contains it.
            options: as `storage_options` in pandas, or a function that returns them, which is called again when access
                is denied, in case that credentials have expired. They are kept nowhere.

        Raises:
            ImportError: if fsspec, or its package for this store, is not installed.
            ValueError: if the store is not known, or the address holds a password or a query.
        """
        if "?" in address or re.search(r"//[^/]*@", address):
            raise ValueError(
                f"Expected an address without password or query, got {_without_secrets(address)}: pass credentials as "
                "storage_options, which are kept nowhere."
            )
        self._address, self._options = address.rstrip("/"), options
        self._opened: tuple[int, Any, str] | None = None
        self._known: dict[str, Mapping[str, Any]] = {}  # what listing has told about files that nobody asked for yet
        self._folders: list[str] | None = None
        given = self._given()
        inner = {**given, **(given.get("client_kwargs") or {})}
        told = [f"{key}={inner[key]}" for key in _ENDPOINTS if inner.get(key) is not None]
        self.place = " ".join([self._address, *told])
        self._system()

    def shown(self, name: str = "") -> str:
        return f"{self._address}/{name}" if name else self._address

    def class_folders(self) -> list[str]:
        if self._folders is None:
            self._all_files()
        return self._folders or []

    def in_classes(self, suffixes: tuple[str, ...]) -> Iterator[str]:
        names = (name.split("/") for name in self._all_files())
        visible = sorted(parts for parts in names if not any(part.startswith(".") for part in parts))
        yield from ("/".join(parts) for parts in visible if len(parts) > 1 and parts[-1].lower().endswith(suffixes))

    def matching(self, pattern: str, what: str) -> list[str]:
        matches = re.compile(_translated(pattern)).fullmatch
        return [name for name in self._all_files() if matches(name)]

    def found(self, name: str) -> Found:
        told = self._known.pop(name, {})
        if told.get("size") is None:  # directories of web servers have names only
            return self._now(name)
        return Found(name, int(told["size"]), _stamp(told))

    def complaint(self, listed: Found) -> str | None:
        try:
            return self._difference(listed)
        except FileNotFoundError:
            return f"{self.shown(listed.name)} no longer exists."
        except (OSError, ValueError) as error:
            return str(error)

    def read(self, listed: Found, offset: int, length: int) -> bytes:
        try:
            with self._asking(listed.name):
                data = b""
                if length:
                    path, end = listed.name, offset + length
                    data = self._ask(lambda system, root: system.cat_file(f"{root}/{path}", start=offset, end=end))
            complaint = self._difference(listed)
        except FileNotFoundError:
            raise SourceChangedError(f"{self.shown(listed.name)} was listed, but no longer exists: {REMEDY}") from None
        if complaint:
            raise SourceChangedError(f"{complaint} To continue, {REMEDY}")
        require_length(self.shown(listed.name), offset, len(data), length)
        return data

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        with self._asking(name):
            file = self._ask(lambda system, root: system.open(f"{root}/{name}", "rb"))
            with file:
                yield file

    def _now(self, name: str) -> Found:
        """A file as the store describes it now, whatever was listed."""
        with self._asking(name):
            told = self._ask(lambda system, root: system.info(f"{root}/{name}"))
        if told.get("size") is None:
            raise ValueError(f"{self.shown(name)} has no size: its server must tell the length of a file.")
        return Found(name, int(told["size"]), _stamp(told))

    def _difference(self, listed: Found) -> str | None:
        """As `complaint`, but what cannot be asked is an error, which may pass."""
        now = self._now(listed.name)
        if now == listed:
            return None
        sizes = f"expected {listed.size} bytes, got {now.size} bytes"
        return f"{self.shown(listed.name)} has changed since it was listed: {sizes} of another version."

    def _all_files(self) -> list[str]:
        """The names of all files, in order."""
        with self._asking(""):
            found, root = self._ask(lambda system, root: (system.find(root, detail=True), root))
        if not found:
            raise FileNotFoundError(f"{self._address} has no files: check the address.")
        self._known = {path.removeprefix(root).lstrip("/"): told for path, told in found.items()}
        folders = {name.partition("/")[0] for name in self._known if "/" in name}
        self._folders = sorted(folder for folder in folders if not folder.startswith("."))
        return sorted(self._known)

    def _given(self) -> Mapping[str, Any]:
        return (self._options() if callable(self._options) else self._options) or {}

    def _system(self) -> tuple[Any, str]:
        """The file system and the path in it; its own for each process, as its threads are not there after a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), *self._open()
        return self._opened[1:]

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError:
            raise ImportError(
                f"{self._address} is opened by fsspec, which is not installed: `pip install fsspec`, and its package "
                "for this store, such as s3fs or gcsfs."
            ) from None
        uncached = {} if "::" in self._address else {"use_listings_cache": False}
        options = {"skip_instance_cache": True, **uncached, **self._given()}
        try:
            return fsspec.core.url_to_fs(self._address, **options)
        except (ImportError, ValueError) as error:  # no package for this store, or no such store
            raise type(error)(f"{self._address} cannot be opened by fsspec: {error}.") from None

    def _ask(self, question: Callable[[Any, str], Any]) -> Any:
        """What the file system answers; it is asked again with new credentials if the first ones are refused."""
        try:
            return question(*self._system())
        except PermissionError:
            if not callable(self._options):
                raise
            self._opened = None
            return question(*self._system())

    @contextlib.contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Turns the errors of many libraries into errors of the system, with the address and what to do."""
        shown = self.shown(name)
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{shown} does not exist: check the address.") from None
        except PermissionError as error:
            raise PermissionError(
                errno.EACCES, f"{shown} cannot be read ({error}): give this user access, or pass storage_options"
            ) from error
        except (SourceChangedError, ValueError):
            raise
        except Exception as error:
            raise OSError(
                errno.EIO,
                f"{shown} cannot be read ({type(error).__name__}: {error}): check the store and the network",
            ) from error


def _stamp(told: Mapping[str, Any]) -> int:
    """What a store tells about a file's version, or when it was last written, as `Found.stamp`."""
    version = next((told[key] for key in _VERSIONS if told.get(key)), None)
    time = next((told[key] for key in _TIMES if told.get(key)), None)
    if version is None and isinstance(time, datetime.datetime):
        return int(time.timestamp() * 1e9)
    if version is None and isinstance(time, int | float):
        return int(time * 1e9)
    digest = hashlib.sha256(str(time if version is None else version).encode()).digest()
    return -1 - (int.from_bytes(digest[:8]) >> 1)


def _without_secrets(address: str) -> str:
    return re.sub(r"\?.*", "?...", re.sub(r"//[^/]*@", "//...@", address))


def _translated(pattern: str) -> str:
    """The regular expression of a pattern of `pathlib.Path.glob`, for paths with "/"."""
    parts = pattern.split("/")
    made = [r"(?:[^/]+/)*" if part == "**" else _translated_part(part) + "/" for part in parts[:-1]]
    last = r".+" if parts[-1] == "**" else _translated_part(parts[-1])
    return "".join([*made, last])


def _translated_part(part: str) -> str:
    pieces = re.split(r"(\*+|\?|\[!?\]?[^\]]*\])", part)  # every other one is a wildcard
    wild = {"*": "[^/]*", "?": "[^/]", "[": None}
    return "".join(
        re.escape(piece) if number % 2 == 0 else wild[piece[0]] or "[" + piece[1:].replace("!", "^", piece[1] == "!")
        for number, piece in enumerate(pieces)
    )

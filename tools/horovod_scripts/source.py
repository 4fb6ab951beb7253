"""The source of Horovod's scripts: a checkout, or an archive of one; both are outside this repository."""

from __future__ import annotations

import pathlib
import re
import shutil
import tarfile
from collections.abc import Sequence


class Source:
    """Horovod's files in a folder: those of a checkout, or the contents of an archive (.tar, .tar.gz).

    Args:
        path: the checkout or archive.
        unpacked: an empty folder into which an archive is unpacked.
    """

    def __init__(self, path: pathlib.Path, unpacked: pathlib.Path):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist: pass a checkout of Horovod, or an archive of its sources.")
        self.root = path if path.is_dir() else _unpack(path, unpacked)
        about = self.root / "horovod" / "__init__.py"
        found = re.search(r"__version__ = ['\"]([^'\"]+)", about.read_text()) if about.is_file() else None
        if found is None:
            raise ValueError(
                f"{path} is not a checkout or archive of Horovod: it has no horovod/__init__.py with a version."
            )
        self.version = found[1]

    def has(self, path: str) -> bool:
        """Whether there is such a file; the archive from which wheels are built has neither examples nor tests."""
        return (self.root / path).is_file()

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf8")

    def copy_tests(self, folder: pathlib.Path) -> None:
        """Copies the modules that the tests import from each other."""
        for name in ("utils", "parallel"):
            shutil.copytree(self.root / "test" / name, folder / "test" / name, dirs_exist_ok=True)
        shutil.copy(self.root / "test" / "conftest.py", folder / "test" / "conftest.py")


def _unpack(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    with tarfile.open(path) as archive:
        wanted: Sequence[tarfile.TarInfo] = [member for member in archive if "third_party" not in member.name]
        archive.extractall(folder, wanted, filter="data")
    (only, *others) = list(folder.iterdir())
    return only if not others else folder

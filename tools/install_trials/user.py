"""An ordinary user: runs commands in a home of their own, without the rights of whoever started the trials."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path

ORDINARY = "nobody"  # who runs the commands if root started the trials
LIMIT = 3600.0  # seconds of a command; a slow machine compiles for minutes
# Where packages come from is a setting of this machine; all else of its environment is left out.
KEPT = ("PATH", "LANG", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
KEPT += ("HVD_SPARSE_CACHE",)  # whoever sets it has a wheel of Horovod, and will not wait for another


class CommandError(Exception):
    """A command that failed, with the end of what it printed."""


class User:
    """Who runs the commands.

    Args:
        home: a folder, which is handed over.
    """

    def __init__(self, home: Path):
        self._account = pwd.getpwnam(ORDINARY) if os.getuid() == 0 else None
        kept = {name: value for name, value in os.environ.items() if name.upper() in KEPT or name.startswith("PIP_")}
        self._environment = {**kept, "HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "2"}
        self.own(home)

    def own(self, folder: Path) -> None:
        """Hands over a folder and all that is in it."""
        if self._account:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def can_run(self, python: Path) -> bool:
        """Whether this user may run an interpreter, which can be in a home that is closed to others."""
        try:
            return self.attempt(python, "-V", folder=Path("/"))[0] == 0
        except PermissionError:
            return False

    def run(self, *command: str | Path, folder: Path) -> str:
        """What a command prints.

        Raises:
            CommandError: if it fails.
        """
        status, printed = self.attempt(*command, folder=folder)
        if status:
            raise CommandError(f"{' '.join(map(str, command))} ended with {status}:\n{printed[-2000:]}")
        return printed

    def attempt(self, *command: str | Path, folder: Path) -> tuple[int, str]:
        """The exit status of a command, and what it prints, errors included."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            **self._rights(),
        )
        return done.returncode, done.stdout

    def _rights(self) -> dict[str, int | Sequence[int]]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

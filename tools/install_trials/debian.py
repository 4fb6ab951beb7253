"""A clean Debian in a folder, made by debootstrap, with mounts and processes of its own that end with its maker.

However the maker ends, the guard sees its input closed: it ends the first process in the Debian, with which the kernel
ends all others and drops the mounts, and then removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.install_trials.user import KEPT, CommandError

MIRROR = "http://deb.debian.org/debian"
USER = "ordinary"
HOME = f"/home/{USER}"
LIMIT = 3600.0  # seconds of a command
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A shell that says which process it is to the machine outside, and waits until its input is closed.
KEEPER = "read -r number rest </proc/self/stat; echo $number; exec cat >/dev/null"
GUARD = """
trap '' INT TERM HUP
unshare --mount --propagation private --pid --fork --kill-child bash -c "$1"
rm -rf --one-file-system "$0"
"""


class Host:
    """Where commands run in a Debian: by default on the network of this machine.

    Args:
        root: the folder that is the Debian's root.
        entered: the command that a command is put behind to run with its mounts, processes and network.
    """

    def __init__(self, root: Path, entered: Sequence[str]):
        self.root, self.entered = root, list(entered)

    def command(self, script: str, user: str, folder: str) -> list[str]:
        """A command that runs lines of a shell, as somebody, in a folder of the Debian."""
        home = "/root" if user == "root" else HOME
        kept = [f"{name}={value}" for name, value in os.environ.items() if _is_kept(name)]
        variables = ["env", "-i", f"PATH={SEARCHED}", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8", *kept]
        lines = f"set -eo pipefail\ncd {folder}\n{script}"
        return [*self.entered, "chroot", f"--userspec={user}:{user}", str(self.root), *variables, "bash", "-c", lines]

    def run(self, script: str, user: str = USER, folder: str = HOME) -> str:
        """What lines of a shell print, errors included.

        Raises:
            CommandError: if they fail.
        """
        printed: list[str] = []
        status = self.watch(script, printed.append, user, folder)
        if status:
            raise CommandError(f"{script}\nended with {status}:\n{''.join(printed)[-3000:]}")
        return "".join(printed)

    def watch(self, script: str, seen: Callable[[str], object], user: str = USER, folder: str = HOME) -> int:
        """Hands each line that is printed to `seen`; returns the exit status."""
        command = self.command(script, user, folder)
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                seen(line)
            return running.wait(LIMIT)


class Debian(Host):
    """A release of Debian for the duration of a `with` block, with an ordinary user.

    Args:
        root: a folder that does not exist yet; it is removed afterwards.
        suite: the name of the release, such as trixie.
    """

    def __init__(self, root: Path, suite: str):
        super().__init__(root, ())
        self.suite = suite
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Debian:
        self.root.mkdir(parents=True)
        number = keep(["bash", "-c", GUARD, str(self.root), KEEPER], self._cleanup)
        self.entered = ["nsenter", "--target", number, "--mount", "--pid", "--"]
        try:
            self._make()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def processes(self) -> dict[int, str]:
        """The command lines of all processes that run here, by their numbers outside."""
        own = os.readlink(f"/proc/{self.entered[2]}/ns/pid")
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if os.readlink(place / "ns" / "pid") == own:
                    found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
        return found

    def _make(self) -> None:
        self._outside("debootstrap", "--variant=minbase", self.suite, str(self.root), MIRROR)
        for kind, options, place in (
            ("proc", "nosuid", "proc"),
            ("sysfs", "ro", "sys"),
            ("tmpfs", "mode=1777", "dev/shm"),
        ):
            (self.root / place).mkdir(exist_ok=True)
            self._outside("mount", "-t", kind, "-o", options, kind, str(self.root / place))
        for name in filter(_is_kept, os.environ):  # such as certificates of this machine's network
            path = Path(os.environ[name])
            if path.is_absolute() and path.is_file():
                inside = self.root / path.relative_to("/")
                inside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, inside)
        self.run(f"useradd --create-home --shell /bin/bash {USER}", user="root", folder="/")

    def _outside(self, *command: str) -> None:
        """Runs a command of this machine with the mounts and processes of the Debian."""
        done = subprocess.run([*self.entered, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise CommandError(
                f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
            )


def keep(command: Sequence[str], cleanup: contextlib.ExitStack) -> str:
    """Starts a keeper, which ends when the stack is closed or this process ends; returns its number."""
    keeper = subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    cleanup.callback(keeper.wait)
    cleanup.callback(keeper.stdin.close)
    number = keeper.stdout.readline().strip()
    if not number:
        raise CommandError("No namespaces could be made: run it as root.")
    return number


def unavailable() -> str | None:
    """The reason why no Debian can be made here, with the remedy; None if one can."""
    if os.geteuid() != 0:
        return "debootstrap needs root: run it as root or with sudo (what is tried runs as an ordinary user)."
    missing = [command for command in ("debootstrap", "ip", "nsenter", "unshare") if shutil.which(command) is None]
    if missing:
        return f"{' and '.join(missing)} missing: install the packages debootstrap, iproute2 and util-linux."
    return None


def _is_kept(name: str) -> bool:
    return name not in ("PATH", "LANG", "TMPDIR") and (name.upper() in KEPT or name.startswith("PIP_"))

"""A system in a folder, such as a clean Debian, with mounts and processes of its own that end with its maker.

However the maker ends, the guard sees its input closed: it ends the first process in the system, with which the kernel
ends all others and drops the mounts, and then removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from tools.install_trials.user import KEPT, CommandError

MIRROR = "http://deb.debian.org/debian"
USER = "ordinary"
HOME = f"/home/{USER}"
LIMIT = 3600.0  # seconds of a command
COPIES = "/var/lib/of-this-machine"
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A shell that says which process it is to the machine outside, and waits until its input is closed.
KEEPER = "read -r number rest </proc/self/stat; echo $number; exec cat >/dev/null"
GUARD = """
trap '' INT TERM HUP
unshare --mount --propagation private --pid --fork --kill-child bash -c "$1"
rm -rf --one-file-system "$0"
"""


class Host:
    """Where commands of a system run, and on which network.

    Args:
        root: the folder that is the system's root.
        entered: the command that a command is put behind to run with its mounts, processes and network.
    """

    def __init__(self, root: Path, entered: Sequence[str]):
        self.root, self.entered = root, list(entered)

    def command(self, script: str, user: str, folder: str) -> list[str]:
        """A command that runs lines of a shell, as somebody, in a folder of the system."""
        home = "/root" if user == "root" else HOME
        kept = [f"{name}={inside(name, value)}" for name, value in passed_on()]
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
            try:
                for line in running.stdout:
                    seen(line)
                return running.wait(LIMIT)
            except BaseException:
                running.kill()  # what it has started inside ends with the system
                raise


class System(Host):
    """A system on the network of this machine, for the duration of a `with` block.

    Args:
        root: a folder that does not exist yet; it is removed afterwards.
    """

    def __init__(self, root: Path):
        super().__init__(root, ())
        self._cleanup = contextlib.ExitStack()

    def fill(self) -> None:
        """Puts the files of the system into its folder."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True)
        number = keep(["bash", "-c", GUARD, str(self.root), KEEPER], self._cleanup)
        self.entered = ["nsenter", "--target", number, "--mount", "--pid", "--"]
        try:
            self.fill()
            self._mount()
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

    def outside(self, *command: str) -> None:
        """Runs a command of this machine with the mounts and processes of the system."""
        done = subprocess.run([*self.entered, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            printed = (done.stdout + done.stderr)[-2000:]
            raise CommandError(f"{' '.join(command)} ended with {done.returncode}:\n{printed}")

    def _mount(self) -> None:
        for kind, options, place in (
            ("proc", "nosuid", "proc"),
            ("sysfs", "ro", "sys"),
            ("tmpfs", "mode=1777", "dev/shm"),
        ):
            (self.root / place).mkdir(parents=True, exist_ok=True)
            self.outside("mount", "-t", kind, "-o", options, kind, str(self.root / place))
        for name, value in passed_on():
            copy = self.root / inside(name, value)[1:]
            if Path(value).is_file():  # such as certificates of this machine's network
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(value, copy)


class Debian(System):
    """A release of Debian as debootstrap makes it, with an ordinary user.

    Args:
        root: as for `System`.
        suite: the name of the release, such as trixie.
        original: a folder that debootstrap has filled, which is copied; by default it fills this one.
    """

    def __init__(self, root: Path, suite: str, original: Path | None = None):
        super().__init__(root)
        self.suite, self.original = suite, original

    def fill(self) -> None:
        if self.original:
            self.outside("cp", "-a", f"{self.original}/.", str(self.root))
        else:
            self.outside("debootstrap", "--variant=minbase", self.suite, str(self.root), MIRROR)
        self.run(f"useradd --create-home --shell /bin/bash {USER}", user="root", folder="/")
        # As Debian's installer does; Gloo asks for the address of the host's own name.
        self.run(f"printf '%s\\n' '127.0.0.1 localhost' '127.0.1.1 {socket.gethostname()}' >/etc/hosts", "root", "/")


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


def unavailable(*more: str) -> str | None:
    """The reason why no system can be made here, with the remedy; None if one can.

    Args:
        more: commands that are needed besides, each of a package of its name.
    """
    if os.geteuid() != 0:
        return "debootstrap needs root: run it as root or with sudo (what is tried runs as an ordinary user)."
    packages = {"debootstrap": "debootstrap", "ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
    packages |= dict(zip(more, more, strict=True))
    missing = [package for command, package in packages.items() if shutil.which(command) is None]
    return f"Install the packages {' and '.join(missing)} first." if missing else None


def passed_on() -> list[tuple[str, str]]:
    """The variables of this machine that say where packages come from, which a system needs too."""
    return [(name, value) for name, value in sorted(os.environ.items()) if _is_kept(name)]


def inside(name: str, value: str) -> str:
    """What one of these variables is in a system: if it names a file, a copy that no package replaces."""
    return f"{COPIES}/{name}" if Path(value).is_file() else value


def _is_kept(name: str) -> bool:
    return name not in ("PATH", "LANG", "TMPDIR") and (name.upper() in KEPT or name.startswith("PIP_"))

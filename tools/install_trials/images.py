"""Builds docker/Dockerfile with buildah, and starts training on two of its hosts as the MPI operator does.

    python3 -m tools.install_trials.images                     # what is in the last commit
    python3 -m tools.install_trials.images --revision HEAD --cache ~/.cache/hvd_sparse

The Dockerfile is built as it stands, but for its first image: debootstrap makes a Debian of that name, so that no
registry is asked. --cache names a folder for Horovod's wheel, which is then not built again. Needs root, debootstrap
and buildah; images and what they are made of are in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.install_trials.chroots import ROOT, require, step
from tools.install_trials.hosts import NAMES, two_hosts
from tools.install_trials.systems import Debian, System, inside, passed_on, unavailable
from tools.install_trials.user import CommandError

TEMPLATE = ROOT / "examples" / "launch" / "mpijob.yaml"
DOCKERFILE = "docker/Dockerfile"
SUITE = "trixie"
BASE = f"docker.io/library/debian:{SUITE}-slim"
HOSTFILE = "/etc/mpi/hostfile"
TRAIN = f"horovodrun -np 2 --hostfile {HOSTFILE} --gloo python examples/keras_digits.py --epochs 2"


class Image(System):
    """The files of an image, as a system."""

    def __init__(self, root: Path, buildah: Buildah, name: str):
        super().__init__(root)
        self.buildah, self.name = buildah, name

    def fill(self) -> None:
        container = self.buildah.run("from", "--pull-never", self.name).strip()
        mounted = self.buildah.run("mount", container).strip()
        subprocess.run(["cp", "-a", f"{mounted}/.", self.root], check=True)


class Buildah:
    """buildah with storage of its own."""

    def __init__(self, storage: Path):
        self._command = ["buildah", "--storage-driver", "vfs", "--root", str(storage / "root")]
        self._command += ["--runroot", str(storage / "run")]

    def run(self, *words: str | Path, folder: Path = ROOT) -> str:
        done = subprocess.run([*self._command, *words], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise CommandError(f"buildah {' '.join(map(str, words))}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout


def main() -> int:
    """Builds and tries the image; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--revision", default="HEAD", help="the commit (default: %(default)s)")
    parser.add_argument("--cache", type=Path, help="a folder for Horovod's wheel (default: none)")
    parser.add_argument("--original", type=Path, help=f"a {SUITE} that debootstrap has filled, to be copied")
    parser.add_argument("--folder", help="where it is built (default: a temporary folder)")
    options = parser.parse_args()
    reason = unavailable("buildah")
    if reason is not None:
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="images-", dir=options.folder) as folder:
        try:
            _try(Path(folder), options.revision, options.cache, options.original)
        except (AssertionError, CommandError) as error:
            print(f"  FAILED  {error}", flush=True)
            return 1
    return 0


def _try(folder: Path, revision: str, cache: Path | None, original: Path | None) -> None:
    buildah = Buildah(folder / "storage")
    with step("debootstrap"), Debian(folder / "debian", SUITE, original) as debian:
        _commit(buildah, debian.root)
    sources = folder / "sources"
    sources.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", sources], input=archive, check=True)
    name = named_image()
    with step(f"{DOCKERFILE} as {name}"):
        kept, volumes = [], []
        for variable, value in passed_on():
            kept += ["--env", f"{variable}={inside(variable, value)}"]
            if os.path.isfile(value):
                volumes += ["--volume", f"{value}:{inside(variable, value)}:ro"]
        if cache:
            volumes += ["--volume", f"{cache.resolve()}:/root/.cache/hvd_sparse"]
        options = ["--isolation", "chroot", "--pull-never", "--layers=false", *kept, *volumes]
        buildah.run("bud", *options, "-f", DOCKERFILE, "-t", name, ".", folder=sources)
    with step("training on two hosts of it"), Image(folder / "image", buildah, name) as image:
        _train(image)


def _commit(buildah: Buildah, root: Path) -> None:
    container = buildah.run("from", "scratch").strip()
    buildah.run("add", "--quiet", container, str(root), "/")
    buildah.run("commit", "--quiet", container, BASE)
    buildah.run("rm", container)


def _train(image: Image) -> None:
    hostfile = "".join(f"{name} slots=1\\n" for name in NAMES)
    image.run(f"mkdir -p /etc/mpi && printf '{hostfile}' >{HOSTFILE}", user="root", folder="/")
    with two_hosts(image, user="root") as hosts:
        printed = hosts[0].run(f"export PATH=/opt/hvd_sparse/bin:$PATH\n{TRAIN}", user="root", folder="/work")
    require("test accuracy" in printed, printed)


def named_image() -> str:
    """The image of the template for the MPI operator."""
    names = set(re.findall(r"image: (\S+)", TEMPLATE.read_text()))
    require(len(names) == 1, f"{TEMPLATE} names {sorted(names)}")
    return names.pop()


if __name__ == "__main__":
    sys.exit(main())

"""The trials, in the order in which they run on one environment: each raises an error if it fails."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.install_trials.user import User

DIGITS = ("--epochs", "2")


class Place(NamedTuple):
    """Where the trials of one Python take place.

    Attributes:
        python: the interpreter that environments are made with.
        sources: a copy of the commit, as from `git clone`.
        environment: of the user, empty at first.
        elsewhere: an empty folder.
    """

    user: User
    python: Path
    sources: Path
    environment: Path
    elsewhere: Path

    def run(self, *command: str | Path, folder: Path | None = None) -> str:
        return self.user.run(*command, folder=folder or self.sources)

    @property
    def own(self) -> Path:
        """The interpreter of the environment."""
        return self.environment / "bin" / "python"

    def refused(self, *command: str | Path) -> str:
        """What a command prints that must fail."""
        status, printed = self.user.attempt(*command, folder=self.sources)
        _require(status != 0, f"{command} did not fail: {printed}")
        return printed


def an_empty_environment(place: Place) -> None:
    place.run(place.python, "-m", "venv", place.environment)


def make_install(place: Place) -> None:
    place.run("make", "install", f"PYTHON={place.own}")


def an_example_by_its_path(place: Place) -> None:
    printed = place.run(place.own, "examples/keras_digits.py", *DIGITS)
    _require("test accuracy" in printed, printed)


def an_example_on_two_ranks(place: Place) -> None:
    launcher = place.environment / "bin" / "horovodrun"
    printed = place.run(launcher, "-np", "2", place.own, "-m", "examples.keras_digits", *DIGITS)
    _require("test accuracy" in printed, printed)


def an_example_without_its_packages(place: Place) -> None:
    place.run(place.own, "-m", "pip", "uninstall", "--yes", "scikit-learn")
    printed = place.refused(place.own, "examples/keras_digits.py", *DIGITS)
    _require("This example uses scikit-learn" in printed, printed)


def a_folder_that_is_not_compiled_says_so(place: Place) -> None:
    printed = place.refused(place.own, "-c", "import hvd_sparse")
    _require("are not compiled" in printed and "hvd_sparse is installed in" in printed, printed)


def a_wheel_of_a_used_checkout(place: Place) -> None:
    """What was deleted since the last build is not in it, and it is for each Python."""
    for old in place.sources.glob("build/lib*"):
        _plant(place, old / "hvd_sparse" / "deleted_since.py")
    _plant(place, place.sources / "build" / "lib" / "hvd_sparse" / "deleted_since.py")
    place.run(place.own, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", place.elsewhere, ".")
    (wheel,) = place.elsewhere.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    _require("hvd_sparse/_ops.so" in names and "hvd_sparse/deleted_since.py" not in names, str(names))
    _require("-py3-none-" in wheel.name, wheel.name)


def a_source_archive(place: Place) -> None:
    """It has no tests; it installs, and works away from the sources."""
    builder = place.elsewhere / "builder"
    place.run(place.python, "-m", "venv", builder)
    place.run(builder / "bin" / "pip", "install", "--quiet", "build")
    place.run(builder / "bin" / "python", "-m", "build", "--sdist", "--outdir", place.elsewhere)
    (archive,) = place.elsewhere.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [Path(*Path(name).parts[1:]) for name in opened.getnames()]
    strays = [str(name) for name in names if name.parts[:1] == ("tests",)]
    _require(not strays, f"these are in the source archive: {strays}")
    _require(Path("tools/horovod/build_wheel.sh") in names, "build_wheel.sh is not in the source archive")
    place.run(place.own, "-m", "pip", "install", "--force-reinstall", "--no-deps", archive)
    used = "import hvd_sparse as hvd; hvd.init(); print(hvd.ops.topk([1.0, -3.0], 1)[0].numpy())"
    _require("[-3.]" in place.run(place.own, "-c", used, folder=place.elsewhere), "the operations do not run")


def an_older_tensorflow(place: Place) -> None:
    place.run(place.own, "-m", "pip", "install", "--no-deps", "tensorflow-cpu==2.20.0")
    printed = place.refused("make", "install", f"PYTHON={place.own}")
    _require("2.21" in printed and "2.20.0" in printed, printed)


def make_setup(place: Place) -> None:
    """What it makes runs, in a folder whose name has a space."""
    place.run("make", "setup", f"PYTHON={place.python}")
    printed = place.run(place.sources / ".venv" / "bin" / "python", "examples/keras_digits.py", *DIGITS)
    _require("test accuracy" in printed, printed)


TRIALS: tuple[Callable[[Place], None], ...] = (
    an_empty_environment,
    make_install,
    an_example_by_its_path,
    an_example_on_two_ranks,
    a_folder_that_is_not_compiled_says_so,
    a_wheel_of_a_used_checkout,
    a_source_archive,
    an_example_without_its_packages,
    an_older_tensorflow,
    make_setup,
)


def _plant(place: Place, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    place.user.own(place.sources / "build")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise[-2000:])

"""Commands that print their own lines alone, and start sooner: TensorFlow's lines about itself are left out.

The commands of this repository, `python -m datacache` and `python -m hvd_sparse.planner` or `hvd_sparse.doctor` call
`quiet`; libraries do not, so that nothing changes for who imports them. A `TF_CPP_MIN_LOG_LEVEL` of your own wins: with
0 all is shown.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
PACKAGES = ("tensorflow", "keras")
# TensorFlow 2.21 prints these while it is imported, whatever the level, and has no setting that only hides them:
# TF_ENABLE_ONEDNN_OPTS=0 would compute with other kernels.
ABOUT_ITSELF = ("All log messages before absl::InitializeLog", "oneDNN custom operations are on")
# Keras imports these where they are installed, for pictures of data and for models as scikit-learn's estimators; that
# is a quarter of the processor time that TensorFlow's import takes.
NOT_NEEDED = ("matplotlib", "sklearn")


def quiet() -> None:
    """Hides what TensorFlow says of its own accord, here and in processes that are started from here. Hastens it."""
    level = os.environ.setdefault(LEVEL, "2")  # errors are shown
    _install(_Finder(contextlib.nullcontext if level == "0" else _without_lines_about_itself))


def hasten() -> None:
    """Has TensorFlow and Keras imported in less than half the processor time.

    What Keras imports and no command needs is left out. The garbage collector does not look through the hundred
    thousands of objects that are made and kept, neither meanwhile nor later, nor when the process ends.
    """
    _install(_Finder(contextlib.nullcontext))


def _install(finder: _Finder) -> None:
    if not any(name in sys.modules for name in PACKAGES):
        sys.meta_path.insert(0, finder)


class _Finder(MetaPathFinder):
    """Has the first import of TensorFlow or Keras, each of which imports the other, run as we want it."""

    def __init__(self, lines: Callable[[], contextlib.AbstractContextManager[None]]):
        """Takes what is done about the lines that are printed."""
        self._lines = lines

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in PACKAGES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Quietly(spec.loader, self._lines)
        return spec


class _Quietly(Loader):
    """A loader that lets another one run quietly; all but that is the other's."""

    def __init__(self, loader: Loader, lines: Callable[[], contextlib.AbstractContextManager[None]]):
        self._loader, self._lines = loader, lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self._lines(), _without_what_is_not_needed(), _without_garbage_collection():
            self._loader.exec_module(module)


@contextlib.contextmanager
def _without_what_is_not_needed() -> Iterator[None]:
    """Makes packages look as if they were not installed; afterwards they can be imported."""
    hidden: dict[str, Any] = {name: None for name in NOT_NEEDED if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Stops the collector, and afterwards has it leave alone all that there is."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@contextlib.contextmanager
def _without_lines_about_itself() -> Iterator[None]:
    """Leads the standard error, also that of C++, through a filter.

    The filter is a process of its own, so that the last words of a process that dies meanwhile are shown.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    words = [word for line in ABOUT_ITSELF for word in ("-e", line)]
    with subprocess.Popen(
        ["grep", "--text", "--line-buffered", "--invert-match", "--fixed-strings", *words],
        stdin=subprocess.PIPE,
        stdout=shown,
    ) as keeping:
        assert keeping.stdin is not None
        os.dup2(keeping.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            keeping.stdin.close()

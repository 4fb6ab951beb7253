"""What benchmark tests need of the machine; checked once, as the check makes and removes network namespaces."""

import pytest

from benchmarks.datacache import slow_files
from benchmarks.machines import mpirun as mpirun_launcher
from tests.parallel import networks


def _unless(missing: str | None) -> pytest.MarkDecorator:
    return pytest.mark.skipif(missing is not None, reason=missing or "")


MISSING_NAMESPACES = networks.unavailable()
MISSING_FUSE = slow_files.unavailable()

namespaces = _unless(MISSING_NAMESPACES)
fuse = _unless(MISSING_FUSE)
mpirun = _unless(MISSING_NAMESPACES or mpirun_launcher.unavailable())

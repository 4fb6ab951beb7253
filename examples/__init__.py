"""Example scripts, one for each use."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if not (ROOT / "hvd_sparse" / "_ops.so").exists():
    # Nothing is compiled in this checkout, so packages that are installed elsewhere come first.
    sys.path[:] = [*(path for path in sys.path if Path(path).resolve() != ROOT), str(ROOT)]

from quiet_tensorflow import quiet  # noqa: E402

quiet()

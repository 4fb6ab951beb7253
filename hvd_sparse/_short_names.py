"""Public modules in rooms keep short names: `import hvd_sparse.topology` is `hvd_sparse.transport.topology`."""

from __future__ import annotations

import sys

from hvd_sparse.compression import error_feedback, quantizers, selectors
from hvd_sparse.keras import callbacks, checkpoint, elastic
from hvd_sparse.transport import topology

MODULES = {
    "callbacks": callbacks,
    "checkpoint": checkpoint,
    "compressors": selectors,
    "elastic": elastic,
    "error_feedback": error_feedback,
    "quantizers": quantizers,
    "topology": topology,
}


def hand_on() -> None:
    """Puts the modules, with those that lie in them, under their short names."""
    for name, module in MODULES.items():
        for path, loaded in list(sys.modules.items()):
            if f"{path}.".startswith(f"{module.__name__}."):
                sys.modules[path.replace(module.__name__, f"hvd_sparse.{name}", 1)] = loaded

"""Public names whose modules lie in rooms: the modules keep their short names, and what left a module says where it is.

`hand_on` makes `import hvd_sparse.topology` work, which is `hvd_sparse.transport.topology`. A name that has moved to
another module works for one release more in its old place, with a DeprecationWarning that tells the new one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from hvd_sparse import aggregators, keras, ops, tuning
from hvd_sparse.compression import error_feedback, quantizers, selectors
from hvd_sparse.horovod_api import elastic
from hvd_sparse.keras import callbacks, checkpoint
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
_HOROVODS = (
    "Adasum",
    "Average",
    "Compression",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_variables",
    "gloo_built",
    "mpi_built",
    "nccl_built",
    "start_timeline",
    "stop_timeline",
)
# A public module -> the names that have left it -> the new name, and what it is.
NAMES: dict[str, dict[str, tuple[str, Any]]] = {
    "aggregators": {
        "AsPublished": ("hvd_sparse.aggregators.SparCMLAlgorithm1", aggregators.SparCMLAlgorithm1),
        "Auto": ("hvd_sparse.tuning.Auto", tuning.Auto),
    },
    "ops": {"spoil": ("hvd_sparse.ops.mark_nonfinite", ops.mark_nonfinite)},
    "topology": {name: (f"hvd.{name}", getattr(keras, name)) for name in _HOROVODS},
}


def hand_on() -> None:
    """Puts modules under their short names, and gives those that names have left a `__getattr__`."""
    for name, module in MODULES.items():
        for path, loaded in list(sys.modules.items()):
            if f"{path}.".startswith(f"{module.__name__}."):
                sys.modules[path.replace(module.__name__, f"hvd_sparse.{name}", 1)] = loaded
    for name, moved in NAMES.items():
        module = sys.modules[f"hvd_sparse.{name}"]
        vars(module)["__getattr__"] = _finder(module, name, moved)


def _finder(module: ModuleType, place: str, moved: Mapping[str, tuple[str, Any]]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that have left it."""

    def find(name: str) -> Any:
        if name not in moved:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        new, value = moved[name]
        warnings.warn(
            f"hvd.{place}.{name} is now {new}; the old name will be removed in the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return value

    return find

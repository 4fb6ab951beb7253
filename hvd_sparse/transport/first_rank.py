"""Messages that rank 0 prints for all ranks."""

from __future__ import annotations

import warnings

from hvd_sparse.transport import topology


def is_here() -> bool:
    """Whether `init` was called and this is rank 0."""
    return topology.is_initialized() and topology.rank() == 0


def warn(text: str) -> None:
    """Warns, on rank 0 only."""
    if is_here():
        warnings.warn(text, stacklevel=6)

"""What one rank says for all of them."""

from __future__ import annotations

import warnings

from hvd_sparse.transport import topology


def is_here() -> bool:
    """Whether this is rank 0, of ranks that have been started."""
    return topology.is_initialized() and topology.rank() == 0


def warn(text: str) -> None:
    """Warns, on rank 0 alone."""
    if is_here():
        warnings.warn(text, stacklevel=6)

"""The model of bench_servers.py: matrices, used by our ranks and by ParameterServerStrategy alike."""

from __future__ import annotations

RATE = 1e-3
START = 0.01  # initial value of all weights
_LAYERS, _COLUMNS = 8, 500


def layers_of(size: int) -> list[tuple[int, int]]:
    """The shapes of matrices with `size` elements in total, or a few fewer."""
    return [(size // (_LAYERS * _COLUMNS), _COLUMNS)] * _LAYERS

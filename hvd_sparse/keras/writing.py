"""Tells exchanges when a user writes weights by Keras's public ways: `set_weights` of a layer, `load_weights`."""

from __future__ import annotations

import functools
from typing import Any

import keras

from hvd_sparse.optimizers import written

_HOOKED = "_hvd_sparse_tells_of_writes"


def install() -> None:
    """Hooks both methods; a second call does nothing."""
    for owner, name in ((keras.layers.Layer, "set_weights"), (keras.Model, "load_weights")):
        original = getattr(owner, name)
        if not hasattr(original, _HOOKED):
            setattr(owner, name, _telling(original))


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def write(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        written.note(self.weights)
        return result

    setattr(write, _HOOKED, True)
    return write

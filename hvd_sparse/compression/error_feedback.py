"""Error feedback: what was not sent is kept and added to the next gradient."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.compression.base import Compressor, Wrapper
from hvd_sparse.spec import UNLESS_DEFAULT, Spec


@dataclasses.dataclass(frozen=True)
class ErrorFeedback(Wrapper):
    """Wraps a compressor: its input is residual + gradient; the input minus what the receivers decode is kept.

    Law: sent + residual == input; the rounding to the wire dtype stays in the residual. The new residual is one of
    the selection's updates: it takes effect when the exchange is committed, on all ranks or on none.

    Attributes:
        compressor: any compressor without error feedback.
        decay: factor by which the residual is multiplied before it is added, so that old values fade; 1 keeps them.
    """

    disk_name = "ErrorFeedback"
    compressor: Compressor
    decay: float = dataclasses.field(default=1.0, metadata=UNLESS_DEFAULT)
    feeds_back = True

    def __post_init__(self):
        if not 0.0 <= self.decay <= 1.0:
            raise ValueError(f"Expected a decay in [0, 1], got {self.decay}.")
        if self.compressor.feeds_back:
            raise ValueError(
                f"ErrorFeedback wraps a compressor without feedback, got {type(self.compressor).__name__}: "
                "a gradient must not be fed back twice; wrap it once."
            )

    def create(self, spec: Spec) -> tf.Module:
        return _Residual(spec, self.compressor.create(spec))

    def residual(self, state):
        return state.residual

    def waiting(self, state):
        return state.residual.read_value()

    def progress(self, state):
        return state.residual.read_value()

    def compress(self, parts, state, residual=None):
        if residual is not None:
            raise ValueError("ErrorFeedback keeps its own residual and accepts no other: leave out residual.")
        kept = state.residual if self.decay == 1.0 else self.decay * state.residual
        selection = self.compressor.compress(parts, state.inner, kept)
        return selection._replace(updates=(*selection.updates, (state.residual, selection.residual)))


class _Residual(tf.Module):
    def __init__(self, spec: Spec, inner: tf.Module):
        super().__init__()
        self.inner = inner
        self.residual = tf.Variable(tf.zeros([spec.size], tf.float32), trainable=False, name=f"{spec.name}_residual")

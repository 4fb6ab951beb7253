"""An optimizer on the sender's side: nodes exchange its updates of the weights instead of gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.gain_ratio import GainRatio
from hvd_sparse.compression.senders import Sender, Slots
from hvd_sparse.spec import UNLESS_DEFAULT, Spec


@dataclasses.dataclass(frozen=True)
class LocalUpdates(Sender):
    """Wraps error feedback: the optimizer's updates are accumulated, selected and sent instead of gradients.

    Each node runs the optimizer on its own mean gradient, each rank on its shard of it, with its own moments:

        update = learning rate * direction(mean gradient of the node)
        residual + update goes into the selection; what all nodes have sent is averaged and subtracted from the weights

    This is locally accumulated Adam (Chen and Deligiannis 2023), for any element-wise optimizer, for LARS and LAMB
    (You et al. 2017, 2020), whose norms of variables the ranks of a node add up, and for those that need whole
    variables, such as Muon, which all ranks of a node run alike. Why: an optimizer with second moments that runs after
    the exchange sees each value once, as the sum of many steps, and moves rarely sent weights too little. Here each
    step is scaled before it waits.

    A vector is sent as update times the ranks of a node, so that residuals of ranks add up as those of gradients do.

    Attributes:
        compressor: one with error feedback, such as `ErrorFeedback`.
        ahead: whether gradients are computed at the weights that the node would have if its unsent updates were
            applied; `optimizers/ahead.py` arranges that.
        gathers: whether updates of steps without an exchange, as in `LocalSteps`, accumulate next to the residual, and
            the node is ahead by these alone: each exchange returns all nodes to the weights that they share. Otherwise
            they join the residual, and a node keeps all that it has not sent.
        gain_ratio: whether updates are multiplied by the root of the gain ratio of the nodes' gradients (`GainRatio`),
            so that dense training's learning rate fits. An optimizer that divides by the size of its gradients, as
            Adam does, takes shorter steps on the gradient of one node, which is noisier than the mean of all. It has no
            effect with SGD, whose steps are linear in the gradient.

    With `gain_ratio`, an exchange has one more all-reduce across nodes, of at most 1,028 bytes.
    """

    disk_name = "LocalUpdates"
    compressor: Compressor
    ahead: bool = False
    gathers: bool = False
    gain_ratio: bool = dataclasses.field(default=False, metadata=UNLESS_DEFAULT)

    def __post_init__(self):
        super().__post_init__()
        if self.gathers and not self.ahead:
            raise ValueError("Steps without an exchange need the node's own weights: pass ahead=True.")

    @property
    def holds(self) -> bool:  # type: ignore[override]
        """True if a node continues at its own weights."""
        return self.ahead

    def create(self, spec):
        if spec.optimizer is None:
            raise ValueError(
                "LocalUpdates runs an optimizer, and has none: use hvd.DistributedOptimizer(optimizer, "
                "aggregator=...). A tape and aggregate() have none; use a recipe that exchanges gradients there."
            )
        optimizer = spec.optimizer.create(spec)
        gain_ratio = GainRatio(spec) if self.gain_ratio and optimizer.normalizes and spec.senders > 1 else None
        inner = self.compressor.create(spec)
        return Updating(spec, optimizer, inner, self.compressor.residual(inner), self.gathers, gain_ratio)

    def compress(self, parts, state, residual=None):
        selection = super().compress(parts, state, residual)
        return selection if state.gain_ratio is None else selection._replace(report=state.gain_ratio.report(parts))

    def reported(self, mean, state):
        return state.gain_ratio.absorbed(mean)

    def moves(self, parts, state):
        total, culprit = ops.sum_parts(parts)
        moves, updates = self._moved(total, state)
        return moves, [*updates, *self.cleared(state)], culprit

    def hold(self, parts, state):
        total, culprit = ops.sum_parts(parts)
        moves, updates = self._moved(total, state)
        if state.gathered is not None:
            return culprit, (*updates, (state.gathered, moves))
        residual: Any = self.residual(state)
        return culprit, (*updates, (residual, residual + moves))

    def waiting(self, state):
        kept = super().waiting(state)
        return kept if state.gathered is None or kept is None else kept + state.gathered

    def progress(self, state):
        return super().progress(state) if state.gathered is None else state.gathered.read_value()

    def attend(self, parts, state):
        return state.optimizer.attend(parts, self.ahead)

    def cleared(self, state):
        return () if state.gathered is None else ((state.gathered, tf.zeros_like(state.gathered)),)

    def _moved(self, total: tf.Tensor, state: Any) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]]]:
        """This step's update plus what was gathered before it, and the new values of the slots."""
        ranks = tf.constant(float(state.spec.parts), tf.float32)
        progress = self.progress(state) if self.ahead else None
        update, slots = state.optimizer.update(total / ranks, None if progress is None else progress / ranks)
        if state.gain_ratio is not None:
            update *= tf.sqrt(state.gain_ratio.value())
        moves = ranks * update
        return moves if state.gathered is None else state.gathered + moves, slots


class LocalSlots(Slots):
    """An optimizer's slots for a shard, and its update rule.

    Attributes:
        normalizes: whether updates keep their size when all gradients are scaled, as Adam's do.
    """

    normalizes = False

    def update(
        self, gradient: tf.Tensor, ahead: tf.Tensor | None
    ) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]]]:
        """What to subtract from the weights, [size] float32, and the new values of the slots; writes nothing.

        Args:
            gradient: [size] float32, the mean over a node.
            ahead: [size] float32, the shared weights minus the weights at which the gradient was computed; None if it
                was computed at the shared weights.
        """
        raise NotImplementedError

    def attend(self, parts: tf.Tensor, ahead: bool) -> tf.Tensor:
        """Takes part, for an empty shard, in the node's collectives of `update`; see `Compressor.attend`.

        Args:
            parts: of the empty shard.
            ahead: whether the other ranks pass `ahead` to `update`.
        """
        return parts


class Updating(tf.Module):
    """The state of `LocalUpdates` for a vector or a shard of one."""

    def __init__(
        self,
        spec: Spec,
        optimizer: LocalSlots,
        inner: tf.Module,
        residual: tf.Variable | None,
        gathers: bool,
        gain_ratio: GainRatio | None,
    ):
        super().__init__()
        self.spec = spec
        self.optimizer = optimizer
        self.inner = inner
        self.gain_ratio = gain_ratio
        self.gathered: tf.Variable | None = None
        if gathers:
            zeros = tf.zeros([spec.size], tf.float32)
            self.gathered = tf.Variable(zeros, trainable=False, name=f"{spec.name}_gathered")
        self._progress = residual if self.gathered is None else self.gathered

    def set_progress(self, ahead: Mapping[str, tf.Tensor]) -> None:
        """Sets how far the node is ahead of the shared weights in some variables.

        Args:
            ahead: by the name of the variable, in its shape; all ranks of the node pass the same.
        """
        names = [self.spec.segments[place.segment].name for place in self.spec.places]
        if self._progress is None or not set(names) & set(ahead):
            return
        pieces = []
        for name, (_, begin, start, size) in zip(names, self.spec.places, strict=True):
            known = ahead.get(name)
            if known is None:
                pieces.append(self._progress[begin : begin + size])
            else:
                flat = tf.reshape(tf.cast(known, tf.float32), [-1])
                pieces.append(flat[start : start + size] * float(self.spec.parts))
        self._progress.assign(tf.concat(pieces, 0))

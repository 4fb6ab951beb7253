"""One stage's arithmetic: the forward pass of one micro-batch, and what the backward pass needs of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvd_sparse.pipeline.chain import Chain


class Forward(NamedTuple):
    """What the forward pass of a micro-batch leaves for the backward pass.

    Attributes:
        tape: that has watched it.
        source: the activation that came in; None in the first stage.
        targets: what is differentiated.
    """

    tape: tf.GradientTape
    source: tf.Tensor | None
    targets: list[tf.Tensor]


class Middle:
    """The arithmetic of a stage that hands activations on."""

    def __init__(self, model: keras.Model, chain: Chain):
        """Takes whose losses and loss scaling count, and what it computes."""
        self._model, self._chain = model, chain
        self._forward = tf.function(self._run, reduce_retracing=True)

    def forward(self, source: tf.Tensor | None, batch: Any, share: tf.Tensor) -> tuple[Forward, tf.Tensor, tf.Tensor]:
        """One micro-batch in training.

        Args:
            source: the activation that came in; None in the first stage.
            batch: the micro-batch's inputs of the model.
            share: of the batch's samples that it has.

        Returns:
            What the backward pass needs, the activation, and the stage's own losses, as of regularizers, [] float32.
        """
        with tf.GradientTape() as tape:
            if source is not None:
                tape.watch(source)
            output, penalty = self._forward(source, batch, share, True)
        return Forward(tape, source, [output, penalty]), output, penalty

    def infer(self, source: tf.Tensor | None, batch: Any) -> tf.Tensor:
        """One micro-batch in evaluation."""
        return self._forward(source, batch, tf.constant(0.0), False)[0]

    def _run(self, source: tf.Tensor | None, batch: Any, share: tf.Tensor, training: bool):
        output = self._chain.one_output(self._chain(source, batch, training))
        own = self._model.losses if training else []
        return output, share * tf.add_n([tf.cast(tf.reduce_sum(each), tf.float32) for each in own] or [tf.zeros([])])


class Last:
    """The arithmetic of the stage that has the loss."""

    def __init__(self, model: keras.Model, chain: Chain, measure: Callable[..., dict[str, Any]]):
        """Takes whose loss and loss scaling count, what it computes, and what tells the metrics.

        Args:
            model: has `compute_loss` and the optimizer.
            chain: what it computes.
            measure: of loss, rows, y, y_pred and sample_weight.
        """
        self._model, self._chain, self._measure = model, chain, measure
        self._forward = tf.function(self._run, reduce_retracing=True)
        self._infer = tf.function(chain, reduce_retracing=True)

    def forward(self, source: tf.Tensor | None, data: Sequence[Any], share: tf.Tensor, penalty: tf.Tensor):
        """One micro-batch in training.

        Args:
            source: the activation that came in; None where this is the only stage.
            data: the micro-batch's inputs, targets and sample weights.
            share: of the batch's samples that it has.
            penalty: losses of the stages before.

        Returns:
            What the backward pass needs, and the metrics so far.
        """
        with tf.GradientTape() as tape:
            if source is not None:
                tape.watch(source)
            objective, logs = self._forward(source, *data, share, penalty, True)
        return Forward(tape, source, [objective]), logs

    def evaluate(self, source: tf.Tensor | None, data: Sequence[Any]) -> dict[str, Any]:
        """One micro-batch in evaluation; the metrics so far."""
        return self._forward(source, *data, tf.constant(1.0), tf.constant(0.0), False)[1]

    def predict(self, source: tf.Tensor | None, batch: Any) -> Any:
        """What the model says of one micro-batch."""
        return self._infer(source, batch, False)

    def _run(self, source, x, y, weight, share, penalty, training: bool):
        predicted = self._chain(source, x, training)
        loss = self._model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=training)
        told = loss + tf.cast(penalty, loss.dtype) / tf.cast(share, loss.dtype)
        logs = self._measure(told, tf.shape(tf.nest.flatten(x)[0])[0], y, predicted, weight)
        return self._model.optimizer.scale_loss(loss * tf.cast(share, loss.dtype)), logs

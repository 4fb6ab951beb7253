"""One stage's arithmetic: a micro-batch forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvd_sparse.optimizers.variables import resource
from hvd_sparse.pipeline.chain import Chain
from hvd_sparse.pipeline.packing import Packed, pack


class Recorded(NamedTuple):
    """A micro-batch that went forward, and goes backward once the next stage has done so.

    Attributes:
        tape: the tape that recorded it.
        source: the activation that came in; None in the first stage.
        targets: the activation that is sent on, and the stage's own losses.
        model: the model with the variables and the loss scaling.
    """

    tape: tf.GradientTape
    source: tf.Tensor | None
    targets: list[tf.Tensor]
    model: keras.Model

    def backward(self, gradient: tf.Tensor | None) -> tuple[Packed, tf.Tensor | None]:
        """The gradients of the variables, and that of the activation that came in.

        Args:
            gradient: of the activation that was sent on.
        """
        variables = self.model.trainable_variables
        sources = [*variables, *([] if self.source is None else [self.source])]
        given = None
        if gradient is not None:
            output, penalty = self.targets
            given = [tf.cast(gradient, output.dtype), self.model.optimizer.scale_loss(tf.ones_like(penalty))]
        found = self.tape.gradient(self.targets, sources, given)
        return pack(found[: len(variables)]), _of_source(self.source, found)


class Finished(NamedTuple):
    """A micro-batch that the last stage has taken forward and backward in one call of one function.

    Attributes:
        gradients: of the variables.
        of_source: the gradient of the activation that came in; None if this is the only stage.
    """

    gradients: Packed
    of_source: tf.Tensor | None

    def backward(self, gradient: tf.Tensor | None) -> tuple[Packed, tf.Tensor | None]:
        """The gradients that were computed."""
        return self.gradients, self.of_source


def _of_source(source: tf.Tensor | None, found: Sequence[Any]) -> tf.Tensor | None:
    if source is None:
        return None
    return tf.zeros_like(source) if found[-1] is None else found[-1]


class Middle:
    """The computation of a stage that sends activations on."""

    def __init__(self, model: keras.Model, chain: Chain):
        """Takes the model with the losses and the loss scaling, and the parts to compute."""
        self._model, self._chain = model, chain
        self._forward = tf.function(self._run, reduce_retracing=True)

    def forward(self, source: tf.Tensor | None, batch: Any, share: tf.Tensor) -> tuple[Recorded, tf.Tensor, tf.Tensor]:
        """One micro-batch in training.

        Args:
            source: the activation that came in; None in the first stage.
            batch: the micro-batch's inputs of the model.
            share: the share of the batch's samples that it holds.

        Returns:
            What the backward pass needs, the activation, and the stage's own losses, such as regularizers, [] float32.
        """
        with tf.GradientTape() as tape:
            if source is not None:
                tape.watch(source)
            output, penalty = self._forward(source, batch, share, True)
        return Recorded(tape, source, [output, penalty], self._model), output, penalty

    def infer(self, source: tf.Tensor | None, batch: Any) -> tf.Tensor:
        """One micro-batch in evaluation."""
        return self._forward(source, batch, tf.constant(0.0), False)[0]

    def _run(self, source: tf.Tensor | None, batch: Any, share: tf.Tensor, training: bool):
        output = self._chain.one_output(self._chain(source, batch, training))
        own = self._model.losses if training else []
        return output, share * tf.add_n([tf.cast(tf.reduce_sum(each), tf.float32) for each in own] or [tf.zeros([])])


class Last:
    """The computation of the stage that has the loss."""

    def __init__(self, model: keras.Model, chain: Chain, measure: Callable[..., dict[str, Any]]):
        """Takes the model with the loss and the loss scaling, the parts to compute, and a function for the metrics.

        Args:
            model: has `compute_loss` and the optimizer.
            chain: the parts to compute.
            measure: called with loss, rows, y, y_pred and sample_weight.
        """
        self._model, self._chain, self._measure = model, chain, measure
        self._train = tf.function(self._run_both_ways, reduce_retracing=True)
        self._evaluate = tf.function(self._run, reduce_retracing=True)
        self._infer = tf.function(chain, reduce_retracing=True)

    def forward(self, source: tf.Tensor | None, data: Sequence[Any], share: tf.Tensor, penalty: tf.Tensor):
        """One micro-batch in training, forward and backward: there is nothing to wait for.

        Args:
            source: the activation that came in; None if this is the only stage.
            data: the micro-batch's inputs, targets and sample weights.
            share: the share of the batch's samples that it holds.
            penalty: losses of the stages before.

        Returns:
            The gradients, and the metrics so far.
        """
        gradients, of_source, logs = self._train(source, *data, share, penalty)
        return Finished(gradients, of_source), logs

    def evaluate(self, source: tf.Tensor | None, data: Sequence[Any]) -> dict[str, Any]:
        """One micro-batch in evaluation; returns the metrics so far."""
        return self._evaluate(source, *data, tf.constant(1.0), tf.constant(0.0), False)[1]

    def predict(self, source: tf.Tensor | None, batch: Any) -> Any:
        """The model's predictions for one micro-batch."""
        return self._infer(source, batch, False)

    def _run_both_ways(self, source, x, y, weight, share, penalty):
        tape = tf.GradientTape() if tf.executing_eagerly() else None
        with tape or contextlib.nullcontext():
            if tape is not None and source is not None:
                tape.watch(source)
            objective, logs = self._run(source, x, y, weight, share, penalty, True)
        variables = [resource(each) for each in self._model.trainable_variables]
        sources = [*variables, *([] if source is None else [source])]
        # In a graph, like the function of a stage that sends on, whose gradient TensorFlow computes in this way: sums
        # of three gradients and more then have the same order wherever a model is split. Eager functions need the tape.
        found = tf.gradients(objective, sources) if tape is None else tape.gradient(objective, sources)
        return pack(found[: len(variables)]), _of_source(source, found), logs

    def _run(self, source, x, y, weight, share, penalty, training: bool):
        predicted = self._chain(source, x, training)
        loss = self._model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=training)
        told = loss + tf.cast(penalty, loss.dtype) / tf.cast(share, loss.dtype)
        logs = self._measure(told, tf.shape(tf.nest.flatten(x)[0])[0], y, predicted, weight)
        return self._model.optimizer.scale_loss(loss * tf.cast(share, loss.dtype)), logs

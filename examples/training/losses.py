"""The loss of the training scripts."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="examples")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross entropy of logits against class indices with label smoothing (Szegedy et al. 2016, section 7).

    The label is 1 - smoothing for the class plus smoothing / classes for each one, itself included. No label tensor of
    the size of the logits is created. The loss is computed in float32, whatever the precision of the logits.

    Args:
        smoothing: in [0, 1).
        options: arguments of `keras.losses.Loss`, such as reduction.
    """

    def __init__(self, smoothing: float = 0.0, **options: Any):
        super().__init__(**{"name": "smoothed_crossentropy", **options})
        if not 0 <= smoothing < 1:
            raise ValueError(f"Expected label smoothing in [0, 1), got {smoothing}.")
        self.smoothing = smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Labels [...] and logits [..., classes] to losses [...]."""
        logits = keras.ops.cast(y_pred, "float32")
        labels = keras.ops.cast(y_true, "int32")
        if len(labels.shape) == len(logits.shape):  # Keras may have added a last dimension of 1 to the labels
            labels = keras.ops.squeeze(labels, -1)
        true = keras.ops.squeeze(keras.ops.take_along_axis(logits, labels[..., None], -1), -1)
        smoothed = (1.0 - self.smoothing) * true + self.smoothing * keras.ops.mean(logits, -1)
        return keras.ops.logsumexp(logits, -1) - smoothed

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {**super().get_config(), "smoothing": self.smoothing}

"""A callback for model averaging, where models differ between ranks while they train."""

from __future__ import annotations

from typing import Any

import keras

from hvd_sparse.averaging.means import MeanOfModels, mean
from hvd_sparse.averaging.optimizer import ModelsAveraged, averaged
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.optimizers import attached


class MeanOfModelsCallback(DistributedCallback):
    """Evaluates and saves the exact mean of all ranks' models; training continues from each rank's own model.

    When the model is evaluated and when an epoch ends, all ranks compute the mean (`hvd.averaging.mean`). The model
    holds it until the next epoch begins, and keeps it after training. List it before callbacks that save, such as
    Keras's `ModelCheckpoint` on rank 0 only, and give all ranks equally many batches and evaluations.

    Args:
        resynchronise: whether training continues from the mean on every rank, including slots and statistics.

    Raises:
        ValueError: when `fit` begins, if the model's optimizer does not average models.

    Steps and bytes sent per rank: those of `hvd.averaging.mean`, once per epoch.
    """

    def __init__(self, resynchronise: bool = False):
        super().__init__()
        self.resynchronise = resynchronise
        self._mean: MeanOfModels | None = None
        self._trains = False

    def set_model(self, model: keras.Model) -> None:
        """Raises ValueError if the model's optimizer does not average models."""
        super().set_model(model)
        if not isinstance(attached.to(getattr(model, "optimizer", None)), ModelsAveraged):
            raise ValueError(
                f"{type(self).__name__} is for models compiled with hvd.averaging.ModelAveraging(optimizer)."
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._trains = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._go_on()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if averaged(self.model.optimizer).has_begun:
            self._put_mean()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._trains:
            self._go_on()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._put_mean()
        super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._trains, self._mean = False, None

    def _put_mean(self) -> None:
        if self._mean is None or not self._mean.is_of_now:
            self._mean = mean(self.model)
        self._mean.put()

    def _go_on(self) -> None:
        if self._mean is not None and not self.resynchronise:
            self._mean.take_back()
        self._mean = None

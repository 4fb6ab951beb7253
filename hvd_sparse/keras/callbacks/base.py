"""What all callbacks share."""

from __future__ import annotations

from typing import Any

import keras

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import hooks
from hvd_sparse.keras.consolidation import consolidate


class DistributedCallback(keras.callbacks.Callback):
    """Tells the exchange of the model's optimizer which epoch begins; at its end the optimizer can be saved."""

    @property
    def exchange(self) -> GradientExchange | None:
        """What exchanges the gradients of the model's optimizer; None where that is not distributed."""
        return hooks.exchange_of(self.model.optimizer)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if self.exchange is not None:
            self.exchange.set_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.consolidate()
        super().on_epoch_end(epoch, logs)

    def consolidate(self) -> None:
        """Gives the optimizer the momentum that the exchange keeps; a collective, where it has not got it yet."""
        if self.exchange is not None:
            consolidate(self.model)

    def required_exchange(self) -> GradientExchange:
        """The exchange; ValueError where the optimizer is not distributed."""
        if self.exchange is None:
            raise ValueError(
                f"{type(self).__name__} needs a distributed optimizer: compile the model with "
                "hvd.DistributedOptimizer(optimizer)."
            )
        return self.exchange

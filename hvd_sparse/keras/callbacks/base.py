"""What all callbacks share."""

from __future__ import annotations

from typing import Any

import keras

from hvd_sparse.averaging.optimizer import is_averaged
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import hooks
from hvd_sparse.keras.consolidation import consolidate
from hvd_sparse.servers.optimizer import is_served, served


class DistributedCallback(keras.callbacks.Callback):
    """Tells the exchange of the model's optimizer which epoch begins; at its end model and optimizer can be saved.

    Attributes:
        waits: for what all ranks have to be there at the same time, in words; "" where they need not.
        of_averaged: why it is not for models that are averaged, and what is, in words; "" where it is.
    """

    waits = ""
    of_averaged = ""

    def set_model(self, model: keras.Model) -> None:
        """Raises ValueError where it is not for a model that is averaged, or waits for ranks of which none waits."""
        super().set_model(model)
        if self.of_averaged and is_averaged(getattr(model, "optimizer", None)):
            raise ValueError(f"With hvd.averaging.ModelAveraging {type(self).__name__} {self.of_averaged}.")
        if self.waits and is_served(getattr(model, "optimizer", None)):
            raise ValueError(
                f"{type(self).__name__} waits for all ranks {self.waits}, and with hvd.servers.ShardedServers each "
                "trains at its own pace, for ever longer than the others: leave it out."
            )

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
        """Makes the model fit to be saved.

        The optimizer gets the momentum that the exchange keeps, a collective where it has not got it yet; where servers
        have the parameters, the model gets those, and nobody waits.
        """
        if self.exchange is not None:
            consolidate(self.model)
        elif is_served(self.model.optimizer):
            served(self.model.optimizer).take_published()

    def required_exchange(self) -> GradientExchange:
        """The exchange; ValueError where the optimizer is not distributed."""
        if self.exchange is None:
            raise ValueError(
                f"{type(self).__name__} needs a distributed optimizer: compile the model with "
                "hvd.DistributedOptimizer(optimizer)."
            )
        return self.exchange

"""The base class of all callbacks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_sparse.averaging.optimizer import is_averaged
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import hooks
from hvd_sparse.keras.callbacks import rates
from hvd_sparse.keras.consolidation import consolidate
from hvd_sparse.servers.optimizer import is_served, served


class DistributedCallback(keras.callbacks.Callback):
    """Tells the optimizer's exchange which epoch begins; when it ends, model and optimizer are ready to be saved.

    Attributes:
        waits: text for an error message: what all ranks have to do at the same time; "" if there is nothing.
        of_averaged: text for an error message: why it does not fit averaged models, and what does; "" if it fits.
        compares_rates: whether all ranks compare their learning rates when an epoch begins, if there have been
            exchanges, and when it ends; only for callbacks that all ranks have, as it is a collective.
        different_rates: what follows if they differ, "error" or "warning".
    """

    waits = ""
    of_averaged = ""
    compares_rates = False
    different_rates = rates.ERROR

    def set_model(self, model: keras.Model) -> None:
        """Raises ValueError if it does not fit an averaged model, or waits for ranks although servers never wait."""
        super().set_model(model)
        if self.of_averaged and is_averaged(getattr(model, "optimizer", None)):
            raise ValueError(f"With hvd.averaging.ModelAveraging {type(self).__name__} {self.of_averaged}.")
        if self.waits and is_served(getattr(model, "optimizer", None)):
            raise ValueError(
                f"{type(self).__name__} waits for all ranks {self.waits}, but with hvd.servers.ShardedServers each "
                "rank trains at its own pace: leave it out."
            )

    @property
    def exchange(self) -> GradientExchange | None:
        """The exchange of the model's optimizer; None if that is not distributed."""
        return hooks.exchange_of(self.model.optimizer)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if self.exchange is not None:
            self.exchange.set_epoch(epoch)
            if self.compares_rates and self.exchange.step > 0:  # before that, a broadcast may be to come
                self._compare_rates()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.consolidate()
        super().on_epoch_end(epoch, logs)
        if self.compares_rates:
            self._compare_rates()

    def _compare_rates(self) -> None:
        if self.exchange is not None:
            own = rates.learning_rate(self.model.optimizer)
            rates.compare(self.exchange.grid().world, own, self.different_rates)

    def consolidate(self) -> None:
        """Makes the model ready to be saved.

        The optimizer gets the momentum that the exchange keeps, in a collective unless it already has it. If servers
        have the parameters, the model gets those, and no rank waits.
        """
        if self.exchange is not None:
            consolidate(self.model)
        elif is_served(self.model.optimizer):
            served(self.model.optimizer).take_published()

    def required_exchange(self) -> GradientExchange:
        """The exchange; raises ValueError if the optimizer is not distributed."""
        if self.exchange is None:
            raise ValueError(
                f"{type(self).__name__} needs a distributed optimizer: compile the model with "
                "hvd.DistributedOptimizer(optimizer)."
            )
        return self.exchange

"""The base class of all callbacks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras.callbacks import rates
from hvd_sparse.keras.consolidation import consolidate
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import attached
from hvd_sparse.optimizers.attached import Attached


class DistributedCallback(keras.callbacks.Callback):
    """Tells the exchanges of all optimizers which epoch begins; when it ends, the model is ready to be saved.

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
        parts = self.attached.values()
        if self.of_averaged and any(part.own_models for part in parts):
            raise ValueError(f"With hvd.averaging.ModelAveraging {type(self).__name__} {self.of_averaged}.")
        if self.waits and any(part.own_pace for part in parts):
            raise ValueError(
                f"{type(self).__name__} waits for all ranks {self.waits}, but with hvd.servers.ShardedServers each "
                "rank trains at its own pace: leave it out."
            )

    @property
    def attached(self) -> dict[str, Attached]:
        """What takes part in the steps of the model's optimizers, by where these are (`tracked.optimizers_of`)."""
        found = {path: attached.to(each) for path, each in optimizers_of(self.model).items()}
        return {path: part for path, part in found.items() if part is not None}

    @property
    def exchanges(self) -> dict[str, GradientExchange]:
        """The exchanges of the model's distributed optimizers, by where these are, likewise."""
        found = {path: exchange_of(each) for path, each in optimizers_of(self.model).items()}
        return {path: exchange for path, exchange in found.items() if exchange is not None}

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        for exchange in self.exchanges.values():
            exchange.set_epoch(epoch)
        if self.compares_rates and any(each.step > 0 for each in self.exchanges.values()):
            self._compare_rates()  # not before the first step, as a broadcast may be to come

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.consolidate()
        super().on_epoch_end(epoch, logs)
        if self.compares_rates:
            self._compare_rates()

    def _compare_rates(self) -> None:
        for optimizer in optimizers_of(self.model).values():
            exchange = exchange_of(optimizer)
            if exchange is not None:
                rates.compare(exchange.grid().world, rates.learning_rate(optimizer), self.different_rates)

    def consolidate(self) -> None:
        """Makes the model ready to be saved.

        Each optimizer gets the momentum that its exchange keeps, in a collective unless it already has it. If servers
        have the parameters, the model gets those, and no rank waits.
        """
        for part in self.attached.values():
            part.publish()
        consolidate(self.model)

    def required_exchanges(self) -> dict[str, GradientExchange]:
        """The exchanges; raises ValueError if no optimizer of the model is distributed."""
        found = self.exchanges
        if not found:
            raise ValueError(
                f"{type(self).__name__} needs a distributed optimizer: compile the model with "
                "hvd.DistributedOptimizer(optimizer)."
            )
        return found

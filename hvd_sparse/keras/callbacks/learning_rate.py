"""Callbacks that set the learning rate by epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_sparse.keras import local_optimizer
from hvd_sparse.keras.callbacks import rates
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.keras.callbacks.rates import learning_rate
from hvd_sparse.optimizers import slots
from hvd_sparse.transport import topology


class LearningRateScheduleCallback(DistributedCallback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` until before `end_epoch`.

    Momentum correction (Goyal et al. 2017, section 2.1): the velocity of SGD and RMSprop contains past learning rates,
    so it is scaled by new / old rate whenever the rate changes. Horovod instead scales the momentum coefficient for one
    step, which has the same effect; in Keras 3 that coefficient is a constant of the compiled step. The residual of a
    sparse recipe is in units of gradients and needs no correction.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch, or a number b for b ** (epoch - start_epoch).
        start_epoch: the first epoch in which the rate is set.
        end_epoch: the first epoch in which it is no longer set.
        staircase: set it at the start of each epoch; otherwise before each batch, at epoch + batch / steps_per_epoch.
        momentum_correction: see above; costs a pass over the velocities each time.
        steps_per_epoch: taken from `fit` if that knows it.
        different_rates: "error" if it is an error that ranks set different rates, which they compare with the first
            batch of an epoch, or "warning".

    Raises:
        ValueError: if an argument is invalid; on every rank, if rates differ.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        different_rates: str = rates.ERROR,
    ):
        super().__init__()
        self.different_rates = rates.check_reaction(different_rates)
        if initial_lr is None:
            raise ValueError("Expected initial_lr to be a number, got None.")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch: Any = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} needs the number of batches in an epoch, which fit does not know: "
                "pass steps_per_epoch to the callback or to fit."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set_rate(self._epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate(self._epoch)
        if batch == 0:
            self._compare_rates()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = learning_rate(self.model.optimizer)

    def _set_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = learning_rate(optimizer), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old and new != old:
            for velocity in [*slots.velocities(optimizer), *local_optimizer.velocities(optimizer)]:
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / P` to `initial_lr` over the first epochs (Goyal et al. 2017, 2.2).

    Args:
        initial_lr: the rate that is reached, usually already multiplied by the number of ranks.
        warmup_epochs: the number of epochs that it takes.
        momentum_correction: as for `LearningRateScheduleCallback`.
        steps_per_epoch: as for `LearningRateScheduleCallback`.
        verbose: 1 prints a line on rank 0 when the rate is reached.
        different_rates: as for `LearningRateScheduleCallback`.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        different_rates: str = rates.ERROR,
    ):
        def multiplier(epoch: float) -> float:
            size = topology.world().size
            # One batch ahead, so that the last batch of the warm-up has the full rate.
            epoch += 1.0 / self.steps_per_epoch
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
            different_rates=different_rates,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch + 1 == self.end_epoch and topology.world().rank == 0:
            rate = learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")

"""Learning rates by epoch, where epochs may have different numbers of steps."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from hvd_sparse.keras.callbacks.base import DistributedCallback

DECAYS = ("cosine", "polynomial", "inverse-sqrt", "constant")


class Leg(NamedTuple):
    """Consecutive epochs with equally many steps.

    Attributes:
        epochs: number of epochs.
        steps: steps per epoch.
        scale: factor on the learning rate, such as this leg's batch size over that of the first.
    """

    epochs: int
    steps: int
    scale: float = 1.0


@keras.saving.register_keras_serializable(package="examples")
class WarmUpThenDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A linear rise to the peak rate, then a decay, both by the epoch that a step is in.

    With e the epoch of the step (steps taken in it count as a fraction), w the epochs of the warm-up, E all epochs and
    t = (e - w) / (E - w): cosine is (1 + cos(pi t)) / 2 and polynomial (1 - t) ** power, both scaled from 1 to `final`;
    inverse-sqrt is sqrt(w / e) (Vaswani et al. 2017, 5.3), which needs a warm-up; constant is 1. The first step has
    the rate after one step of the warm-up, not 0 (Goyal et al. 2017, 2.2).

    Args:
        peak: the peak rate.
        legs: (epochs, steps, scale), in order; see `Leg`.
        decay: one of `DECAYS`.
        warmup_epochs: w; may be a fraction.
        warmup_from: share of the peak rate at which the warm-up begins.
        power: exponent of the polynomial decay.
        final: share of the peak rate at the end.

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        peak: float,
        legs: Sequence[Sequence[float]],
        decay: str = "cosine",
        warmup_epochs: float = 0.0,
        warmup_from: float = 0.0,
        power: float = 2.0,
        final: float = 0.0,
    ):
        super().__init__()
        self.legs = [Leg(*leg) for leg in legs]
        self.peak, self.decay = peak, decay
        self.warmup_epochs, self.warmup_from, self.power, self.final = warmup_epochs, warmup_from, power, final
        self.epochs = sum(leg.epochs for leg in self.legs)
        if not self.legs or any(leg.epochs < 1 or leg.steps < 1 for leg in self.legs):
            raise ValueError(f"Expected legs of at least 1 epoch of at least 1 step, got {self.legs}.")
        if decay not in DECAYS:
            raise ValueError(f"Expected a decay of {', '.join(DECAYS)}, got {decay!r}.")
        if not 0 <= warmup_epochs < self.epochs:
            raise ValueError(f"Expected a warm-up shorter than the {self.epochs} epochs, got {warmup_epochs}.")
        if decay == "inverse-sqrt" and warmup_epochs == 0:
            raise ValueError("Expected a warm-up before the inverse-sqrt decay, which starts where it ends; got none.")

    def __call__(self, step: Any) -> Any:
        """The rate of a step, float32; steps count from 0 over all epochs."""
        step = keras.ops.cast(step, "float32")
        lengths = np.array([leg.epochs * leg.steps for leg in self.legs], "float32")
        steps = np.array([leg.steps for leg in self.legs], "float32")
        begun = np.cumsum(lengths) - lengths
        epoch = keras.ops.sum(keras.ops.clip(step - begun, 0.0, lengths) / steps)
        leg = keras.ops.sum(keras.ops.cast(step >= begun, "int32")) - 1
        scale = keras.ops.take(np.array([leg.scale for leg in self.legs], "float32"), leg)
        w = self.warmup_epochs
        decayed = self._decayed(epoch, w)
        if self.decay in ("cosine", "polynomial"):
            decayed = self.final + (1.0 - self.final) * decayed
        if w > 0:
            ahead = epoch + 1.0 / keras.ops.take(steps, leg)
            rising = self.warmup_from + (1.0 - self.warmup_from) * keras.ops.minimum(ahead / w, 1.0)
            decayed = keras.ops.where(epoch < w, rising, decayed)
        return self.peak * scale * decayed

    def steps_before(self, epoch: int) -> int:
        """The number of steps in all epochs before this one."""
        before, left = 0, epoch
        for leg in self.legs:
            taken = min(left, leg.epochs)
            before, left = before + taken * leg.steps, left - taken
        return before + left * self.legs[-1].steps

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            "peak": self.peak,
            "legs": [list(leg) for leg in self.legs],
            "decay": self.decay,
            "warmup_epochs": self.warmup_epochs,
            "warmup_from": self.warmup_from,
            "power": self.power,
            "final": self.final,
        }

    def _decayed(self, epoch: Any, w: float) -> Any:
        done = keras.ops.clip((epoch - w) / (self.epochs - w), 0.0, 1.0)
        shapes: dict[str, Callable[[], Any]] = {
            "cosine": lambda: 0.5 * (1.0 + keras.ops.cos(math.pi * done)),
            "polynomial": lambda: (1.0 - done) ** self.power,
            "inverse-sqrt": lambda: keras.ops.sqrt(w / keras.ops.maximum(epoch, w)),
            "constant": lambda: keras.ops.ones_like(done),
        }
        return shapes[self.decay]()


class StepFollowsEpoch(DistributedCallback):
    """Sets the optimizer's step count, which the rate follows, to that of the epoch if they differ.

    They differ if training resumes with other ranks or another batch size, or if loss scaling has skipped steps.

    Args:
        schedule: the schedule of the learning rate.

    Attributes:
        done: steps already taken in the first epoch, if training resumes in mid-epoch.
    """

    def __init__(self, schedule: WarmUpThenDecay, done: int = 0):
        super().__init__()
        self.schedule, self.done = schedule, done

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer
        due = self.schedule.steps_before(epoch) + self.done
        self.done = 0
        if int(optimizer.iterations) != due:
            optimizer.iterations.assign(due)


def make(options: argparse.Namespace, legs: Sequence[Leg]) -> WarmUpThenDecay:
    """The schedule that the options ask for, over these legs."""
    return WarmUpThenDecay(
        options.learning_rate,
        legs,
        options.schedule,
        options.warmup_epochs,
        options.warmup_from,
        options.power,
        options.final_rate,
    )

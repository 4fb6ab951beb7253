"""What the study of model averaging trains, on how many ranks, and in which arms (RPS, Yu et al. 2019, section 6)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hvd_sparse.averaging.lossy import Lossy
from hvd_sparse.averaging.reliable import Reliable
from hvd_sparse.averaging.transports import Transport

RANKS = (4, 8, 16)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How both models are trained: plain SGD without momentum or regularisation (6.1).

    Attributes:
        epochs: number of epochs; the paper has 160.
        rate: learning rate of one rank; P ranks use P times as much (Goyal et al. 2017, 2.1).
        warm_up: share of the epochs in which the rate rises from one rank's to that of all; 5 of 160 in the paper.
        falls: shares of the epochs after which the rate falls to a tenth; 80 and 120 of 160 in the paper.
        batch: samples per rank and step.
    """

    epochs: int
    rate: float
    warm_up: float = 5 / 160
    falls: tuple[float, ...] = (0.5, 0.75)
    batch: int = 32

    def rates(self, steps: int, ranks: int) -> list[float]:
        """The learning rate of each step of a training by `ranks` ranks."""
        rising = max(1.0, self.warm_up * steps)
        return [
            self.rate * (1.0 + (ranks - 1.0) * min(1.0, (step + 1) / rising)) * 0.1 ** self._falls_before(step / steps)
            for step in range(steps)
        ]

    def _falls_before(self, done: float) -> int:
        return sum(done >= share for share in self.falls)


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """A residual network for crops of photographs (convergence/data.py).

    Attributes:
        schedule: training schedule.
        blocks: see `examples.models.small.small_resnet`; ResNet-20 has 3.
        stride: likewise; ResNet-20 has 1.
        train: number of training crops.
        held_out: number of crops that are not trained on.
        watched: number of them used for validation after each epoch; the others are the test set.
        noise: noise of each crop, in units of its own deviation; new in each epoch, fixed in evaluations.
    """

    schedule: Schedule = Schedule(epochs=24, rate=0.1)
    blocks: int = 1
    stride: int = 2
    train: int = 4096
    held_out: int = 9216
    watched: int = 1024
    noise: float = 0.1


@dataclasses.dataclass(frozen=True)
class MessageSettings:
    """One LSTM layer that classifies messages by the program they come from (data.py).

    Attributes:
        schedule: training schedule.
        programs: number of programs.
        most: maximum number of messages per program.
        vocabulary: number of distinct pieces.
        pieces: maximum number of pieces per message.
        features: size of a piece's embedding.
        cells: number of cells of the layer.
        held_out: share of the messages for validation, and the same share for the test.
        folder: see `averaging_data.programs`.
    """

    schedule: Schedule = Schedule(epochs=16, rate=1.0)
    programs: int = 20
    most: int = 600
    vocabulary: int = 2000
    pieces: int = 24
    features: int = 64
    cells: int = 96
    held_out: float = 0.1
    folder: str | None = None


Settings = ImageSettings | MessageSettings
MODELS: dict[str, Settings] = {
    "resnet": ImageSettings(),
    "lstm": MessageSettings(),
    "resnet20": ImageSettings(blocks=3, stride=1),
}
TRAINED = ("resnet", "lstm")  # by default


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: in tables.
        arrival: the probability that a block arrives.
        gradients: whether gradients are averaged instead of models.
        every: steps between two averaging rounds.
        rotate: whether the owners of blocks rotate.
        turned: by how many places the parts of a batch are shifted among ranks: the same sums in another order.
    """

    name: str
    arrival: float = 1.0
    gradients: bool = False
    every: int = 1
    rotate: bool = True
    turned: int = 0

    def transport(self, seed: int) -> Transport:
        """The transport: reliable without loss, else with losses determined by the seed."""
        return Reliable() if self.arrival == 1.0 else Lossy(round(1.0 - self.arrival, 6), seed)


ARMS = {
    "full": Arm("100%"),
    "again": Arm("100%, ranks in another order", turned=1),
    "arrival99": Arm("99%", 0.99),
    "arrival95": Arm("95%", 0.95),
    "arrival90": Arm("90%", 0.9),
    "arrival80": Arm("80%", 0.8),
    "gradients100": Arm("gradients, 100%", gradients=True),
    "gradients99": Arm("gradients, 99%", 0.99, gradients=True),
    "gradients95": Arm("gradients, 95%", 0.95, gradients=True),
    "published99": Arm("99%, owners fixed", 0.99, rotate=False),
    "every8": Arm("99%, every 8th step", 0.99, every=8),
}
BASE = "full"  # the arm that all others are compared with
ARRIVALS = ("full", "arrival99", "arrival95", "arrival90", "arrival80")  # of Fig. 2
METHODS = ("full", "arrival99", "gradients100", "gradients99", "gradients95")  # of Fig. 3
MEASURES = {"resnet": "top-1", "resnet20": "top-1", "lstm": "accuracy"}


class Wanted(NamedTuple):
    """A target for an arm's outcome against `BASE`, for the whole 95% interval.

    Attributes:
        models: models it applies to.
        arm: a key of `ARMS`.
        what: key of an outcome: "final" in points, or "fitted", the training loss.
        least: minimum of the interval's lower end; None for no limit.
        most: maximum of the interval's upper end; None for no limit.
    """

    models: tuple[str, ...]
    arm: str
    what: str
    least: float | None
    most: float | None

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"within {self.most:g}"
        return f"<= {self.most:+g}" if self.most is not None else f"> {self.least:g}"


_IMAGES = ("resnet", "resnet20")
WANTED = (
    Wanted(_IMAGES, "arrival99", "final", -0.5, 0.5),
    Wanted(_IMAGES, "arrival95", "final", -0.5, 0.5),
    Wanted(_IMAGES, "arrival90", "final", -1.0, 1.0),
    *(Wanted(("lstm",), arm, "fitted", None, 0.02) for arm in ("arrival99", "arrival95", "arrival90")),
    Wanted((*_IMAGES, "lstm"), "gradients99", "fitted", 0.0, None),
)

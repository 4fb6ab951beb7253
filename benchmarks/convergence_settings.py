"""What the convergence study trains, how (the same for all recipes), and with which recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """How a network for images is trained.

    Attributes:
        epochs: over the training crops.
        train: training crops.
        held_out: crops at the end of training.
        watched: the first so many of them, after each epoch.
        batch: crops a rank and step.
        rate: the highest learning rate, for all ranks together; momentum is 0.9.
        warm_up: epochs until it is reached; from there it falls to 0 as a cosine.
        decay: of all kernels, added to the gradient before the exchange.
        noise: of each crop, in units of its own deviation; new in each epoch, always the same on held-out crops.
        averaged: the last epochs whose weights, one set an epoch, are averaged for the end; 0 takes the last weights.
    """

    epochs: int = 24
    train: int = 8192
    held_out: int = 16384
    watched: int = 2048
    batch: int = 16
    rate: float = 0.1
    warm_up: float = 1.0
    decay: float = 5e-4
    noise: float = 0.1
    averaged: int = 0


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """How a model of examples/translation.py is trained.

    Attributes:
        options: its command line, without recipe, density and seed.
    """

    options: tuple[str, ...] = ("--reduced", "--epochs", "10", "--schedule", "cosine")


Settings = ImageSettings | TranslationSettings
MODELS: dict[str, Settings] = {
    "small_resnet": ImageSettings(),
    "small_vgg": ImageSettings(rate=0.05),
    "transformer": TranslationSettings(),
    "lstm": TranslationSettings(
        (*TranslationSettings().options, "--model", "lstm", "--width", "0.25", "--layers", "2")
    ),
}
MEASURES = {"small_resnet": "top-1", "small_vgg": "top-1", "transformer": "BLEU", "lstm": "BLEU"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """A recipe of the study.

    Attributes:
        name: in tables.
        recipe: as training scripts write it.
    """

    name: str
    recipe: str


ARMS = {
    "torus2d": Arm("2DTAR-SGD", "torus2d"),
    "dense": Arm("Dense-SGD", "dense"),
    "topk": Arm("TopK-SGD", "topk"),
    "hitopk": Arm("MSTopK-SGD", "hitopk"),
    "warmed": Arm("MSTopK-SGD after two dense epochs", "torus2d,2:hitopk"),
    "recommended": Arm("recommended", "recommended"),
    "updates": Arm("updates, ahead", "updates(hitopk, ahead=True)"),
    "diloco": Arm("DiLoCo, 30 steps", "diloco(every=30)"),
    "sparseloco": Arm("SparseLoCo, 30 steps", "sparseloco(every=30)"),
    "bucket4": Arm("4 of 512", "sparcml_buckets(k=4, bits=None)"),
    "warmed4": Arm("4 of 512 after two dense epochs", "torus2d,2:sparcml_buckets(k=4, bits=None)"),
    "bucket8": Arm("8 of 512, 4 bits", "sparcml_buckets(k=8, bits=4)"),
    "bucket16": Arm("16 of 512, 4 bits", "sparcml_buckets(k=16, bits=4)"),
}
# dense adds up what torus2d does in another order: the two differ by rounding alone, and tell how far equal arms part.
_COMMLIB = ("torus2d", "dense", "topk", "hitopk")
TRAINED: dict[str, tuple[str, ...]] = {
    "small_resnet": (*_COMMLIB, "recommended", "updates", "bucket8", "bucket16"),  # SparCML 8.3: ResNet-110
    "small_vgg": (*_COMMLIB, "recommended", "updates"),
    "transformer": (*_COMMLIB, "warmed", "recommended", "updates", "diloco", "sparseloco"),
    "lstm": ("torus2d", "recommended", "updates", "bucket4", "warmed4"),  # SparCML 8.3: Hansards
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two arms whose difference is reported.

    Attributes:
        one: minus the other.
        other: of the same seed.
        wanted: points within which the whole 95% interval is to lie; None where there is no target.
    """

    one: str
    other: str
    wanted: float | None = None

    def __str__(self) -> str:
        return f"{ARMS[self.one].name} - {ARMS[self.other].name}"


_PAIRS = (
    Pair("hitopk", "topk", 1.0),
    Pair("hitopk", "torus2d"),
    Pair("topk", "torus2d"),
    Pair("dense", "torus2d"),
    Pair("warmed", "torus2d"),
    Pair("bucket4", "torus2d", 1.0),
    Pair("warmed4", "torus2d"),
    Pair("bucket8", "torus2d", 1.0),
    Pair("bucket16", "torus2d", 1.0),
    Pair("recommended", "torus2d"),
    Pair("updates", "torus2d"),
    Pair("diloco", "torus2d"),
    Pair("sparseloco", "torus2d"),
)


def pairs(arms: Collection[str]) -> list[Pair]:
    """The pairs of these arms."""
    return [pair for pair in _PAIRS if {pair.one, pair.other} <= set(arms)]

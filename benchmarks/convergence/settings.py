"""What the convergence study trains, with which settings (the same for all recipes), and with which recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """How a network for images is trained.

    Attributes:
        epochs: over the training crops.
        train: number of training crops.
        held_out: number of crops that are not trained on.
        watched: number of them used for validation after each epoch; the others are the test set.
        batch: crops per rank and step.
        rate: highest learning rate, for all ranks together; momentum is 0.9.
        trust: trust coefficient of LARS; 0 trains by SGD.
        warm_up: epochs until it is reached; from there it falls to 0 along a cosine.
        decay: weight decay of all kernels, with SGD added to the gradient before the exchange.
        noise: noise of each crop, in units of its own deviation; new in each epoch, fixed on held-out crops.
        averaged: number of last epochs whose weights, one set per epoch, are averaged; 0 takes the last weights.
    """

    epochs: int = 24
    train: int = 8192
    held_out: int = 16384
    watched: int = 2048
    batch: int = 16
    rate: float = 0.1
    trust: float = 0.0
    warm_up: float = 1.0
    decay: float = 5e-4
    noise: float = 0.1
    averaged: int = 0

    def at(self, rate: float, epochs: int) -> ImageSettings:
        """These settings with `rate` times the learning rate, and another number of epochs if that is not 0."""
        return dataclasses.replace(self, rate=rate * self.rate, epochs=epochs or self.epochs)


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """How a model of examples/translation.py is trained.

    Attributes:
        options: its command line, without recipe, density, seed, epochs and learning rate.
        epochs: over the training pairs.
        rate: in units of the learning rate of these options.
    """

    options: tuple[str, ...] = ("--reduced", "--schedule", "cosine")
    epochs: int = 10
    rate: float = 1.0

    def at(self, rate: float, epochs: int) -> TranslationSettings:
        """These settings with `rate` times the learning rate, and another number of epochs if that is not 0."""
        return dataclasses.replace(self, rate=rate * self.rate, epochs=epochs or self.epochs)


Settings = ImageSettings | TranslationSettings
MODELS: dict[str, Settings] = {
    "small_resnet": ImageSettings(),
    "small_vgg": ImageSettings(rate=0.05),
    "lars_resnet": ImageSettings(epochs=28, rate=0.2, trust=0.05, warm_up=5.0),  # CommLib 5.6; see examples/imagenet.py
    "transformer": TranslationSettings(),
    "lstm": TranslationSettings(
        (*TranslationSettings().options, "--model", "lstm", "--width", "0.25", "--layers", "2")
    ),
}
MEASURES = {
    "small_resnet": "top-1",
    "small_vgg": "top-1",
    "lars_resnet": "top-1",
    "transformer": "BLEU",
    "lstm": "BLEU",
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """A recipe of the study.

    Attributes:
        name: in tables.
        recipe: expression as in training scripts.
    """

    name: str
    recipe: str


ARMS = {
    "torus2d": Arm("2DTAR-SGD", "torus2d"),
    "dense": Arm("Dense-SGD", "dense"),
    "topk": Arm("TopK-SGD", "topk"),
    "hitopk": Arm("MSTopK-SGD", "hitopk"),
    "commlib": Arm("MSTopK-SGD in the first 13 epochs", "hitopk,13:torus2d"),
    "warmed": Arm("MSTopK-SGD after two dense epochs", "torus2d,2:hitopk"),
    "momentum": Arm("momentum, warm-up", "warmup(momentum_corrected(hitopk))"),
    "unmasked": Arm("momentum unmasked, warm-up", "warmup(momentum_corrected(hitopk, masking=False))"),
    "behind": Arm("updates", "updates(hitopk)"),
    "updates": Arm("updates, ahead", "updates(hitopk, ahead=True)"),
    "gain_ratio": Arm("updates, ahead, gain ratio", "updates(hitopk, ahead=True, gain_ratio=True)"),
    "updates_warmed": Arm("updates, ahead, warm-up", "warmup(updates(hitopk, ahead=True))"),
    "thin": Arm("updates, ahead, .1%", "updates(hitopk(density=0.001), ahead=True)"),
    "updates8": Arm("updates, ahead, 8 steps", "updates(hitopk, ahead=True, every=8)"),
    "diloco10": Arm("DiLoCo, 10 steps", "diloco(every=10)"),
    "diloco": Arm("DiLoCo, 30 steps", "diloco(every=30)"),
    "diloco100": Arm("DiLoCo, 100 steps", "diloco(every=100)"),
    "averaged": Arm("means of weights, 30 steps", "diloco(every=30, rate=1.0, momentum=0.0)"),
    "sparseloco": Arm("SparseLoCo, 30 steps", "sparseloco(every=30)"),
    "sparseloco8": Arm("SparseLoCo, 8 steps", "sparseloco(every=8)"),
    "sparseloco_fine": Arm("SparseLoCo, 8 steps, 8 bits", "sparseloco(every=8, bits=8)"),
    "sparseloco_kept": Arm("SparseLoCo, 8 steps, no decay", "sparseloco(every=8, decay=1.0)"),
    "bucket4": Arm("4 of 512", "sparcml_buckets(k=4, bits=None)"),
    "warmed4": Arm("4 of 512 after two dense epochs", "torus2d,2:sparcml_buckets(k=4, bits=None)"),
    "bucket8": Arm("8 of 512, 4 bits", "sparcml_buckets(k=8, bits=4)"),
    "bucket16": Arm("16 of 512, 4 bits", "sparcml_buckets(k=16, bits=4)"),
    "bucket4_updates": Arm(
        "updates, ahead, gain ratio, 4 of 512", "updates(sparcml_buckets(k=4, bits=None), ahead=True, gain_ratio=True)"
    ),
    "bucket8_updates": Arm("updates, ahead, 8 of 512, 4 bits", "updates(sparcml_buckets(k=8, bits=4), ahead=True)"),
    "bucket16_updates": Arm("updates, ahead, 16 of 512, 4 bits", "updates(sparcml_buckets(k=16, bits=4), ahead=True)"),
}
# dense adds the same gradients as torus2d in another order: the two differ by rounding alone, and show the noise.
_COMMLIB = ("torus2d", "dense", "topk", "hitopk")
_BETTER = ("momentum", "unmasked", "behind", "updates", "updates_warmed")
_LOCAL = ("thin", "updates8", "diloco10", "diloco", "diloco100", "averaged")
_LOCO = ("sparseloco", "sparseloco8", "sparseloco_fine", "sparseloco_kept")
_BUCKETS = ("bucket8", "bucket16", "bucket8_updates", "bucket16_updates")
TRAINED: dict[str, tuple[str, ...]] = {
    "small_resnet": (*_COMMLIB, *_BETTER, "thin", "updates8", *_BUCKETS),  # SparCML 8.3: ResNet-110
    "small_vgg": (*_COMMLIB, *_BETTER),
    "lars_resnet": ("torus2d", "hitopk", "commlib", "behind", "updates", "gain_ratio"),  # CommLib 5.6: ResNet-50
    "transformer": (*_COMMLIB, "warmed", *_BETTER, "gain_ratio", *_LOCAL, *_LOCO),
    "lstm": ("torus2d", *_BETTER, "gain_ratio", "bucket4", "warmed4", "bucket4_updates"),  # SparCML 8.3: Hansards
}
DENSE = "torus2d"  # the arm that all others are compared with


class Wanted(NamedTuple):
    """How close to dense some arm must end.

    Attributes:
        points: maximum mean distance below dense, over the seeds.
        share: maximum share of dense's bytes between nodes, over the whole training.
    """

    points: float
    share: float


WANTED: dict[str, tuple[Wanted, ...]] = {
    "small_resnet": (Wanted(0.4, 1 / 12),),
    "small_vgg": (Wanted(0.4, 1 / 12),),
    "lars_resnet": (),
    "transformer": (Wanted(1.0, 1 / 12), Wanted(1.5, 1 / 40)),
    "lstm": (Wanted(1.0, 1 / 12), Wanted(1.5, 1 / 40)),
}


class Elsewhere(NamedTuple):
    """Further trainings, reported if the store has runs of them: the same models for longer, or on other nodes.

    Attributes:
        name: in the report.
        epochs: replaces the models' own numbers; 0 keeps them.
        nodes: number of nodes.
        local: ranks per node.
        wanted: targets, as in `WANTED`.
    """

    name: str
    epochs: int
    nodes: int
    local: int
    wanted: Mapping[str, tuple[Wanted, ...]]


ELSEWHERE = (
    Elsewhere("thirty epochs", 30, 2, 2, {"transformer": (Wanted(0.7, 1 / 40),)}),
    Elsewhere("4 nodes of 1", 0, 4, 1, {}),
    Elsewhere("4 nodes of 2", 0, 4, 2, {}),
)
WITHIN = {
    "hitopk": ("topk", 1.0),
    **dict.fromkeys(("bucket4", "bucket8", "bucket16", "bucket4_updates", *_BUCKETS[2:]), (DENSE, 1.0)),
}

"""Progressive image sizes: stages of epochs, each with its image size and batch size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FORM = re.compile(r"(\d+)x(\d+)x(\d+)")
_STORED = 8 / 7  # stored size over training size: 256 for 224


class Stage(NamedTuple):
    """Epochs in which images have the same size.

    Attributes:
        epochs: number of epochs.
        size: height and width of the network's input.
        batch: images per rank and step.
    """

    epochs: int
    size: int
    batch: int

    @property
    def stored(self) -> int:
        """Height and width of the images in the cache, from which training takes random crops."""
        return round(self.size * _STORED)


FULL = "13x96x256,11x128x256,3x224x256,1x288x128"  # CommLib Table 4
REDUCED = "13x32x16,11x44x16,3x76x16,1x96x8"  # sizes divided by three


def parse(text: str) -> tuple[Stage, ...]:
    """Parses EPOCHSxSIZExBATCH, one or more separated by commas.

    Raises:
        ValueError: if the text does not have this form, or a number is 0 or a size is below 32.
    """
    stages = []
    for each in text.split(","):
        matched = _FORM.fullmatch(each.strip())
        stage = Stage(*map(int, matched.groups())) if matched else None
        if stage is None or min(stage) < 1 or stage.size < 32:
            raise ValueError(
                f"Expected stages such as {FULL} (epochs, size of at least 32, batch), got {each.strip()!r}."
            )
        stages.append(stage)
    return tuple(stages)


def spans(stages: Sequence[Stage]) -> Iterator[tuple[int, int, Stage]]:
    """Each stage with its first epoch and the one after its last."""
    first = 0
    for stage in stages:
        yield first, first + stage.epochs, stage
        first += stage.epochs


def recipe(stages: Sequence[Stage]) -> str:
    """CommLib 5.6: MSTopK by HiTopKComm in the first stage, 2DTAR in all later ones."""
    return "hitopk" if len(stages) == 1 else f"hitopk,{stages[0].epochs}:torus2d"

"""Progressive input sizes: stages of epochs with their size of images and batch size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FORM = re.compile(r"(\d+)x(\d+)x(\d+)")
_STORED = 8 / 7  # of the size that is trained on: 256 for 224


class Stage(NamedTuple):
    """Epochs in which images have one size.

    Attributes:
        epochs: how many.
        size: height and width of what the network sees.
        batch: images a rank and step.
    """

    epochs: int
    size: int
    batch: int

    @property
    def stored(self) -> int:
        """Height and width of what is kept in the cache, from which training takes random crops."""
        return round(self.size * _STORED)


FULL = "13x96x256,11x128x256,3x224x256,1x288x128"  # CommLib Table 4
REDUCED = "13x32x16,11x44x16,3x76x16,1x96x8"  # sizes by a third


def parse(text: str) -> tuple[Stage, ...]:
    """From EPOCHSxSIZExBATCH, several with commas between them.

    Raises:
        ValueError: where it is not of this form, or a number is 0 or a size below 32.
    """
    stages = []
    for each in text.split(","):
        matched = _FORM.fullmatch(each.strip())
        stage = Stage(*map(int, matched.groups())) if matched else None
        if stage is None or min(stage) < 1 or stage.size < 32:
            raise ValueError(f"Expected stages as {FULL} (epochs, size of at least 32, batch), got {each.strip()!r}.")
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

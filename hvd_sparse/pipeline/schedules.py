"""The order in which a stage takes micro-batches forward and backward.

With every schedule, micro-batches go backward in the order in which they went forward: gradients are added up in the
same order, and so have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Pass(NamedTuple):
    """The pass of one micro-batch through one stage.

    Attributes:
        is_forward: forward, otherwise backward.
        number: of the micro-batch.
    """

    is_forward: bool
    number: int


def fill_drain(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """All forward, then all backward (GPipe, Huang et al. 2019).

    Args:
        stage: number of the stage.
        stages: number of stages.
        micro_batches: of a batch; all of them are held in memory.
    """
    return [Pass(forward, number) for forward in (True, False) for number in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """Backward as soon as possible, forward in between (PipeDream-Flush, Narayanan et al. 2021).

    Args:
        stage: number of the stage.
        stages: number of stages.
        micro_batches: of a batch; at most `stages - stage` are held in memory.
    """
    ahead = min(stages - 1 - stage, micro_batches)
    passes = [Pass(True, number) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        passes += [Pass(True, ahead + number), Pass(False, number)]
    return passes + [Pass(False, number) for number in range(micro_batches - ahead, micro_batches)]


SCHEDULES: Mapping[str, Callable[[int, int, int], list[Pass]]] = {
    "fill_drain": fill_drain,
    "one_forward_one_backward": one_forward_one_backward,
}
"""By name, as `Stages` takes them."""

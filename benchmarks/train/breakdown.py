"""The breakdown of a training step's time, from readings of one clock, into the parts of CommLib Fig. 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PARTS = ("input wait", "forward and backward", "compression", "exposed communication", "optimizer")


class Marks(NamedTuple):
    """Times of the events of a step, in seconds of one clock.

    Attributes:
        asked: the batch was requested; the previous step had ended.
        given: the batch had arrived.
        ready: all of this rank's own gradients were computed.
        met: all means over the ranks had arrived.
        ended: all variables were written and the loss was available.
        selections: when the selection of each bucket began and ended, in any order; they may overlap.
    """

    asked: float
    given: float
    ready: float
    met: float
    ended: float
    selections: tuple[tuple[float, float], ...] = ()


def parts_of(marks: Marks) -> dict[str, float]:
    """Seconds of each of `PARTS`; they add up to the step, from asked to ended.

    Compression is the time between ready and met in which at least one bucket is being selected; selections before that
    are part of forward and backward.

    Raises:
        ValueError: if the marks are not in order.
    """
    line = (marks.asked, marks.given, marks.ready, marks.met, marks.ended)
    if any(later < earlier for earlier, later in zip(line, line[1:], strict=False)):
        raise ValueError(f"Expected the marks of a step in order of time, got {marks}: are they from the same clock?")
    compression = covered(marks.selections, marks.ready, marks.met)
    seconds = (
        marks.given - marks.asked,
        marks.ready - marks.given,
        compression,
        marks.met - marks.ready - compression,
        marks.ended - marks.met,
    )
    return dict(zip(PARTS, seconds, strict=True))


def covered(spans: Sequence[tuple[float, float]], start: float, stop: float) -> float:
    """Seconds between start and stop that are covered by at least one of the spans."""
    total, reached = 0.0, start
    for begin, end in sorted(spans):
        begin, end = max(begin, reached), min(end, stop)
        if end > begin:
            total += end - begin
            reached = end
    return total


def summary(ranks: Sequence[Sequence[Marks]]) -> dict[str, float]:
    """Mean seconds of a step over all ranks and steps.

    Args:
        ranks: marks of the same steps for each rank, all from the same clock.

    Returns:
        `PARTS`, which add up to "step"; "selection in all": the sum of the lengths of all selections; and "for slower
        ranks": how much of the time from ready to met had passed when the last rank was ready.
    """
    parts = [parts_of(marks) for rank in ranks for marks in rank]
    means = {part: float(np.mean([each[part] for each in parts])) for part in PARTS}
    selected = [sum(end - begin for begin, end in marks.selections) for rank in ranks for marks in rank]
    waited = []
    for step in zip(*ranks, strict=True):
        last = max(marks.ready for marks in step)
        waited += [max(0.0, min(last, marks.met) - marks.ready) for marks in step]
    return {
        **means,
        "step": float(np.mean([marks.ended - marks.asked for rank in ranks for marks in rank])),
        "selection in all": float(np.mean(selected)),
        "for slower ranks": float(np.mean(waited)),
    }

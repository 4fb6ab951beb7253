"""Which epoch each pass over a dataset of all epochs reads."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

_LOOKS = {"fit": 2, "own": 9}  # passes in a row that may be left before their end
_LEFT_OFTEN = (
    "Passes over this dataset are left before their last batch, so each of them begins with the same samples: an epoch "
    "counts once its last batch was read. To train on some batches at a time, pass fit steps_per_epoch and "
    "cache.dataset(batch_size).repeat(), or use cache.training(...)."
)


class Passes:
    """Numbers the passes over a dataset: one that is read to its last batch is an epoch, and the next has the next.

    Thus a look at the first batch does not count. What Keras's `evaluate` and `predict` read does not count either,
    also if `fit` calls them. What `fit` reads and what loops of one's own read are counted apart, so that ranks that
    train with `fit` stay together if one of them reads the dataset for another purpose.
    """

    def __init__(self, first_epoch: int):
        """Takes the epoch of the first pass."""
        self._next = {"fit": first_epoch, "own": first_epoch}
        self._left = dict.fromkeys(_LOOKS, 0)
        self._numbers, self._counted = itertools.count(), dict[int, tuple[str, int]]()
        self._lock = threading.Lock()

    def begin(self) -> tuple[int, int]:
        """A new pass.

        Returns:
            Its number, for `end`, and the epoch that it reads.
        """
        running = _running_loops()
        loop, counts = "fit" if "fit" in running else "own", running <= {"fit"}
        with self._lock:
            number, epoch = next(self._numbers), self._next[loop]
            if counts:
                self._counted[number] = loop, epoch
                self._left[loop] += 1
            often = counts and self._left[loop] == _LOOKS[loop] + 2  # with this one, which has just begun
        if often:
            warnings.warn(_LEFT_OFTEN, stacklevel=2)
        return number, epoch

    def end(self, number: int) -> None:
        """A pass reads its last batch."""
        with self._lock:
            loop, epoch = self._counted.pop(number, ("own", -1))
            if epoch == self._next[loop]:
                self._next[loop], self._left[loop] = epoch + 1, 0


def _running_loops() -> set[str]:
    """Which of Keras's loops run in any thread: those of tf.data cannot know who waits for a batch."""
    keras = sys.modules.get("keras")
    if keras is None:
        return set()
    names = {_code(getattr(keras.Model, name)): name for name in ("fit", "evaluate", "predict")}
    frames = (frame for top in sys._current_frames().values() for frame in _outwards(top))
    return {names[frame.f_code] for frame in frames if frame.f_code in names}


def _code(function: Any) -> CodeType:
    return inspect.unwrap(function).__code__  # `fit` is wrapped


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back

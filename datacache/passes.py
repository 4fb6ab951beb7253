"""Which epoch each pass over a dataset of all epochs reads."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType

_LEFT = 2  # passes in a row that may be left before their end, such as looks at the first batch
_LEFT_OFTEN = (
    "Passes over this dataset are left before their last batch, so each of them begins with the same samples: an epoch "
    "counts once its last batch was read. To train on some batches at a time, pass fit steps_per_epoch and "
    "cache.dataset(batch_size).repeat(), or use cache.training(...)."
)


class Passes:
    """Numbers the passes over a dataset: one that is read to its last batch is an epoch, and the next has the next.

    Thus a look at the first batch does not count. Nor does what Keras's `evaluate` and `predict` read, also those that
    `fit` calls after an epoch of training.
    """

    def __init__(self, first_epoch: int):
        """Takes the epoch of the first pass."""
        self._next, self._left = first_epoch, 0
        self._numbers, self._epochs = itertools.count(), dict[int, int]()
        self._lock = threading.Lock()

    def begin(self) -> tuple[int, int]:
        """A new pass.

        Returns:
            Its number, for `end`, and the epoch that it reads.
        """
        counts = not _is_evaluation()
        with self._lock:
            number, epoch = next(self._numbers), self._next
            if counts:
                self._epochs[number] = epoch
                self._left += 1
            often = counts and self._left == _LEFT + 2  # this one and more than _LEFT before it
        if often:
            warnings.warn(_LEFT_OFTEN, stacklevel=2)
        return number, epoch

    def end(self, number: int) -> None:
        """A pass reads its last batch."""
        with self._lock:
            epoch = self._epochs.pop(number, None)
            if epoch == self._next:
                self._next, self._left = epoch + 1, 0


def _is_evaluation() -> bool:
    """Whether a thread is in Keras's `evaluate` or `predict`; the threads of tf.data cannot know who waits for them."""
    keras = sys.modules.get("keras")
    if keras is None:
        return False
    loops = {_code(getattr(keras.Model, name)) for name in ("evaluate", "predict")}
    return any(frame.f_code in loops for top in sys._current_frames().values() for frame in _outwards(top))


def _code(function: object) -> CodeType:
    return inspect.unwrap(function).__code__  # type: ignore[arg-type]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back

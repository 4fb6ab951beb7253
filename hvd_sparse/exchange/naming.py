"""Names of exchanges, which begin the names of their collectives; and all exchanges that there are."""

from __future__ import annotations

import collections
import itertools
import weakref
from typing import Any

from hvd_sparse._living import Living

_numbers: collections.defaultdict[str, set[int]] = collections.defaultdict(set)  # of the exchanges with this name
living: Living[Any] = Living()  # all exchanges that have a name


def unique(name: str, exchange: Any) -> str:
    """The name, with a number if another exchange has it; reused, as TensorFlow keeps each variable's name for ever."""
    numbers = _numbers[name]
    number = next(each for each in itertools.count() if each not in numbers)
    numbers.add(number)
    living.add(exchange)
    weakref.finalize(exchange, numbers.discard, number).atexit = False
    return f"{name}_{number}" if number else name

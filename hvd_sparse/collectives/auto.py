"""Chooses the collective that is expected to be fastest, the same on all ranks."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.call_history import CallHistory, Calls
from hvd_sparse.collectives.dynamic import combine_dense, combine_prepared
from hvd_sparse.collectives.prepared import HEAD, Layout, Prepared, Result, prepare
from hvd_sparse.collectives.sparse import SPARSE
from hvd_sparse.costs import Link
from hvd_sparse.costs import collectives as collective_costs
from hvd_sparse.costs.collectives import CANDIDATES, Load, Transport
from hvd_sparse.transport import timing
from hvd_sparse.transport.communicator import Communicator

_NEUTRAL = {"sum": 0.0, "product": 1.0, "max": -np.inf, "min": np.inf}
_SIZES = timing.Sizes(1 << 6, 1 << 21, 16, long=0.02)  # words that a rank sends to each other rank in timed calls
_TIMED = 1 << 16  # rows of the streams whose combining is timed
_GATHER = CANDIDATES.index("allgather")
_MORE = 2  # the next call's rows may be this many times those of a call, if they are to be gathered with its check


class Auto:
    """Chooses recursive_doubling, split_allgather, dynamic or allgather for each call; it is called like these.

    The expected time is that of `costs.collectives`: what the four send follows from the rows that the ranks contribute
    and from how the union of their index sets grows. The first call assumes uniform index sets (SparCML B.1, the worst
    case); later calls use what earlier calls of the same name found, so all ranks choose the same. Once the all-gather
    has been chosen in eager code, the messages of the next calls of that name travel with the check of the call, so no
    other call is needed.

    Args:
        transport: the cost of calls, the same on every rank, which is not checked; None measures it on the first call,
            in about a second.

    Steps and bytes sent per rank: those of the chosen collective. In a graph, one all-gather of 4 bytes before it, by
    which the ranks learn how much the others contribute; in eager code the check of the call includes this.
    """

    def __init__(self, transport: Transport | None = None):
        self._transport = transport
        self._measured: weakref.WeakKeyDictionary[Communicator, Transport] = weakref.WeakKeyDictionary()
        self._histories: weakref.WeakKeyDictionary[Communicator, dict[str, CallHistory]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._measuring: weakref.WeakKeyDictionary[Communicator, Any] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        slices: tf.IndexedSlices,
        communicator: Communicator,
        op: str = "sum",
        name: str = "auto",
        dense_above: int | None = None,
    ) -> Result:
        """Combines the slices of all ranks by the algorithm that is expected to be fastest.

        Args:
            slices: this rank's contribution, see `hvd_sparse.collectives`.
            communicator: the ranks that take part.
            op: "sum", "max", "min" or "product".
            name: the same on every rank, unique among the collectives in flight; the history of calls is kept per name.
            dense_above: rows above which a message of the whole vector is dense.

        Returns:
            In eager code, what the chosen collective returns; in a graph, a tensor of the dense shape.

        Raises:
            ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.
        """
        history = self._history_of(communicator, name)
        along = history.along if tf.executing_eagerly() else -1
        prepared = prepare("auto", slices, communicator, op, name, dense_above, along)
        if communicator.size == 1:
            if tf.executing_eagerly():
                return prepared.result(prepared.message)
            return prepared.vector(prepared.layout.dense(prepared.message))
        with tf.init_scope():
            transport = self.transport(communicator)
        chooser = _Chooser(prepared.layout, communicator.size, transport)
        if prepared.counts is None:
            vector = _in_graph(prepared.layout, prepared.message, communicator, name, chooser, history)
            return prepared.vector(vector)
        return _eagerly(prepared, communicator, name, chooser, history)

    def chosen(self, communicator: Communicator, name: str = "auto") -> str | None:
        """The collective chosen by the last call of this name; None if there was none."""
        history = self._history_of(communicator, name).read()
        return CANDIDATES[int(history.choice)] if history.calls else None

    def transport(self, communicator: Communicator) -> Transport:
        """The cost of calls among these ranks; a collective if it has not been measured yet."""
        if self._transport is not None:
            return self._transport
        with self._lock:
            turn = self._measuring.setdefault(communicator, threading.Lock())
        with turn:
            if communicator not in self._measured:
                self._measured[communicator] = measure(communicator)
            return self._measured[communicator]

    def _history_of(self, communicator: Communicator, name: str) -> CallHistory:
        with self._lock:
            by_name = self._histories.setdefault(communicator, {})
            if name not in by_name:
                by_name[name] = CallHistory()
            return by_name[name]


class _Chooser:
    """The choice for one vector, computed from numbers that are the same on all ranks."""

    def __init__(self, layout: Layout, ranks: int, transport: Transport):
        self._layout = layout
        self._ranks = ranks
        self._transport = transport

    @property
    def greeting(self) -> float:
        """Seconds of the check of a call."""
        link = self._transport.allgather
        return link.latency + 4 * HEAD * (self._ranks - 1) / link.bandwidth

    def choose(self, kept: float, spread: float) -> int:
        """The number of the fastest candidate; the first of equal ones."""
        return int(np.argmin(self.expected(kept, spread)))

    def expected(self, kept: float, spread: float) -> list[float]:
        """Expected seconds of each candidate."""
        layout = self._layout
        universe = max(spread * kept, kept) if spread else layout.size
        load = Load(
            self._ranks, layout.size, layout.width, layout.dtype.size, kept, universe, float(layout.dense_above)
        )
        return [collective_costs.seconds(each, load, self._transport) for each in CANDIDATES]

    def spread(self, kept: float, union: int, before: float) -> float:
        """`universe / kept` after a call whose union had `union` rows; -1 if that is not known."""
        if union < 0 or kept == 0:
            return before
        return collective_costs.universe(kept, union, self._ranks) / kept


def _eagerly(
    prepared: Prepared, communicator: Communicator, name: str, chooser: _Chooser, history: CallHistory
) -> Result:
    """The result, by an algorithm that is chosen immediately."""
    assert prepared.counts is not None
    kept, (calls, spread, _) = float(prepared.counts.mean()), history.read()
    expected = chooser.expected(kept, spread)
    expected[_GATHER] -= chooser.greeting  # the all-gather needs no separate check
    choice = int(np.argmin(expected))
    history.along = _MORE * int(prepared.counts.max()) if choice == _GATHER else -1
    if prepared.gathered is not None:
        choice = _GATHER
        result, union = _combined(prepared, prepared.layout.reduce(prepared.gathered, HEAD))
    else:
        result, union = _taking(choice, prepared, communicator, name, int(calls))
    history.write(Calls(calls + 1, chooser.spread(kept, union, spread), choice))
    return result


def _taking(choice: int, prepared: Prepared, communicator: Communicator, name: str, calls: int) -> tuple[Result, int]:
    """The result of one candidate, and the rows of the union, -1 if they are not known."""
    if CANDIDATES[choice] != "dynamic":
        message = SPARSE[CANDIDATES[choice]](prepared.layout, prepared.message, communicator, name)
        return _combined(prepared, message)
    vector = combine_prepared(prepared, communicator, name)
    tells = not prepared.full and _looks(calls)  # full vectors do not show how index sets overlap
    return prepared.vector(vector), int(_rows_there(prepared.layout, vector)) if tells else -1


def _combined(prepared: Prepared, message: tf.Tensor) -> tuple[Result, int]:
    """The result in a combined message, and its rows, -1 if it is dense."""
    form, rows = (int(word) for word in np.asarray(message)[:2])
    return prepared.result(message), rows if form == 0 else -1


def _in_graph(
    layout: Layout, message: tf.Tensor, communicator: Communicator, name: str, chooser: _Chooser, history: CallHistory
) -> tf.Tensor:
    """The vector, by an algorithm that is chosen when the graph runs."""
    counts = communicator.allgather(message[1:2], f"{name}.counts", [1] * communicator.size)
    kept = tf.reduce_mean(tf.cast(counts, tf.float64))
    variable = history.variable()
    calls, spread, _ = tf.unstack(variable.read_value())

    def choose(kept: np.ndarray, spread: np.ndarray) -> np.int32:
        return np.int32(chooser.choose(float(kept), float(spread)))

    def learn(kept: np.ndarray, union: np.ndarray, spread: np.ndarray) -> np.float64:
        return np.float64(chooser.spread(float(kept), int(union), float(spread)))

    def sparse(kind: str) -> tuple[tf.Tensor, tf.Tensor]:
        combined = SPARSE[kind](layout, message, communicator, f"{name}.{kind}")
        return layout.dense(combined), tf.where(combined[0] == 0, combined[1], -1)

    def dense() -> tuple[tf.Tensor, tf.Tensor]:
        vector = combine_dense(layout, message, communicator, f"{name}.dynamic")
        number = tf.cast(calls, tf.int64)
        looks = tf.bitwise.bitwise_and(number, number - 1) == 0
        return vector, tf.cond(looks, lambda: _rows_there(layout, vector), lambda: tf.constant(-1))

    branches = [functools.partial(sparse, kind) if kind in SPARSE else dense for kind in CANDIDATES]
    choice = tf.ensure_shape(tf.numpy_function(choose, [kept, spread], tf.int32, stateful=False), [])
    vector, union = tf.switch_case(choice, branches)
    learnt = tf.numpy_function(learn, [kept, union, spread], tf.float64, stateful=False)
    variable.assign(tf.stack([calls + 1, tf.ensure_shape(learnt, []), tf.cast(choice, tf.float64)]))
    return vector


def _looks(calls: int) -> bool:
    """Whether to count the rows of a dense result after this many calls, which takes one more pass over it."""
    return calls & (calls - 1) == 0


def _rows_there(layout: Layout, vector: tf.Tensor) -> tf.Tensor:
    """The number of rows of a vector [size, width] that are not neutral, [] int32."""
    return tf.math.count_nonzero(tf.reduce_any(vector != _NEUTRAL[layout.op], axis=1), dtype=tf.int32)


def measure(communicator: Communicator) -> Transport:
    """Times the calls that the candidates make; a collective, about a second.

    Args:
        communicator: the ranks that take part, at least 2.

    Returns:
        The costs, the same on every rank: each is the median over a few rounds of the slowest rank's time.
    """
    ranks, half = communicator.size, communicator.size // 2
    partner = communicator.rank + half if communicator.rank < half else communicator.rank - half
    other = partner if partner < 2 * half and communicator.rank < 2 * half else None

    def exchange(words: tf.Tensor) -> None:
        communicator.exchange(words, other, other, "auto.exchange")

    def alltoall(words: tf.Tensor) -> None:
        splits = tf.fill([ranks], tf.shape(words)[0])
        communicator.alltoall_ragged(tf.tile(words, [ranks]), splits, "auto.alltoall")

    def allgather(words: tf.Tensor) -> None:
        communicator.allgather(words, "auto.allgather")

    return Transport(
        _link(communicator, exchange, 1),
        _link(communicator, alltoall, ranks - 1),
        _link(communicator, allgather, ranks - 1),
        _combining(communicator),
    )


def _link(communicator: Communicator, call: Callable[[tf.Tensor], None], others: int) -> Link:
    """Latency and bandwidth of a call that sends some words to each of `others` ranks."""

    def seconds(each: int) -> float:
        words = tf.zeros([each], tf.int32)
        return timing.median_seconds(communicator, lambda: call(words), "auto")

    return timing.fit_link(seconds, _SIZES, 4 * others)


def _combining(communicator: Communicator) -> float:
    """Seconds per byte to combine two streams that share every other row."""
    layout = Layout(4 * _TIMED, (), tf.float32, "sum", None)
    rows = tf.range(_TIMED)
    values = tf.ones([_TIMED])
    messages = tf.concat([layout.pack(values, 2 * rows), layout.pack(values, 3 * rows)], 0)
    taken = timing.median_seconds(communicator, lambda: layout.reduce(messages), "auto")
    return taken / (4 * int(messages.shape[0]))


auto = Auto()

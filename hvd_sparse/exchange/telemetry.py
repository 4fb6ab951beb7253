"""Measures the cost of the exchange and what it leaves unsent, step by step, if requested."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.aggregators import Aggregator, Exchange
from hvd_sparse.compression.base import Compressor, Wrapper
from hvd_sparse.compression.gain_ratio import GainRatio
from hvd_sparse.compression.held import Thresholds
from hvd_sparse.exchange.plan import Gradient
from hvd_sparse.spec import rebuilt

_COUNTS = ("bytes_inside", "bytes_across", "selected", "considered")
_TOTALS = ("total_bytes_inside", "total_bytes_across")
_FIELDS = ("step", *_COUNTS, "exposed_seconds", "gradient_norm", *_TOTALS)

_SPAN = "_span"


class Telemetry:
    """Measures the exchanges of one optimizer or tape; pass it as `telemetry=`, or use `callbacks.TelemetryCallback`.

    `read` returns, for the last committed exchange:

    - step: the number of exchanges so far, including those before a restart.
    - recipe: the name of the recipe in `hvd.recipes`, such as "updates(hitopk)", and if another took its place, that
      one's, too: "auto: topk", "schedule: dense", on one node "hitopk: mean"; if several did, each. For an aggregator
      that no recipe made, its parts.
    - parts: those of the aggregator that ran, such as "Hierarchical/Compressed/ErrorFeedback/MSTopK".
    - bytes_inside, bytes_across: payload that this rank sent to ranks of its own node, and to other nodes. Horovod's
      own control messages and the all-reduce that agrees on faults (4 bytes per bucket) are not included, nor is what
      the ranks of a node gather or add up to look ahead or to run an optimizer that needs whole variables.
    - total_bytes_inside, total_bytes_across: the same over all exchanges since this object began to measure.
    - density: elements that this rank selected / elements among which it selected; 1 for dense recipes.
    - compression_ms: from when the input of a selection is ready until its output is, summed over buckets. Buckets may
      be selected in parallel, so this is work, not elapsed time. 0 for dense recipes.
    - exposed_communication_ms: from when this rank's last gradient is ready until every mean is: the time that a step
      waits for the exchange. It includes waiting for slower ranks, and the part of the selection within this time.
    - gradient_norm: Euclidean norm of this rank's own gradient as it entered the exchange (clipped if the recipe is
      sparse; without the residual), of the last step whose number is a multiple of `norms_every`.
    - residual_norm: Euclidean norm of this rank's own residual after the step; 0 for dense recipes.
    - clamped: how often, since training began, a variable's threshold was so far out of date that more or fewer
      elements were sent than reached it (`HeldThreshold`); 0 for all other recipes.
    - gain_ratio: the gain ratio of the nodes' gradients (`GainRatio`), the mean over buckets; 1 if it is not measured.

    Args:
        norms_every: steps from one gradient norm to the next, as each costs a pass over the gradient.
    """

    def __init__(self, norms_every: int = 1):
        if norms_every < 1:
            raise ValueError(f"Expected norms_every of at least 1, got {norms_every}.")
        self.norms_every = norms_every
        self._record: Any = None

    def create(self) -> None:
        """Creates the variable that holds the last step's figures."""
        self._record = tf.Variable(tf.zeros([len(_FIELDS)], tf.float64), trainable=False, name="telemetry")

    @property
    def step(self) -> int:
        """The number of the last measured exchange, from 1; 0 before the first."""
        return 0 if self._record is None else int(self._record[0].numpy())

    @property
    def total_bytes_across(self) -> int:
        """Payload that this rank has sent to other nodes in all exchanges so far; see the class."""
        return 0 if self._record is None else int(self._record[_FIELDS.index("total_bytes_across")].numpy())

    def time(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """The time at which all of these tensors are computed, [] float64 in seconds from an arbitrary start."""
        return _time(after, self._record.read_value()[0])

    def record(
        self,
        step: tf.Tensor,
        exchanges: Sequence[Exchange],
        gradients: Mapping[str, Gradient],
        exposed: tf.Tensor,
    ) -> None:
        """Writes the figures of a step; call it when its exchanges are committed.

        Args:
            step: [] int64, the number of exchanges including this one.
            exchanges: the exchanges of all buckets and rows.
            gradients: the gradients that were exchanged.
            exposed: [] float64, seconds that the step waited for the exchange.
        """
        last = self._record.read_value()
        wanted = tf.equal(step % self.norms_every, 0)
        norm = tf.cond(wanted, lambda: _norm(gradients), lambda: last[_FIELDS.index("gradient_norm")])
        sums = [tf.add_n([tf.cast(exchange.metrics[name], tf.float64) for exchange in exchanges]) for name in _COUNTS]
        totals = [last[_FIELDS.index(total)] + sent for total, sent in zip(_TOTALS, sums, strict=False)]
        self._record.assign(tf.stack([tf.cast(step, tf.float64), *sums, exposed, norm, *totals]))

    def read(self, asked: Aggregator, buckets: Sequence[tuple[Aggregator, Any]]) -> dict[str, Any]:
        """The figures of the last step, see the class; {} before the first one.

        Args:
            asked: the recipe that the user asked for.
            buckets: the aggregator of each bucket, and its state.
        """
        if self.step == 0:
            return {}
        fields = dict(zip(_FIELDS, self._record.numpy().tolist(), strict=True))
        norms = [float(tf.norm(aggregator.residual(state))) for aggregator, state in buckets]
        ran = [(aggregator, aggregator.running(state)[0]) for aggregator, state in buckets]
        return {
            "step": int(fields["step"]),
            "recipe": _each(_name(asked, used, part) for used, part in ran),
            "parts": _each(part_names(part) for _, part in ran),
            "bytes_inside": int(fields["bytes_inside"]),
            "bytes_across": int(fields["bytes_across"]),
            **{total: int(fields[total]) for total in _TOTALS},
            "density": fields["selected"] / max(fields["considered"], 1.0),
            "compression_ms": 1e3 * sum(_compression_seconds(aggregator, state) for aggregator, state in buckets),
            "exposed_communication_ms": 1e3 * fields["exposed_seconds"],
            "gradient_norm": fields["gradient_norm"],
            "residual_norm": math.hypot(*norms),
            "clamped": sum(_clamped(state) for _, state in buckets),
            "gain_ratio": _gain_ratio([state for _, state in buckets]),
        }


def _each(names: Iterable[str]) -> str:
    """Different names, each once; if there are none, only rows were exchanged."""
    return ", ".join(dict.fromkeys(names)) or "rows"


def _name(asked: Aggregator, used: Aggregator, ran: Aggregator) -> str:
    """The name of the recipe that the user asked for, and of the one that ran in its place."""
    given = asked.recipe_name or part_names(asked)
    instead = ran.recipe_name or ("" if used is asked else used.recipe_name)
    known = re.search(rf"(?<!\w){re.escape(instead)}(?!\w)", given)
    return given if known else f"{given}: {instead}"


def _time(after: Sequence[tf.Tensor], unknown: tf.Tensor) -> tf.Tensor:
    """The time at which all of these tensors are computed, [] float64 in seconds."""
    with tf.control_dependencies(list(after)):
        return ops.clock(unknown)


@dataclasses.dataclass(frozen=True)
class Timed(Wrapper):
    """A compressor that records when the one inside it begins and ends."""

    compressor: Compressor

    @property
    def described_as(self) -> Compressor:
        """The inner compressor, as measuring does not change what is sent."""
        return self.compressor

    @property
    def feeds_back(self) -> bool:  # type: ignore[override]
        """As for the compressor."""
        return self.compressor.feeds_back

    def create(self, spec):
        return _Stopwatch(self.compressor.create(spec), spec.name)

    def compress(self, parts, state, residual=None):
        last = state.span.read_value()[0]
        start = _time([parts], last)
        with tf.control_dependencies([start]):
            parts = tf.identity(parts)
        selection = self.compressor.compress(parts, state.inner, residual)
        stop = _time([selection.slices.values, selection.residual], last)
        return selection._replace(updates=(*selection.updates, (state.span, tf.stack([start, stop]))))


class _Stopwatch(tf.Module):
    def __init__(self, inner: tf.Module, name: str):
        super().__init__()
        self.inner = inner
        self.span = tf.Variable(tf.zeros([2], tf.float64), trainable=False, name=f"{name}{_SPAN}")


def is_figure(variable: tf.Variable) -> bool:
    """Whether a variable of a state only holds a measurement."""
    return variable.name.removesuffix(":0").endswith(_SPAN)


def timed(part: Any) -> Any:
    """The same aggregator with a `Timed` around each compressor that it calls."""
    if isinstance(part, Compressor):
        return Timed(part)
    measured = rebuilt(part, timed)
    if isinstance(part, Aggregator):
        object.__setattr__(measured, "recipe_name", part.recipe_name)  # its fields are frozen
    return measured


def part_names(aggregator: Aggregator) -> str:
    """An aggregator's part names, outermost first, such as "Hierarchical/Compressed/ErrorFeedback/MSTopK"."""
    names = []
    part: Any = aggregator
    while part is not None:
        if not isinstance(part, Timed):
            names.append(type(part).__name__)
        part = getattr(part, "inner", None) or getattr(part, "compressor", None)
    return "/".join(names)


def spans(state: tf.Module) -> list[tf.Variable]:
    """The last begin and end of each selection of a measured exchange, [2] float64 each, by `ops.clock`."""
    return [part.span for part in state.submodules if isinstance(part, _Stopwatch)]


def _compression_seconds(aggregator: Aggregator, state: Any) -> float:
    _, running = aggregator.running(state)
    return sum(float(span[1] - span[0]) for span in spans(running))


def _clamped(state: tf.Module) -> int:
    return sum(int(part.clamped.numpy()) for part in state.submodules if isinstance(part, Thresholds))


def _gain_ratio(states: Sequence[tf.Module]) -> float:
    ratios = [float(part.value()) for state in states for part in state.submodules if isinstance(part, GainRatio)]
    return sum(ratios) / len(ratios) if ratios else 1.0


def _norm(gradients: Mapping[str, Gradient]) -> tf.Tensor:
    values = [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients.values()
    ]
    squares = [tf.reduce_sum(tf.square(tf.cast(value, tf.float32))) for value in values]
    return tf.sqrt(tf.cast(tf.add_n(squares), tf.float64))

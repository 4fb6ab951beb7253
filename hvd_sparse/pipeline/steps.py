"""The steps of one stage: which micro-batches come and go, in which order, and what all stages agree on at the end."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.pipeline import messages, wire
from hvd_sparse.pipeline.messages import Activations, Wire
from hvd_sparse.pipeline.neighbours import Neighbours, Place, StageError
from hvd_sparse.pipeline.passes import Forward, Gradients, Last, Middle
from hvd_sparse.pipeline.schedules import Pass
from hvd_sparse.pipeline.threshold import kept_of
from link import Request, WireError

_DIGESTED = 4096  # bytes of each input by which stages know that they have the same batch
Logs = dict[str, Any]


class Verdict(NamedTuple):
    """How a step of training has ended, the same on all stages.

    Attributes:
        gradients: of this stage's variables.
        culprit: the stage whose gradients are not finite; "" where all are.
        logs: the metrics.
    """

    gradients: Sequence[Any]
    culprit: str
    logs: Logs


class Split(NamedTuple):
    """How activations leave a stage.

    Attributes:
        dtype: of values on the wire, of `messages.WIRE_DTYPES`.
        sparsity: the share of each row that is dropped; 0 sends all.
    """

    dtype: str = "float32"
    sparsity: float = 0.0

    def dtype_of(self, activation: tf.Tensor) -> str:
        """How values of this activation travel: those of half precision as they are, where nothing shorter is asked."""
        return activation.dtype.name if self.dtype == "float32" else self.dtype

    def kept(self, width: int) -> int | None:
        """Elements that travel of each row; None for all."""
        return kept_of(width, self.sparsity) if self.sparsity else None


class Incoming(NamedTuple):
    """A micro-batch that came in; nothing of it in the first stage.

    Attributes:
        request: to be answered.
        activations: that came.
        source: the same, dense.
        penalty: losses of the stages before.
    """

    request: Request | None = None
    activations: Activations | None = None
    source: tf.Tensor | None = None
    penalty: float = 0.0


class Micro(NamedTuple):
    """A micro-batch that went forward and has not come back.

    Attributes:
        incoming: how it came.
        forward: what the backward pass needs.
        handed_on: the activations that went out; None in the last stage.
        asked: the stage after this one, for the gradient.
    """

    incoming: Incoming
    forward: Forward
    handed_on: Activations | None = None
    asked: Any = None


class Traffic:
    """Bytes of payload that a stage has sent.

    Attributes:
        activations: forward.
        gradients: backward.
    """

    def __init__(self):
        self.activations = self.gradients = 0


class Steps:
    """What a stage does of each batch.

    Attributes:
        traffic: what it has sent.
    """

    def __init__(
        self,
        place: Place,
        neighbours: Neighbours | None,
        passes: Middle | Last,
        out: Split,
        begin: Callable[[tf.Tensor | None, Any], None],
        schedule: Callable[[int, int, int], list[Pass]],
        micro_batches: int,
    ):
        """Takes what does the work.

        Args:
            place: of the stage.
            neighbours: the stages before and after; None where this is the only one.
            passes: the arithmetic.
            out: how activations leave.
            begin: is called once before training, with the activation and the inputs of the first micro-batch, and
                makes all variables.
            schedule: the order of passes.
            micro_batches: into which a batch is cut.
        """
        self._place, self._neighbours, self._passes, self._out = place, neighbours, passes, out
        self._begin: Callable[[tf.Tensor | None, Any], None] | None = begin
        self._schedule, self._micro_batches = schedule, micro_batches
        self._step = 0
        self.traffic = Traffic()

    # ---- training ----

    def train(self, data: Sequence[Any], model: keras.Model) -> Verdict:
        """Takes a batch forward and backward; weights are not changed.

        Args:
            data: inputs, targets and sample weights.
            model: whose variables are trained.

        Raises:
            StageError: where a neighbour cannot.
        """
        self._step += 1
        parts, gradients = self._cut(data), Gradients(model)
        flying: dict[int, Micro] = {}
        logs: Logs = {}
        culprit = ""
        for each in self._schedule(self._place.stage, self._place.stages, len(parts)):
            if each.is_forward:
                flying[each.number], told = self._forward(each.number, parts)
                logs = told or logs
                continue
            is_end = each.number == len(parts) - 1
            told, blamed = self._backward(flying.pop(each.number), gradients, logs if is_end else {}, is_end)
            logs, culprit = told or logs, blamed or culprit
        return Verdict(gradients.sums, self._decided(culprit), logs)

    def _forward(self, number: int, parts: Sequence[Sequence[Any]]) -> tuple[Micro, Logs]:
        incoming, part = self._incoming("train", number, parts), parts[number]
        if self._begin is not None:
            self._begin(incoming.source, part[0])
            self._begin = None
        share = tf.constant(_rows(part) / sum(map(_rows, parts)), tf.float32)
        if isinstance(self._passes, Last):
            forward, logs = self._passes.forward(incoming.source, part, share, tf.constant(incoming.penalty))
            return Micro(incoming, forward), logs
        forward, output, penalty = self._passes.forward(incoming.source, part[0], share)
        handed_on, asked = self._hand_on("train", number, parts, output, incoming.penalty + float(penalty))
        return Micro(incoming, forward, handed_on, asked), {}

    def _backward(self, micro: Micro, gradients: Gradients, logs: Logs, is_end: bool) -> tuple[Logs, str]:
        """Takes one micro-batch backward; the metrics, and the culprit as far as it is known."""
        culprit, gradient = "", None
        if micro.handed_on is not None:
            answer = self._answer_to(micro.asked, "backward")
            with self._understanding(self._place.stage + 1):
                logs, culprit = wire.unpack_logs(answer.fields["logs"]) or logs, answer.fields["culprit"]
                gradient = self._gradient_of(answer.payload, micro)
        source = gradients.backward(micro.forward, gradient)
        if is_end and not gradients.are_finite():
            culprit = culprit or self._place.name()
        self._answer_backward(micro.incoming, source, logs, culprit)
        return logs, culprit

    def _gradient_of(self, payload: memoryview, micro: Micro) -> tf.Tensor:
        assert micro.handed_on is not None
        values = micro.handed_on.values
        wired = self._out.dtype_of(values)
        found = messages.decode_values(payload, tuple(values.shape), wired, values.dtype.name)
        return messages.placed(found, micro.handed_on.positions, micro.handed_on.width)

    def _answer_backward(self, incoming: Incoming, source: tf.Tensor | None, logs: Logs, culprit: str) -> None:
        if incoming.request is None or incoming.activations is None or self._neighbours is None:
            return
        kept = messages.taken(source, incoming.activations.positions)
        payload = messages.encode_values(kept, incoming.request.fields["wire"])
        self.traffic.gradients += payload.nbytes
        fields = {"culprit": culprit, "logs": wire.pack_logs(logs)}
        self._neighbours.answer(incoming.request, "backward", payload, **fields)

    def _decided(self, culprit: str) -> str:
        """What the first stage has found out about all of them; it comes once all gradients are there."""
        if self._neighbours is None:
            return culprit
        request = None
        if not self._place.is_first:
            request = self._neighbours.receive("decide")
            self._require_step(request.fields["step"])
            culprit = request.fields["culprit"]
        if not self._place.is_last:
            asked = self._neighbours.ask("decide", step=self._step, culprit=culprit)
            self._neighbours.answer_to(asked)
        if request is not None:
            self._neighbours.answer(request, "done")
        return culprit

    # ---- evaluation ----

    def test(self, data: Sequence[Any]) -> Logs:
        """Takes a batch forward; the metrics so far, the same on all stages."""
        return self._inferred("test", self._cut(data))[-1][1]

    def predict(self, x: Any) -> tf.Tensor:
        """Takes a batch forward; what the last stage says of it, on all stages."""
        return tf.concat([each for each, _ in self._inferred("predict", self._cut((x, None, None)))], 0)

    def _inferred(self, mode: str, parts: Sequence[Sequence[Any]]) -> list[tuple[tf.Tensor, Logs]]:
        """What the last stage says of each micro-batch."""
        self._step += 1
        if isinstance(self._passes, Last):
            return [self._last(self._passes, mode, number, parts) for number in range(len(parts))]
        asked = [self._ask(self._passes, mode, number, parts) for number in range(len(parts))]
        return [self._hand_back(incoming, each) for incoming, each in asked]

    def _last(self, passes: Last, mode: str, number: int, parts: Sequence[Sequence[Any]]) -> tuple[tf.Tensor, Logs]:
        incoming, part = self._incoming(mode, number, parts), parts[number]
        if mode == "test":
            result, logs = tf.zeros([1]), passes.evaluate(incoming.source, part)
        else:
            result, logs = _one_prediction(passes.predict(incoming.source, part[0])), {}
        self._answer_result(incoming, result, logs)
        return result, logs

    def _ask(self, passes: Middle, mode: str, number: int, parts: Sequence[Sequence[Any]]) -> tuple[Incoming, Any]:
        incoming = self._incoming(mode, number, parts)
        _, asked = self._hand_on(mode, number, parts, passes.infer(incoming.source, parts[number][0]), 0.0)
        return incoming, asked

    def _hand_back(self, incoming: Incoming, asked: Any) -> tuple[tf.Tensor, Logs]:
        answer = self._answer_to(asked, "result")
        with self._understanding(self._place.stage + 1):
            shape, dtype = messages.unpack_shape(answer.fields["shape"], 1), answer.fields["dtype"]
            result = messages.decode_values(answer.payload, shape, dtype, dtype)
            logs = wire.unpack_logs(answer.fields["logs"])
        self._answer_result(incoming, result, logs)
        return result, logs

    def _answer_result(self, incoming: Incoming, result: tf.Tensor, logs: Logs) -> None:
        if incoming.request is None or self._neighbours is None:
            return
        fields = {"shape": messages.pack_shape(tuple(result.shape)), "dtype": result.dtype.name}
        payload = messages.encode_values(result, result.dtype.name)
        self._neighbours.answer(incoming.request, "result", payload, logs=wire.pack_logs(logs), **fields)

    # ---- micro-batches that come and go ----

    def _incoming(self, mode: str, number: int, parts: Sequence[Sequence[Any]]) -> Incoming:
        """What the stage before has handed on of a micro-batch."""
        if self._place.is_first or self._neighbours is None:
            return Incoming()
        request = self._neighbours.receive("forward")
        said = request.fields
        own = {"mode": mode, "micro": number, "micros": len(parts), "batch": _digest(parts[number][0])}
        self._require_step(said["step"])
        for name, value in own.items():
            if said[name] != value:
                raise StageError(_DISAGREE.format(self._place.name(), name, value, said[name]))
        with self._understanding(self._place.stage - 1):
            shape = messages.unpack_shape(said["shape"])
            came = Wire(said["wire"], said["kept"] or None)
            activations = messages.decode_activations(request.payload, shape, came, said["dtype"])
        return Incoming(request, activations, activations.dense(), said["penalty"])

    def _hand_on(self, mode: str, number: int, parts: Sequence[Sequence[Any]], output: tf.Tensor, penalty: float):
        """Sends an activation to the stage after this one; what went, and the promise of an answer."""
        assert self._neighbours is not None
        kept = messages.kept_of(output, self._out.kept(output.shape[-1]))
        dtype = self._out.dtype_of(output)
        payload = messages.encode_activations(kept, dtype)
        self.traffic.activations += payload.nbytes
        asked = self._neighbours.ask(
            "forward",
            payload,
            mode=mode,
            step=self._step,
            micro=number,
            micros=len(parts),
            shape=messages.pack_shape(tuple(output.shape)),
            dtype=output.dtype.name,
            wire=dtype,
            kept=0 if kept.positions is None else kept.values.shape[-1],
            penalty=penalty,
            batch=_digest(parts[number][0]),
        )
        return kept, asked

    def _answer_to(self, asked: Any, kind: str) -> Any:
        assert self._neighbours is not None
        answer = self._neighbours.answer_to(asked)
        if answer.kind != kind:
            raise StageError(f"{self._place.name()} expected {kind!r} of the stage after it, got {answer.kind!r}.")
        return answer

    @contextlib.contextmanager
    def _understanding(self, sender: int) -> Iterator[None]:
        """Says whose message it was that cannot be read."""
        try:
            yield
        except (WireError, tf.errors.InvalidArgumentError, TypeError, ValueError) as problem:
            raise StageError(
                f"{self._place.name()} cannot read what {self._place.name(sender)} has sent: {problem}. Do all ranks "
                "run the same version?"
            ) from None

    def _require_step(self, step: int) -> None:
        if step != self._step:
            raise StageError(_DISAGREE.format(self._place.name(), "step", self._step, step))

    def _cut(self, data: Sequence[Any]) -> list[Sequence[Any]]:
        """The micro-batches of a batch, of as many samples as can be, at least one each."""
        rows = _rows(data)
        count = max(1, min(self._micro_batches, rows))
        ends = [rows * number // count for number in range(count + 1)]
        return [_slice(data, begin, end) for begin, end in itertools.pairwise(ends)]


_DISAGREE = (
    "{} and the stage before it disagree on the {}: {} here and {} there. Give all stages of a trainer the same data "
    "in the same order, as with shuffle=False or keras.utils.set_random_seed, and the same calls."
)


def _slice(data: Sequence[Any], begin: int, end: int) -> Sequence[Any]:
    return tf.nest.map_structure(lambda each: None if each is None else each[begin:end], data)


def _rows(data: Sequence[Any]) -> int:
    return int(tf.nest.flatten(data)[0].shape[0])


def _digest(inputs: Any) -> int:
    """Of the beginnings of all inputs: a number by which stages know whether they have the same batch."""
    digest = 0
    for each in tf.nest.flatten(inputs):
        values = np.ascontiguousarray(each).reshape(-1)
        if values.dtype.hasobject:
            continue  # such as strings
        digest = zlib.crc32(values[: max(1, _DIGESTED // max(1, values.itemsize))].tobytes(), digest)
    return digest


def _one_prediction(predicted: Any) -> tf.Tensor:
    if not tf.is_tensor(predicted):
        raise ValueError(
            f"Expected one tensor of the last stage, got {len(tf.nest.flatten(predicted))}: predict with the parts "
            "themselves."
        )
    return predicted

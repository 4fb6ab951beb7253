"""The steps of one stage: which micro-batches are processed in which order, and what all stages agree on at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvd_sparse.pipeline import clipping, messages, wire
from hvd_sparse.pipeline.batches import MicroBatch, cut
from hvd_sparse.pipeline.gradients import Gradients
from hvd_sparse.pipeline.messages import Activations, Wire
from hvd_sparse.pipeline.neighbours import Neighbours, Place, StageError
from hvd_sparse.pipeline.packing import Packed
from hvd_sparse.pipeline.passes import Finished, Last, Middle, Recorded
from hvd_sparse.pipeline.schedules import Pass
from hvd_sparse.pipeline.threshold import kept_of
from link import Request, WireError

Logs = dict[str, Any]


class End(NamedTuple):
    """What a stage knows of a step once it has all gradients, of itself and later stages; finally that of all stages.

    Attributes:
        logs: the metrics.
        culprit: the stage whose gradients are not finite; "" if all are finite.
        squares: the sum of squares of gradients, or `clipping.UNKNOWN`.
    """

    logs: Logs
    culprit: str = ""
    squares: float = clipping.UNKNOWN


class Verdict(NamedTuple):
    """The outcome of a training step.

    Attributes:
        gradients: of this stage's variables.
        end: the same on all stages.
    """

    gradients: Packed
    end: End


class Split(NamedTuple):
    """How activations leave a stage.

    Attributes:
        dtype: of values on the wire, one of `messages.WIRE_DTYPES`.
        sparsity: the share of each row that is dropped; 0 sends all.
    """

    dtype: str = "float32"
    sparsity: float = 0.0

    def wire(self, width: int, dtype: str) -> Wire:
        """How rows of this many elements are sent: half precision as it is, unless a shorter dtype is asked for."""
        kept = kept_of(width, self.sparsity) if self.sparsity else width
        return Wire(dtype if self.dtype == "float32" else self.dtype, kept if kept < width else None)


class Incoming(NamedTuple):
    """A micro-batch that came in; empty in the first stage.

    Attributes:
        request: to be answered.
        activations: as received.
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
        incoming: as it came in.
        forward: what the backward pass needs.
        handed_on: the activations that were sent on; None in the last stage.
        asked: the request to the next stage, for the gradient.
    """

    incoming: Incoming
    forward: Recorded | Finished
    handed_on: Activations | None = None
    asked: Any = None


class Traffic:
    """Bytes of payload that a stage has sent.

    Attributes:
        activations: bytes sent forward.
        gradients: bytes sent backward.
    """

    def __init__(self):
        self.activations = self.gradients = 0


class Steps:
    """What a stage does with each batch.

    Attributes:
        traffic: bytes that it has sent.
    """

    def __init__(
        self,
        place: Place,
        neighbours: Neighbours | None,
        passes: Middle | Last,
        before: Split,
        after: Split,
        begin: Callable[[tf.Tensor | None, Any], None],
        schedule: Callable[[int, int, int], list[Pass]],
        micro_batches: int,
    ):
        """Takes the parts that do the work.

        Args:
            place: of the stage.
            neighbours: the stages before and after; None if this is the only one.
            passes: the computation.
            before: how activations arrive.
            after: how activations leave.
            begin: called once before training, with the activation and the inputs of the first micro-batch; creates all
                variables.
            schedule: the order of passes.
            micro_batches: the number that a batch is cut into.
        """
        self._place, self._neighbours, self._passes = place, neighbours, passes
        self._before, self._after = before, after
        self._begin: Callable[[tf.Tensor | None, Any], None] | None = begin
        self._schedule, self._micro_batches = schedule, micro_batches
        self._step = 0
        self.traffic = Traffic()

    # ---- training ----

    def train(self, data: Sequence[Any], model: keras.Model) -> Verdict:
        """Takes a batch forward and backward; weights are not changed.

        Args:
            data: inputs, targets and sample weights.
            model: the model with the trained variables.

        Raises:
            StageError: if a neighbour fails.
        """
        self._step += 1
        parts, gradients = cut(data, self._micro_batches), Gradients(model)
        flying: dict[int, Micro] = {}
        end = End({})
        for each in self._schedule(self._place.stage, self._place.stages, len(parts)):
            if each.is_forward:
                flying[each.number], logs = self._forward(each.number, parts)
                end = End(logs or end.logs)
            else:
                is_end = each.number == len(parts) - 1
                end = self._backward(flying.pop(each.number), gradients, end, is_end)
        return Verdict(gradients.packed, self._decided(end))

    def _forward(self, number: int, parts: Sequence[MicroBatch]) -> tuple[Micro, Logs]:
        incoming, part = self._incoming("train", number, parts), parts[number]
        share = tf.constant(part.share, tf.float32)
        with self._computing(incoming):
            if self._begin is not None:
                self._begin(incoming.source, part.data[0])
                self._begin = None
            if isinstance(self._passes, Last):
                finished, logs = self._passes.forward(incoming.source, part.data, share, tf.constant(incoming.penalty))
                return Micro(incoming, finished), logs
            forward, output, penalty = self._passes.forward(incoming.source, part.data[0], share)
        handed_on, asked = self._hand_on("train", number, parts, output, incoming.penalty + float(penalty))
        return Micro(incoming, forward, handed_on, asked), {}

    def _backward(self, micro: Micro, gradients: Gradients, end: End, is_end: bool) -> End:
        """Takes one micro-batch backward, and passes what is known of the step to the previous stage."""
        gradient = None
        if micro.handed_on is not None:
            answer = self._answer_to(micro.asked, "backward")
            with self._understanding(self._place.stage + 1):
                logs = wire.unpack_logs(answer.fields["logs"])
                end = End(logs or end.logs, answer.fields["culprit"], answer.fields["squares"])
                gradient = self._gradient_of(answer.payload, micro)
        source = gradients.backward(micro.forward, gradient)
        if is_end:
            end = self._with_own(end, gradients)
        self._answer_backward(micro.incoming, source, end if is_end else End({}))
        return end

    def _with_own(self, end: End, gradients: Gradients) -> End:
        culprit = end.culprit or ("" if gradients.are_finite() else self._place.name())
        squares = gradients.squares()
        if not self._place.is_last:
            self._require_both(squares, end.squares, self._place.stage + 1)
            squares = squares + end.squares if squares >= 0.0 else clipping.UNKNOWN
        return End(end.logs, culprit, squares)

    def _require_both(self, own: float, others: float, stage: int) -> None:
        """Raises an error unless two stages both clip by the norm of all gradients, or neither does."""
        if (own < 0.0) != (others < 0.0):
            does, does_not = (stage, None) if own < 0.0 else (None, stage)
            raise StageError(
                f"{self._place.name(does)} clips by global_clipnorm, and {self._place.name(does_not)} does not: give "
                "all stages the same optimizer."
            )

    def _gradient_of(self, payload: memoryview, micro: Micro) -> tf.Tensor:
        assert micro.handed_on is not None
        values, width = micro.handed_on.values, micro.handed_on.width
        wired = self._after.wire(width, values.dtype.name)
        found = messages.decode_values(payload, tuple(values.shape), wired.dtype, values.dtype.name)
        return messages.placed(found, micro.handed_on.positions, width)

    def _answer_backward(self, incoming: Incoming, source: tf.Tensor | None, end: End) -> None:
        if incoming.request is None or incoming.activations is None or self._neighbours is None:
            return
        kept = messages.taken(source, incoming.activations.positions)
        payload = messages.encode_values(kept, incoming.request.fields["wire"])
        self.traffic.gradients += payload.nbytes
        fields = {"culprit": end.culprit, "squares": end.squares, "logs": wire.pack_logs(end.logs)}
        self._neighbours.answer(incoming.request, "backward", payload, **fields)

    def _decided(self, end: End) -> End:
        """The first stage's findings about all stages; they arrive once all gradients are there."""
        if self._neighbours is None:
            return end
        request = None
        if not self._place.is_first:
            request = self._neighbours.receive("decide")
            self._require_step(request.fields["step"])
            self._require_both(end.squares, request.fields["squares"], self._place.stage - 1)
            end = End(end.logs, request.fields["culprit"], request.fields["squares"])
        if not self._place.is_last:
            asked = self._neighbours.ask("decide", step=self._step, culprit=end.culprit, squares=end.squares)
            self._answer_to(asked, "done")
        if request is not None:
            self._neighbours.answer(request, "done")
        return end

    # ---- evaluation ----

    def test(self, data: Sequence[Any]) -> Logs:
        """Takes a batch forward; returns the metrics so far, the same on all stages."""
        return self._inferred("test", cut(data, self._micro_batches))[-1][1]

    def predict(self, x: Any) -> tf.Tensor:
        """Takes a batch forward; returns the last stage's predictions, on all stages."""
        parts = cut((x, None, None), self._micro_batches)
        return tf.concat([each for each, _ in self._inferred("predict", parts)], 0)

    def _inferred(self, mode: str, parts: Sequence[MicroBatch]) -> list[tuple[tf.Tensor, Logs]]:
        """The last stage's predictions for each micro-batch."""
        self._step += 1
        if isinstance(self._passes, Last):
            return [self._last(self._passes, mode, number, parts) for number in range(len(parts))]
        asked = [self._ask(self._passes, mode, number, parts) for number in range(len(parts))]
        return [self._hand_back(incoming, each) for incoming, each in asked]

    def _last(self, passes: Last, mode: str, number: int, parts: Sequence[MicroBatch]) -> tuple[tf.Tensor, Logs]:
        incoming, part = self._incoming(mode, number, parts), parts[number]
        with self._computing(incoming):
            if mode == "test":
                result, logs = tf.zeros([1]), passes.evaluate(incoming.source, part.data)
            else:
                result, logs = _one_prediction(passes.predict(incoming.source, part.data[0])), {}
        self._answer_result(incoming, result, logs)
        return result, logs

    def _ask(self, passes: Middle, mode: str, number: int, parts: Sequence[MicroBatch]) -> tuple[Incoming, Any]:
        incoming = self._incoming(mode, number, parts)
        with self._computing(incoming):
            output = passes.infer(incoming.source, parts[number].data[0])
        return incoming, self._hand_on(mode, number, parts, output, 0.0)[1]

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

    # ---- incoming and outgoing micro-batches ----

    def _incoming(self, mode: str, number: int, parts: Sequence[MicroBatch]) -> Incoming:
        """What the previous stage has sent of a micro-batch."""
        if self._place.is_first or self._neighbours is None:
            return Incoming()
        request = self._neighbours.receive("forward")
        said = request.fields
        own = {"mode": mode, "micro": number, "micros": len(parts), "batch": parts[number].digest}
        self._require_step(said["step"])
        for name, value in own.items():
            if said[name] != value:
                raise self._disagreement(name, value, said[name])
        with self._understanding(self._place.stage - 1):
            shape, dtype = messages.unpack_shape(said["shape"]), said["dtype"]
            came, agreed = Wire(said["wire"], said["kept"] or None), self._before.wire(shape[-1], dtype)
            if came != agreed:
                raise WireError(f"activations as {came} where {agreed} was agreed on")
            activations = messages.decode_activations(request.payload, shape, came, dtype)
            return Incoming(request, activations, activations.dense(), said["penalty"])

    def _hand_on(self, mode: str, number: int, parts: Sequence[MicroBatch], output: tf.Tensor, penalty: float):
        """Sends an activation to the next stage; returns what was sent, and the future of the answer."""
        assert self._neighbours is not None
        wired = self._after.wire(output.shape[-1], output.dtype.name)
        kept = messages.kept_of(output, wired.kept)
        payload = messages.encode_activations(kept, wired.dtype)
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
            wire=wired.dtype,
            kept=wired.kept or 0,
            penalty=penalty,
            batch=parts[number].digest,
        )
        return kept, asked

    def _answer_to(self, asked: Any, kind: str) -> Any:
        assert self._neighbours is not None
        answer = self._neighbours.answer_to(asked)
        if answer.kind != kind:
            after = self._place.name(self._place.stage + 1)
            raise StageError(f"{self._place.name()} expected {kind!r} of {after}, got {answer.kind!r}.")
        return answer

    @contextlib.contextmanager
    def _understanding(self, sender: int) -> Iterator[None]:
        """Names the sender of a message that cannot be read."""
        try:
            yield
        except (WireError, tf.errors.OpError, TypeError, ValueError) as problem:
            raise StageError(
                f"{self._place.name()} cannot read what {self._place.name(sender)} sent: {problem}. Do all ranks "
                "run the same version?"
            ) from None

    @contextlib.contextmanager
    def _computing(self, incoming: Incoming) -> Iterator[None]:
        """Notes on an error of the model which activation it was given."""
        try:
            yield
        except Exception as problem:
            if incoming.source is not None:
                shape, dtype = list(incoming.source.shape), incoming.source.dtype.name
                sender = self._place.name(self._place.stage - 1)
                problem.add_note(f"{self._place.name()} received an activation {shape} of {dtype} from {sender}.")
            raise

    def _require_step(self, step: int) -> None:
        if step != self._step:
            raise self._disagreement("step", self._step, step)

    def _disagreement(self, what: str, here: Any, there: Any) -> StageError:
        return StageError(
            f"{self._place.name()} and {self._place.name(self._place.stage - 1)} disagree on the {what}: {here} here "
            f"and {there} there. Give all stages of a trainer the same data in the same order, for example "
            "with shuffle=False or keras.utils.set_random_seed, and the same calls."
        )


def _one_prediction(predicted: Any) -> tf.Tensor:
    if not tf.is_tensor(predicted):
        raise ValueError(
            f"Expected one tensor from the last stage, got {len(tf.nest.flatten(predicted))}: predict with the parts "
            "themselves."
        )
    return predicted

"""A client: what it sends of its gradients, and its copy of the parameters."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor, Selection, Wrapper
from hvd_sparse.compression.quantizers import Where
from hvd_sparse.compression.selectors import Quantized
from hvd_sparse.servers.messages import Codes, Entries, MessageError, Pull
from hvd_sparse.servers.wire import Decode
from hvd_sparse.spec import Spec, shards

_REMEDY = (
    "Nothing was sent: residuals and variables are as before this step. Look for a learning rate that is too high or "
    "for bad input on that rank."
)


class Pushes(tf.Module):
    """Selects what is sent of a gradient to each server, and keeps the rest."""

    def __init__(self, compressor: Compressor | None, shards: Sequence[Spec]):
        """Takes a compressor with error feedback, or None to send all; and the servers' shards."""
        super().__init__()
        self._compressor, self._shards = compressor, tuple(shards)
        self._states = [compressor.create(spec) for spec in shards if spec.size] if compressor is not None else []

    def choose(self, gradient: Sequence[tf.Tensor]) -> list[tuple[tf.Tensor, ...]]:
        """What to send to each server; also works in a graph. `entries` makes messages of it.

        For each server (values,) float32, or values and indices int32, with codes and scales after them if values are
        coded.

        Args:
            gradient: float32 vectors that are [d] end to end, as the shards' segments are.

        Raises:
            tf.errors.InvalidArgumentError: if it is not finite; no state has changed.
        """
        parts = cut_anew(gradient, [spec.size for spec in self._shards])
        if self._compressor is None:
            culprit = tf.reduce_max(tf.stack([ops.sum_parts(part[tf.newaxis])[1] for part in parts]))
            with tf.control_dependencies([self._checked(culprit)]):
                return [(tf.identity(part),) for part in parts]
        chosen = [  # except for empty shards, which come last
            self._compressor.compress(tf.expand_dims(part, 0), state)
            for part, state in zip(parts, self._states, strict=False)
        ]
        culprit = tf.reduce_max(tf.stack([selection.culprit for selection in chosen]))
        with tf.control_dependencies([self._checked(culprit)]):
            for selection in chosen:
                for variable, value in selection.updates:
                    variable.assign(value)
            sent = [tuple(tf.identity(part) for part in _sent(selection)) for selection in chosen]
        return [*sent, *((part,) for part in parts[len(sent) :])]

    def waiting(self) -> tf.Tensor:
        """The residual: what this client has not sent yet, [d] float32."""
        if self._compressor is None:
            return tf.zeros([sum(spec.size for spec in self._shards)], tf.float32)
        kept = [self._compressor.waiting(state) for state in self._states]
        return tf.concat([tf.zeros([0], tf.float32) if each is None else each for each in kept], 0)

    def memory(self) -> dict[str, np.ndarray]:
        """All other state, under lasting names: velocities, an optimizer's slots, what seeds are derived from."""
        return {name: variable.numpy() for name, variable in self._memory().items()}

    def restore(self, vector: np.ndarray, memory: Mapping[str, np.ndarray] = {}) -> None:
        """Restores saved state, before the first gradient; does nothing if all is sent.

        Args:
            vector: [d] float32, the residual.
            memory: what `memory` returned, for a client of as many servers; all of it starts anew if names differ.
        """
        ends = np.cumsum([spec.size for spec in self._shards])
        for part, residual in zip(np.split(vector, ends[:-1]), self._residuals(), strict=False):
            residual.assign(part)
        here = self._memory()
        if here.keys() == memory.keys():
            for name, variable in here.items():
                variable.assign(memory[name])

    def _residuals(self) -> list[tf.Variable]:
        if self._compressor is None:
            return []
        found = [self._compressor.residual(state) for state in self._states]
        return [each for each in found if each is not None]

    def _memory(self) -> dict[str, tf.Variable]:
        residuals = {id(residual) for residual in self._residuals()}
        return {
            f"{number}{variable.name.rpartition(spec.name)[2].removesuffix(':0')}": variable
            for number, (spec, state) in enumerate(zip(self._shards, self._states, strict=False))
            for variable in state.variables
            if id(variable) not in residuals
        }

    def _checked(self, culprit: tf.Tensor) -> tf.Tensor:
        rank = self._shards[0].grid.world.world_rank
        blamed = tf.where(tf.equal(culprit, 0), 0, 1 + rank)
        return ops.check_faults(blamed[tf.newaxis], ["the gradient"], _REMEDY)


def entries(parts: Sequence[np.ndarray]) -> Entries:
    """The message for a server, made from what `Pushes.choose` returned for it."""
    coded = Codes(*parts[2:]) if len(parts) > 2 else None
    return Entries(parts[0], parts[1] if len(parts) > 1 else None, coded)


def decoder(compressor: Compressor | None, shard: Spec) -> Decode | None:
    """The function that decodes a compressor's coded values for a shard; None if it codes nothing."""
    while isinstance(compressor, Wrapper) and not isinstance(compressor, Quantized):
        compressor = compressor.compressor
    if not isinstance(compressor, Quantized):
        return None
    quantizer = compressor.quantizer

    def decode(coded: Codes, indices: np.ndarray) -> np.ndarray:
        where = Where(tf.constant(indices), shard.matrices)
        try:
            return quantizer.decode(tf.constant(coded.codes), tf.constant(coded.scales), len(indices), where).numpy()
        except tf.errors.InvalidArgumentError as problem:
            raise MessageError(f"undecodable codes: {problem.message}") from None

    return decode


def _sent(selection: Selection) -> list[tf.Tensor]:
    chosen = [tf.cast(selection.slices.values, tf.float32), selection.slices.indices]
    return chosen if selection.coded is None else [*chosen, selection.coded.codes, selection.coded.scales]


class Copy:
    """A client's copy of all parameters, [d] float32, as the servers have sent it.

    It tracks what has changed since the last look, so that a reader need not look at more than that.

    Attributes:
        values: [d] float32.
    """

    def __init__(self, shards: Sequence[Spec]):
        """Takes the servers' shards."""
        self._shards = tuple(shards)
        self._news: list[tuple[np.ndarray, np.ndarray]] | None = None  # values and places; None means all
        self._taken = [0] * len(self._shards)  # the last push whose answer was applied, by server
        self.values = np.zeros(sum(spec.size for spec in shards), np.float32)

    def take(self, server: int, number: int, pull: Pull) -> None:
        """Applies a server's answer to push `number`; MessageError if it does not fit.

        Values replace what is there. Differences are added to the previous answer, and are not added twice.
        """
        spec = self._shards[server]
        if pull.number != number:
            raise MessageError(f"an answer to push {pull.number}, where {number} was asked")
        came, own = pull.parameters.checked(spec.size), self.of(server)
        if not pull.is_difference:
            came.set_in(own)
        elif number == self._taken[server]:
            return
        elif number == self._taken[server] + 1:
            came = came.add_to(own)
        else:
            raise MessageError(f"differences from answer {number - 1}, where {self._taken[server]} was the last")
        self._taken[server] = number
        self._note(spec.offset, came)

    def news(self) -> Entries:
        """What has changed since the last call; everything the first time, and after `forget_who_looked`.

        Values without places are all values, and are not a copy.
        """
        news, self._news = self._news, []
        if news is None:
            return Entries(self.values)
        values, places = zip((np.zeros(0, np.float32), np.zeros(0, np.int32)), *news, strict=True)
        return Entries(np.concatenate(values), np.concatenate(places))

    def forget_who_looked(self) -> None:
        """Makes everything news: the reader of the copy now holds something else."""
        self._news = None

    def of(self, server: int) -> np.ndarray:
        """The part that a server has, [size] float32."""
        spec = self._shards[server]
        return self.values[spec.offset : spec.offset + spec.size]

    def _note(self, offset: int, entries: Entries) -> None:
        """Records what has changed, as long as that is less than everything."""
        if self._news is None:
            return
        noted = sum(len(values) for values, _ in self._news)
        if entries.indices is None or noted + len(entries.values) > len(self.values):
            self._news = None
        else:
            self._news.append((entries.values, entries.indices + np.int32(offset)))


def cut(whole: Spec, servers: int) -> list[Spec]:
    """The servers' shards of a vector, in equal parts; with a short vector the last ones may be empty."""
    return [
        whole._replace(size=each.size, offset=each.offset, name=f"{whole.name}.{server}", number=server)
        for server, each in enumerate(shards(whole.size, servers))
    ]


def slices(vector: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    """Cuts a vector [d] into vectors of these sizes; TensorFlow copies none that begins and ends at 64 bytes."""
    ends = itertools.accumulate(sizes)
    return [tf.slice(vector, [end - size], [size]) for end, size in zip(ends, sizes, strict=True)]


def cut_anew(pieces: Sequence[tf.Tensor], sizes: Sequence[int]) -> list[tf.Tensor]:
    """Cuts vectors that are [d] end to end anew, into these sizes; a part within one is not copied, see `slices`."""
    left = collections.deque(pieces)
    parts = []
    for size in sizes:
        taken: list[tf.Tensor] = []
        while size > 0:
            piece = left.popleft()
            if piece.shape[0] > size:
                piece, rest = slices(piece, [size, piece.shape[0] - size])
                left.appendleft(rest)
            taken.append(piece)
            size -= piece.shape[0]
        parts.append(taken[0] if len(taken) == 1 else tf.concat([tf.zeros([0]), *taken], 0))
    return parts


def unpacked(vector: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """A vector [d] as tensors of these shapes."""
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    return [tf.reshape(part, shape) for part, shape in zip(tf.split(vector, sizes), shapes, strict=True)]

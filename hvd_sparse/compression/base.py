"""The base classes of compressors, which choose what one rank sends of a vector."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.compression.quantizers import Quantizer
from hvd_sparse.spec import Matrix, Spec

NewValues = tuple[tuple[tf.Variable, tf.Tensor], ...]  # variables and the values that they take on commit


class Coded(NamedTuple):
    """The values of a selection in quantized form, as `quantizer.decode` takes them.

    Attributes:
        codes: uint8, see `Quantizer`.
        scales: float32.
        quantizer: the quantizer that encoded them, the same on every rank.
        matrices: the matrices that make up the vector, as they were passed to the quantizer.
    """

    codes: tf.Tensor
    scales: tf.Tensor
    quantizer: Quantizer
    matrices: tuple[Matrix, ...] = ()


class Selection(NamedTuple):
    """What a compressor returns.

    Attributes:
        slices: the selected elements: values [k] in the wire dtype, unique indices [k] int32.
        residual: [size] float32, what is not sent: the input minus what the receivers decode.
        culprit: [] int32, 0, or 1 + the number of the first part that holds a NaN or an infinity, or 1 + the number of
            parts if only their sum overflows.
        updates: (variable, new value) of the compressor's own state, to be assigned when the exchange is committed.
        coded: the values in fewer bits, which decode to exactly the same bits; None if there is no such form.
        report: float32 [r], numbers of which the compressor needs the mean over all senders; None if there are none.
    """

    slices: tf.IndexedSlices
    residual: tf.Tensor
    culprit: tf.Tensor
    updates: tuple[tuple[tf.Variable, tf.Tensor], ...] = ()
    coded: Coded | None = None
    report: tf.Tensor | None = None


class Compressor(abc.ABC):
    """Selects the elements of a vector that are sent; `wire_dtype` is the dtype in which their values travel."""

    feeds_back = False
    holds = False  # whether there may be steps without an exchange
    has_own_code = False  # whether values travel encoded, not in a plain dtype
    counts_differ = False  # whether ranks send different numbers of elements in the same step
    wire_dtype: str

    @property
    def share(self) -> float | None:
        """The share of a vector that is sent, if it is the same in each step; None if not, or if another part says."""
        density = getattr(self, "density", None)
        return None if callable(density) else density

    @abc.abstractmethod
    def create(self, spec: Spec) -> tf.Module:
        """Creates the state for one vector."""

    @abc.abstractmethod
    def count(self, size: int) -> int | None:
        """The number of elements sent of a vector of this size; None if it differs between steps or ranks."""

    def expected(self, size: int) -> int | None:
        """The expected number of elements sent of a vector of this size; None if it differs between steps."""
        return self.count(size)

    @abc.abstractmethod
    def at_density(self, density: float) -> Compressor:
        """The same compressor at another density; both can use the same state."""

    def residual(self, state: tf.Module) -> tf.Variable | None:
        """The variable [size] float32 that holds what was not sent; None if that is dropped."""
        return None

    def waiting(self, state: tf.Module) -> tf.Tensor | None:
        """All that was not sent, [size] float32, wherever it is kept; None if it is dropped."""
        kept = self.residual(state)
        return None if kept is None else kept.read_value()

    def progress(self, state: tf.Module) -> tf.Tensor | None:
        """How far the sender is ahead of the weights that all ranks share, [size] float32; None if it never is."""
        return self.waiting(state)

    def cleared(self, state: tf.Module) -> NewValues:
        """The new values of state other than the residual, for when its content has moved into the residual."""
        return ()

    def hold(self, parts: tf.Tensor, state: tf.Module) -> tuple[tf.Tensor, NewValues]:
        """Takes a step without an exchange and returns the culprit, as in `Selection`, and the state's new values.

        Args:
            parts: as for `compress`.
            state: what `create` returned.

        Raises:
            TypeError: if nothing can wait, that is, `holds` is False.
        """
        raise TypeError(f"{type(self).__name__} cannot defer values to a later step.")

    def attend(self, parts: tf.Tensor, state: tf.Module) -> tf.Tensor:
        """Takes part, on a rank with an empty shard, in the node's collectives while the other ranks `compress`.

        Args:
            parts: [n, 0]; the graph does not know that it is empty.
            state: what `create` returned.

        Returns:
            [n, 0], computed from the result of the collectives, so that the graph does not prune them.
        """
        return parts

    def reported(self, mean: tf.Tensor, state: tf.Module) -> NewValues:
        """The new values of state that follow from the mean of the senders' reports, `Selection.report`.

        Args:
            mean: [r] float32, the same on all senders.
            state: what `create` returned.
        """
        return ()

    @abc.abstractmethod
    def compress(self, parts: tf.Tensor, state: tf.Module, residual: tf.Tensor | None = None) -> Selection:
        """Selects from residual + the sum of the parts, in one pass over memory.

        Args:
            parts: [n, size] float32, float16 or bfloat16; they are summed in order, in float32.
            state: what `create` returned.
            residual: [size] float32, added last; None adds nothing.

        Law: slices + residual of the selection == residual + parts, exactly up to float32's rounding of that sum.
        """


class Wrapper(Compressor):
    """A compressor around another one, `compressor`, to which it passes on all that it does not change.

    The state of the inner compressor is the attribute `inner` of this one's state.
    """

    compressor: Compressor

    @property
    def wire_dtype(self) -> str:  # type: ignore[override]
        """As for the compressor."""
        return self.compressor.wire_dtype

    def count(self, size):
        return self.compressor.count(size)

    def expected(self, size):
        return self.compressor.expected(size)

    def at_density(self, density):
        whole: Any = self
        return dataclasses.replace(whole, compressor=self.compressor.at_density(density))

    @property
    def holds(self) -> bool:  # type: ignore[override]
        """As the compressor."""
        return self.compressor.holds

    @property
    def counts_differ(self) -> bool:  # type: ignore[override]
        """As for the compressor."""
        return self.compressor.counts_differ

    def residual(self, state: Any) -> tf.Variable | None:
        """As for the compressor."""
        return self.compressor.residual(state.inner)

    def waiting(self, state: Any) -> tf.Tensor | None:
        """As for the compressor."""
        return self.compressor.waiting(state.inner)

    def progress(self, state: Any) -> tf.Tensor | None:
        """As for the compressor."""
        return self.compressor.progress(state.inner)

    def cleared(self, state: Any) -> NewValues:
        """As for the compressor."""
        return self.compressor.cleared(state.inner)

    def hold(self, parts: tf.Tensor, state: Any) -> tuple[tf.Tensor, NewValues]:
        """As the compressor."""
        return self.compressor.hold(parts, state.inner)

    def attend(self, parts: tf.Tensor, state: Any) -> tf.Tensor:
        """As the compressor."""
        return self.compressor.attend(parts, state.inner)

    def reported(self, mean: tf.Tensor, state: Any) -> NewValues:
        """As for the compressor."""
        return self.compressor.reported(mean, state.inner)

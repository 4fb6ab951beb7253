"""The role: a vector goes in, what one rank sends of it comes out."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse._renamed import Renamed
from hvd_sparse.compression.quantizers import Quantizer
from hvd_sparse.spec import Matrix, Spec

NewValues = tuple[tuple[tf.Variable, tf.Tensor], ...]  # variables and what they take on commit


class Coded(NamedTuple):
    """How the values of a selection can travel: what `quantizer.decode` turns into them.

    Attributes:
        codes: uint8, see `Quantizer`.
        scales: float32.
        quantizer: what made them, the same on every rank.
        matrices: what the vector consists of, as the quantizer was told.
    """

    codes: tf.Tensor
    scales: tf.Tensor
    quantizer: Quantizer
    matrices: tuple[Matrix, ...] = ()


class Selection(NamedTuple):
    """What a compressor hands on.

    Attributes:
        slices: the kept elements: values [k] in the wire's dtype, unique indices [k] int32.
        residual: [size] float32, what is not sent: input - what the receivers decode.
        culprit: [] int32, 0, or 1 + the number of the first part that holds a NaN or an infinity, or 1 + the number of
            parts where only their sum overflows.
        updates: (variable, new value) of the compressor's own state, to be assigned when the exchange is committed.
        coded: the values in fewer bits, to the bit the same when decoded; None where there is no such form.
    """

    slices: tf.IndexedSlices
    residual: tf.Tensor
    culprit: tf.Tensor
    updates: tuple[tuple[tf.Variable, tf.Tensor], ...] = ()
    coded: Coded | None = None


class Compressor(Renamed, abc.ABC):
    """Chooses which elements of a vector are sent; `wire_dtype` names the dtype in which their values travel."""

    old_names = {"kept_back": "residual"}
    feeds_back = False
    holds = False  # whether there may be steps without an exchange
    has_own_code = False  # whether values travel in a form that no dtype names
    counts_differ = False  # whether ranks send different numbers of elements in the same step
    wire_dtype: str

    @abc.abstractmethod
    def create(self, spec: Spec) -> tf.Module:
        """Makes the state for one vector."""

    @abc.abstractmethod
    def count(self, size: int) -> int | None:
        """How many elements of a vector of this size are sent; None where that varies from step to step or by rank."""

    def expected(self, size: int) -> int | None:
        """About how many elements of a vector of this size are sent; None where that varies from step to step."""
        return self.count(size)

    @abc.abstractmethod
    def at_density(self, density: float) -> Compressor:
        """The same compressor with another share to be sent; its states fit both."""

    def residual(self, state: tf.Module) -> tf.Variable | None:
        """The variable [size] float32 that holds what was not sent, or None where it is dropped."""
        return None

    def waiting(self, state: tf.Module) -> tf.Tensor | None:
        """All that was not sent [size] float32, wherever it is kept; None where it is dropped."""
        kept = self.residual(state)
        return None if kept is None else kept.read_value()

    def progress(self, state: tf.Module) -> tf.Tensor | None:
        """By how much the sender is ahead of what all ranks share [size] float32; None where it never is."""
        return self.waiting(state)

    def cleared(self, state: tf.Module) -> NewValues:
        """The new values of all but the residual in which something waits, when the residual takes it up."""
        return ()

    def hold(self, parts: tf.Tensor, state: tf.Module) -> tuple[tf.Tensor, NewValues]:
        """A step without an exchange: what is to blame, as `Selection.culprit`, and the new values of the state.

        Args:
            parts: as for `compress`.
            state: what `create` returned.

        Raises:
            TypeError: where nothing can wait, as `holds` says.
        """
        raise TypeError(f"{type(self).__name__} cannot let anything wait for a later step.")

    def attend(self, parts: tf.Tensor, state: tf.Module) -> tf.Tensor:
        """Does on a rank whose shard is empty what the ranks of a node do together while the others `compress`.

        Args:
            parts: [n, 0]; the graph is not told that there is nothing.
            state: what `create` returned.

        Returns:
            [n, 0], after it: made of what came of it, so that no graph leaves it out.
        """
        return parts

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
    """A compressor around another one, `compressor`, which answers for all that this one does not change.

    The state of the one within is the attribute `inner` of this one's.
    """

    compressor: Compressor

    @property
    def wire_dtype(self) -> str:  # type: ignore[override]
        """As the compressor's."""
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
        """As the compressor's."""
        return self.compressor.counts_differ

    def residual(self, state: Any) -> tf.Variable | None:
        """As the compressor's."""
        return self.compressor.residual(state.inner)

    def waiting(self, state: Any) -> tf.Tensor | None:
        """As the compressor's."""
        return self.compressor.waiting(state.inner)

    def progress(self, state: Any) -> tf.Tensor | None:
        """As the compressor's."""
        return self.compressor.progress(state.inner)

    def cleared(self, state: Any) -> NewValues:
        """As the compressor's."""
        return self.compressor.cleared(state.inner)

    def hold(self, parts: tf.Tensor, state: Any) -> tuple[tf.Tensor, NewValues]:
        """As the compressor."""
        return self.compressor.hold(parts, state.inner)

    def attend(self, parts: tf.Tensor, state: Any) -> tf.Tensor:
        """As the compressor."""
        return self.compressor.attend(parts, state.inner)

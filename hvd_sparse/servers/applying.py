"""A Keras optimizer that runs on a server, on the pieces of variables that lie in the server's shard."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.optimizers import copies, kinds, slots
from hvd_sparse.servers.fused import lazy_step_of, step_of
from hvd_sparse.servers.gathering import EntrySum, GradientSum, Touched
from hvd_sparse.servers.pages import use_large_pages
from hvd_sparse.servers.pushing import slices
from hvd_sparse.spec import Place, Spec

_ELEMENT_WISE = (kinds.Step.ELEMENT, kinds.Step.WEIGHT)  # whatever the other elements are
PARAMETERS = "parameters"


def check(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if servers cannot run this optimizer on a part of the parameters."""
    if kinds.step_of(optimizer) not in _ELEMENT_WISE:
        raise ValueError(
            f"A server holds a part of the parameters and cannot run {type(optimizer).__name__}, which may need whole "
            f"variables: use one of {', '.join(kinds.names(*_ELEMENT_WISE))} with its original step."
        )
    if optimizer.use_ema:
        raise ValueError("Servers keep no moving average of the parameters: leave out use_ema.")
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"Each step is a separate push: instead of gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} use larger batches, or pushes_per_update of the servers."
        )


def check_lazy(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if an optimizer that `check` accepts has no lazy step."""
    if lazy_step_of(copies.served(optimizer, [])) is None:
        lazy = [name for name, kind in kinds.KINDS.items() if kind.lazy]
        raise ValueError(
            f"lazy=True supports {', '.join(lazy)}, without amsgrad, got {type(optimizer).__name__} of "
            f"{type(optimizer).__module__}: use one of these, or leave out lazy."
        )


def require_plain(variables: Sequence[Any]) -> None:
    """Raises ValueError if servers cannot hold one of these variables."""
    for variable in variables:
        if variable.dtype != "float32":
            raise ValueError(f"Servers hold float32 parameters, got {variable.path} of {variable.dtype}.")
        if variable.constraint is not None:
            raise ValueError(
                f"{variable.path} has a constraint, and no rank has all of the newest parameters to apply it to: leave "
                "it out, or use hvd.DistributedOptimizer."
            )


class _Pieces:
    """A shard of the variables, and a copy of the optimizer that runs on it; subclasses define how.

    Servers apply decoupled weight decay, to the variables that it is meant for; clients clip. The shard is one flat
    variable if the optimizer treats all of it alike, otherwise one for each run of variables that it does.

    Attributes:
        size: number of elements of the shard.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], spec: Spec):
        """Takes the clients' optimizer, the model's variables in the order of the spec's segments, and the shard."""
        self.size = spec.size
        self._rate = 0.0  # the copy's learning rate
        with tf.init_scope(), tf.device("CPU:0"):
            runs = _runs(optimizer, variables, spec)
            self._pieces = [keras.Variable(run.values, dtype="float32", name="shard") for run in runs]
            decayed = [piece for piece, run in zip(self._pieces, runs, strict=True) if run.decays]
            self._optimizer = copies.served(optimizer, decayed)
            if self._pieces:
                self._optimizer.build(self._pieces)
            self._use_large_pages()

    def vector(self) -> tf.Tensor:
        """[size] float32."""
        with tf.device("CPU:0"):
            values = [piece.value.read_value() for piece in self._pieces]
            return values[0] if len(values) == 1 else tf.concat([tf.zeros([0]), *values], 0)

    def state(self) -> dict[str, np.ndarray]:
        """The parameters and the optimizer's slots [size] by name, and its numbers [] such as the iterations."""
        vectors = {name: _joined([each.numpy() for each in held]) for name, held in self._slots().items()}
        numbers = {name: np.asarray(each.numpy()) for name, each in self._numbers().items()}
        return {PARAMETERS: self.vector().numpy(), **vectors, **numbers}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what `state` returned, for a shard of the same variables and optimizer.

        Raises:
            ValueError: if it has other slots or sizes; nothing has changed.
        """
        if not self._pieces:
            return
        vectors, numbers = {PARAMETERS: self._pieces, **self._slots()}, self._numbers()
        expected = {**{name: (self.size,) for name in vectors}, **{name: () for name in numbers}}
        shapes = {name: value.shape for name, value in state.items()}
        if shapes != expected:
            raise ValueError(f"Expected a shard's state of {expected}, got {shapes}: from another optimizer.")
        ends = np.cumsum([piece.shape[0] for piece in self._pieces])
        for name, held in vectors.items():
            for variable, part in zip(held, np.split(state[name], ends[:-1]), strict=True):
                variable.assign(part)
        for name, variable in numbers.items():
            variable.assign(state[name])
        self._use_large_pages()

    def _use_large_pages(self) -> None:
        use_large_pages(each.value for held in (self._pieces, *self._slots().values()) for each in held)

    def _set(self, rate: float) -> None:
        if rate != self._rate:  # setting it takes as long as a step on a small shard
            self._optimizer.learning_rate = self._rate = rate

    def _slots(self) -> dict[str, list[Any]]:
        """The optimizer's slots: one variable for each piece, by the name of the attribute."""
        return {name.lstrip("_"): list(held) for name, held in slots.lists(self._optimizer).items()}

    def _numbers(self) -> dict[str, Any]:
        """The optimizer's scalars that steps change, in their order: Keras may give them new names each time."""
        kept = [each for each in self._optimizer.variables if each.shape == () and each.name != "learning_rate"]
        return {f"number{place}": each for place, each in enumerate(kept)} if self._pieces else {}


class ServedPieces(_Pieces):
    """Pieces whose updates are the optimizer's own, of the whole shard."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], spec: Spec):
        super().__init__(optimizer, variables, spec)
        self._step = step_of(self._optimizer) or self._optimizer.apply

    def gathering(self) -> GradientSum:
        """Collects the sum of the gradients."""
        return GradientSum(self.size)

    def apply(self, gradient: tf.Tensor, rate: float) -> None:
        """Makes one update with a gradient [size] float32 and a learning rate."""
        if not self._pieces:
            return
        with tf.device("CPU:0"):
            self._set(rate)
            sizes = [piece.shape[0] for piece in self._pieces]
            self._step([gradient] if len(sizes) == 1 else slices(gradient, sizes), self._pieces)


class LazyPieces(_Pieces):
    """Pieces whose updates change parameters, slots and decaying weights only where the gradient is not zero."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], spec: Spec):
        super().__init__(optimizer, variables, spec)
        step = lazy_step_of(self._optimizer)
        assert step is not None, "check_lazy lets no other through"
        self._step = step

    def gathering(self) -> EntrySum:
        """Collects the sum of the gradients."""
        return EntrySum(self.size)

    def apply(self, gradient: Touched, rate: float) -> None:
        """Makes one update with the nonzero entries of a gradient, indices ascending, and a learning rate."""
        if not self._pieces:
            return
        with tf.device("CPU:0"):
            self._set(rate)
            self._step(_cut(gradient, [piece.shape[0] for piece in self._pieces]), self._pieces)


def _cut(gradient: Touched, sizes: Sequence[int]) -> list[Touched]:
    """The parts of a gradient that lie in pieces of these sizes, end to end."""
    if len(sizes) == 1:
        return [gradient]
    ends = np.cumsum(sizes)
    places = np.searchsorted(gradient.indices, ends[:-1])
    parts = zip(np.split(gradient.values, places), np.split(gradient.indices, places), ends - sizes, strict=True)
    return [Touched(values, indices - np.int32(begin)) for values, indices, begin in parts]


class _Run(NamedTuple):
    """Consecutive variables, or parts of them, whose weights either all decay or all do not."""

    decays: bool
    values: np.ndarray


def _runs(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], spec: Spec) -> list[_Run]:
    def decays(place: Place) -> bool:
        return bool(optimizer.weight_decay) and slots.decays(optimizer, variables[place.segment])

    def part(place: Place) -> np.ndarray:
        return variables[place.segment].numpy().reshape(-1)[place.start : place.start + place.size]

    grouped = itertools.groupby(spec.places, decays)
    return [_Run(alike, np.concatenate([part(place) for place in places])) for alike, places in grouped]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *parts])

"""Optimizers without slots of their own, because the exchange runs their step on shards.

Each variable whose gradient does not go through the exchange (local ones, rows) has its own optimizer, of the same
class and settings. A saved model contains all slots, as with any other optimizer: `hvd.consolidate` gathers them on
rank 0, in host memory, and those of a loaded file stay there until the exchange begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hvd_sparse.optimizers import copies, slots
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.spec import Gathered
from hvd_sparse.transport import topology

_WITHOUT = "_hvd_sparse_without_slots"
Apart: TypeAlias = "dict[int, tuple[Any, keras.optimizers.Optimizer]]"  # by the variable's `id`


class WithoutSlots:
    """Stands in for the slots of an optimizer.

    Attributes:
        gathered: the same optimizer with all slots, after `consolidate` on rank 0 or after loading; else None.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self._common = len(optimizer.variables)  # variables that every optimizer has besides its slots
        self._apart: Apart = {}
        self.gathered: keras.optimizers.Optimizer | None = None

    @property
    def variables(self) -> list[Any]:
        """The slots of the variables with their own optimizer."""
        made = (own for _, own in self._apart.values())
        return [slot for own in made for named in slots.by_name(own).values() for slot in named.values()]

    @property
    def optimizers(self) -> list[keras.optimizers.Optimizer]:
        """Those that have slots: of variables with an optimizer of their own, and the one from a file."""
        own = [each for _, each in self._apart.values()]
        return own if self.gathered is None else [*own, self.gathered]

    def of_variables(self, variables: Iterable[Any]) -> list[Any]:
        """The slots of these variables, as far as they have their own optimizer."""
        wanted = {id(resource(variable)) for variable in variables}
        own = [made for variable, made in self._apart.values() if id(resource(variable)) in wanted]
        return [slot for made in own for named in slots.by_name(made).values() for slot in named.values()]

    def apart(self, optimizer: keras.optimizers.Optimizer) -> list[str]:
        """The names of the variables with their own optimizer, in the optimizer's order."""
        return [name for number, name in slots.names(optimizer).items() if number in self._apart]

    def add(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
        """Creates an optimizer for each of these variables that does not have one, and keeps the optimizer's order."""
        new = [variable for variable in variables if id(variable) not in self._apart]
        if not new:
            return
        with tf.init_scope():
            made = {id(variable): (variable, copies.apart(optimizer, variable)) for variable in new}
            self._copy(made, to_gathered=False)
        found = {**self._apart, **made}
        self._apart = {number: found[number] for number in slots.names(optimizer) if number in found}

    def take_part(self, optimizer: keras.optimizers.Optimizer, apart: Collection[str], gathered: bool) -> list[Any]:
        """Makes what another rank has, so that its values can be broadcast.

        Args:
            optimizer: the optimizer.
            apart: the names of the variables that have their own optimizer on any rank.
            gathered: whether the other rank has all slots.

        Returns:
            The variables of `gathered`.
        """
        self.add(optimizer, [variable for name, variable in slots.variables(optimizer).items() if name in apart])
        if not gathered:
            self.gathered = None
        elif self.gathered is None:
            self.gathered = copies.whole(optimizer)
        return [] if self.gathered is None else list(self.gathered.variables)

    def step(self, optimizer: keras.optimizers.Optimizer, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Applies a gradient to a variable with its own optimizer."""
        self.add(optimizer, [variable])
        own = self._apart[id(variable)][1]
        copies.follow(own, optimizer)
        slots.step(own, gradient, variable, learning_rate)

    def gather(self, optimizer: keras.optimizers.Optimizer, gathered: Gathered) -> None:
        """Stores what `consolidate` has gathered, on rank 0."""
        self.gathered = copies.whole(optimizer)
        for attribute, held in slots.by_name(self.gathered).items():
            for name, value in gathered.get(attribute, {}).items():
                held[name].assign(value)
        self._copy(self._apart, to_gathered=True)

    def save(self, optimizer: keras.optimizers.Optimizer, store: Any, trained: bool) -> None:
        """Writes the same as an optimizer with slots."""
        if trained and self.gathered is None:
            raise RuntimeError(
                f"The slots of {type(optimizer).__name__} were gathered on rank 0, and this is rank "
                f"{topology.rank()}: save the model only on rank 0, as Horovod's scripts do."
            )
        made = self.gathered or copies.whole(optimizer)
        for own, common in zip(made.variables[: self._common], optimizer.variables, strict=False):
            own.assign(common)
        made.save_own_variables(store)

    def load(self, optimizer: keras.optimizers.Optimizer, store: Any) -> bool:
        """Reads what any optimizer of this class wrote; returns whether it did.

        It does not where the file has another number of variables, as that of an optimizer that was not built has:
        Keras warns, and nothing changes.
        """
        made = copies.whole(optimizer)
        made.load_own_variables(store)
        if not slots.fits(store, made):
            return False
        self._loaded(optimizer, made)
        return True

    def set_weights(self, optimizer: keras.optimizers.Optimizer, weights: Sequence[Any]) -> bool:
        """Gives values to the variables that the optimizer has here, or to those that it has without an exchange.

        Args:
            optimizer: the optimizer.
            weights: the values in the order of `optimizer.variables`, here or of such an optimizer.

        Returns:
            Whether the slots of variables that are exchanged are among them.

        Raises:
            ValueError: if they are as many as neither has, or a shape differs.
        """
        made, held = copies.whole(optimizer), list(optimizer.variables)
        if len(weights) == len(held) < len(made.variables):
            _assign(held, weights)
            return False
        if len(weights) != len(made.variables):
            raise ValueError(
                f"Expected the values of {len(held)} variables, as {type(optimizer).__name__} has them while the "
                f"exchange keeps its slots, or of {len(made.variables)}, with all slots, got {len(weights)}."
            )
        _assign(made.variables, weights)
        self._loaded(optimizer, made)
        return True

    def _loaded(self, optimizer: keras.optimizers.Optimizer, made: keras.optimizers.Optimizer) -> None:
        for common, own in zip(optimizer.variables, made.variables[: self._common], strict=False):
            common.assign(own)
        self.gathered = made
        self._copy(self._apart, to_gathered=False)

    def _copy(self, apart: Apart, to_gathered: bool) -> None:
        """Copies the slots of variables with their own optimizer to `gathered`, if there is one, or the reverse."""
        if self.gathered is None:
            return
        whole, names = slots.by_name(self.gathered), slots.names(self.gathered)
        for number, (_, own) in apart.items():
            for attribute, held in slots.by_name(own).items():
                (here,), there = held.values(), whole[attribute][names[number]]
                if to_gathered:
                    there.assign(here)
                else:
                    here.assign(there)


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Gives all variables values, or none if a shape differs."""
    for variable, value in zip(variables, values, strict=True):
        if tuple(variable.shape) != tuple(value.shape):
            raise ValueError(
                f"Expected a value of shape {tuple(variable.shape)} for {variable.path}, got {tuple(value.shape)}."
            )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def of(optimizer: Any) -> WithoutSlots | None:
    """The `WithoutSlots` of an optimizer; None if it has its own slots."""
    return vars(optimizer).get(_WITHOUT)


def begin(optimizer: keras.optimizers.Optimizer, local: Sequence[Any]) -> None:
    """Makes an optimizer work without slots; slots from a file are kept until the exchange begins.

    Args:
        optimizer: a built optimizer, with slots or without.
        local: variables that get their own optimizer immediately.
    """
    found = slots.by_name(optimizer)
    whole = copies.whole(optimizer) if found else None
    for attribute, held in slots.by_name(whole).items() if whole else ():
        for name, slot in held.items():
            slot.assign(found[attribute][name])
    slots.strip(optimizer)
    vars(optimizer)[_WITHOUT] = made = WithoutSlots(optimizer)
    made.gathered = whole
    made.add(optimizer, local)


def gathered_slots(optimizer: keras.optimizers.Optimizer) -> Mapping[str, Mapping[str, Any]]:
    """The slots of all variables, as far as they are known, by slot name and variable name."""
    found = of(optimizer)
    return {} if found is None or found.gathered is None else slots.by_name(found.gathered)

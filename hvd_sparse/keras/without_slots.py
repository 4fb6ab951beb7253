"""Optimizers that have no slots of their own, as the exchange runs their step on shards.

Variables whose gradients do not go through the exchange (local ones, rows) have an optimizer each, of the same class
and settings. A file of the model has all slots, as that of any other optimizer: `hvd.consolidate` gathers them on rank
0, in the memory of the host, and those of a file that is loaded stay there until the exchange begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.exchange import slots
from hvd_sparse.spec import Gathered
from hvd_sparse.transport import topology

_WITHOUT = "_hvd_sparse_without_slots"


class WithoutSlots:
    """What stands in for the slots of an optimizer.

    Attributes:
        gathered: the same optimizer with all slots, after `consolidate` on rank 0 or after loading; else None.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self._common = len(optimizer.variables)  # what every optimizer has, whatever its slots
        self._apart: dict[int, tuple[Any, keras.optimizers.Optimizer]] = {}
        self.gathered: keras.optimizers.Optimizer | None = None

    @property
    def variables(self) -> list[Any]:
        """The slots of the variables that are apart."""
        made = (own for _, own in self._apart.values())
        return [slot for own in made for named in slots.by_name(own).values() for slot in named.values()]

    def add(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
        """Makes an optimizer for each of these variables that has none."""
        for variable in variables:
            if id(variable) not in self._apart:
                with tf.init_scope():
                    self._apart[id(variable)] = (variable, slots.apart(optimizer, variable))
                    self._copy(to_gathered=False)

    def step(self, optimizer: keras.optimizers.Optimizer, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Applies a gradient to a variable that is apart."""
        self.add(optimizer, [variable])
        own = self._apart[id(variable)][1]
        slots.follow(own, optimizer)
        slots.step(own, gradient, variable, learning_rate)

    def gather(self, optimizer: keras.optimizers.Optimizer, gathered: Gathered) -> None:
        """Takes in what `consolidate` has gathered; on rank 0."""
        self.gathered = slots.whole(optimizer)
        for attribute, held in slots.by_name(self.gathered).items():
            for name, value in gathered.get(attribute, {}).items():
                held[name].assign(value)
        self._copy(to_gathered=True)

    def save(self, optimizer: keras.optimizers.Optimizer, store: Any, trained: bool) -> None:
        """Writes what an optimizer with slots would write."""
        if trained and self.gathered is None:
            raise RuntimeError(
                f"The slots of {type(optimizer).__name__} were gathered on rank 0, and this is rank "
                f"{topology.rank()}: save the model on rank 0 alone, as Horovod's scripts do."
            )
        made = self.gathered or slots.whole(optimizer)
        for own, common in zip(made.variables[: self._common], optimizer.variables, strict=False):
            own.assign(common)
        made.save_own_variables(store)

    def load(self, optimizer: keras.optimizers.Optimizer, store: Any) -> None:
        """Reads what any optimizer of this class has written."""
        made = slots.whole(optimizer)
        made.load_own_variables(store)
        self._loaded(optimizer, made)

    def set_weights(self, optimizer: keras.optimizers.Optimizer, weights: Sequence[Any]) -> None:
        """As `load`, from the values of all variables in their order."""
        made = slots.whole(optimizer)
        made.set_weights(weights)
        self._loaded(optimizer, made)

    def _loaded(self, optimizer: keras.optimizers.Optimizer, made: keras.optimizers.Optimizer) -> None:
        for common, own in zip(optimizer.variables, made.variables[: self._common], strict=False):
            common.assign(own)
        self.gathered = made
        self._copy(to_gathered=False)

    def _copy(self, to_gathered: bool) -> None:
        """Makes the slots of variables that are apart those of the whole, or the other way round; if there is one."""
        if self.gathered is None:
            return
        whole, names = slots.by_name(self.gathered), slots.names(self.gathered)
        for number, (_, own) in self._apart.items():
            for attribute, held in slots.by_name(own).items():
                (here,), there = held.values(), whole[attribute][names[number]]
                if to_gathered:
                    there.assign(here)
                else:
                    here.assign(there)


def of(optimizer: Any) -> WithoutSlots | None:
    """What stands in for an optimizer's slots; None where it has its own."""
    return vars(optimizer).get(_WITHOUT)


def begin(optimizer: keras.optimizers.Optimizer, local: Sequence[Any]) -> None:
    """Goes on without slots; what an optimizer out of a file has in them waits until the exchange begins.

    Args:
        optimizer: built, with slots or without.
        local: variables that get theirs at once.
    """
    found = slots.by_name(optimizer)
    whole = slots.whole(optimizer) if found else None
    for attribute, held in slots.by_name(whole).items() if whole else ():
        for name, slot in held.items():
            slot.assign(found[attribute][name])
    slots.strip(optimizer)
    vars(optimizer)[_WITHOUT] = made = WithoutSlots(optimizer)
    made.gathered = whole
    made.add(optimizer, local)


def gathered_slots(optimizer: keras.optimizers.Optimizer) -> Mapping[str, Mapping[str, Any]]:
    """The slots of all variables where they are known, by the name of the slot and of the variable."""
    found = of(optimizer)
    return {} if found is None or found.gathered is None else slots.by_name(found.gathered)

"""Exchanges that belong to sets of variables and live as long as these."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from hvd_sparse.exchange import state
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.optimizers.variables import resource, unique_names
from hvd_sparse.transport.communicator import Communicator

_Key: TypeAlias = tuple[str, tuple[bool, ...], tuple[int, ...]]


class _Shared(NamedTuple):
    """An exchange, and the variables that it belongs to, which it does not keep alive."""

    exchange: GradientExchange
    key: _Key
    variables: Sequence[weakref.ref[Any]]
    names: Sequence[str]

    def named(self) -> dict[int, str]:
        """The name of each living variable by its `id`."""
        pairs = ((each(), name) for each, name in zip(self.variables, self.names, strict=True))
        return {id(variable): name for variable, name in pairs if variable is not None}

    def holds_residuals(self) -> bool:
        """Whether it may hold something that was not sent; the same on all ranks."""
        return bool(self.exchange.states) and not self.exchange.aggregator.sends_all

    def has_lost(self) -> bool:
        """Whether a variable is gone, so that this exchange will not run again."""
        return any(each() is None for each in self.variables)


class SharedExchanges:
    """Finds the exchange that belongs to a set of living variables, or makes it.

    Python gives the `id` of a variable that is gone to a new one, and frees objects at different times on different
    ranks. So an exchange is forgotten when one of its variables goes: a set with a new variable gets a new exchange on
    every rank, and a living set its own. Which ranks plan an exchange, a collective, thus never depends on garbage.

    An exchange that has lost a variable may hold residuals of others. It waits for the next new exchange with the same
    options and one of these variables, which continues from it once all ranks have noticed the loss.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._shared: dict[int, _Shared] = {}  # also those that have lost a variable and wait
        self._complete: dict[_Key, int] = {}

    def of(
        self, variables: Sequence[Any], local: Sequence[bool], options: str, make: Callable[[], GradientExchange]
    ) -> GradientExchange:
        """The exchange of a set of variables, which runs no collective before its first exchange.

        Args:
            variables: in the order of their gradients.
            local: for each, whether it is local.
            options: identifies the recipe and the options; the same on all ranks.
            make: makes an exchange with these options.
        """
        key = (options, tuple(local), tuple(id(resource(variable)) for variable in variables))
        number = self._complete.get(key)
        if number is None:
            number = self._add(key, make(), variables)
        return self._shared[number].exchange

    def _add(self, key: _Key, exchange: GradientExchange, variables: Sequence[Any]) -> int:
        number = next(self._numbers)
        references = [weakref.ref(resource(each), functools.partial(self._lose, number)) for each in variables]
        for variable, is_local in zip(variables, key[1], strict=True):
            if is_local:
                exchange.register_local_var(variable)
        if not exchange.aggregator.sends_all:
            exchange.at_start(functools.partial(self._continue, number))
        self._shared[number] = _Shared(exchange, key, references, unique_names(variables))
        self._complete[key] = number
        return number

    def _continue(self, number: int, planned: PlannedExchange) -> None:
        """Lets an exchange that starts take over from those that will not run again; a collective."""
        here = self._shared[number].named()
        for before in self._lost_on_all_ranks(number, planned.grid.world):
            other = self._shared[before]
            both = {name: here[variable] for variable, name in other.named().items() if variable in here}
            state.inherit(planned, other.exchange.planned, both)
            del self._shared[before]

    def _lost_on_all_ranks(self, number: int, world: Communicator) -> list[int]:
        """The exchanges with some of the same variables that have lost others; a collective if there are any.

        All ranks have the same exchanges of a living variable, but one may not have noticed yet that another variable
        is gone.
        """
        new = self._shared[number]
        variables = set(new.named())
        related = [
            earlier
            for earlier, each in list(self._shared.items())
            if earlier != number
            and each.key[0] == new.key[0]
            and each.holds_residuals()
            and not variables.isdisjoint(each.named())
        ]
        if not related:
            return []
        told = world.gather_descriptions([self._shared[each].has_lost() for each in related], "gradients.lost")
        return [each for each, *everywhere in zip(related, *told, strict=True) if all(everywhere)]

    def _lose(self, number: int, _: weakref.ref[Any]) -> None:
        """Forgets an exchange, one of whose variables is gone, unless it holds residuals of others."""
        shared = self._shared.get(number)
        if shared is None:
            return
        if self._complete.get(shared.key) == number:
            del self._complete[shared.key]
        if not shared.holds_residuals() or not shared.named():
            del self._shared[number]

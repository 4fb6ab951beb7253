"""What an object or a class consists of: for an object what a copy would be made from, by Python's own protocols."""

from __future__ import annotations

import copyreg
import enum
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_OF_EVERY_CLASS = {"__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__module__", "__weakref__"} | {
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__orig_bases__", "__parameters__"),
    *("__slotnames__", "__slots__", "_abc_impl"),
}
_SUNDER = re.compile(r"_[a-z0-9]\w*_")  # what `enum` keeps in a class


class State(NamedTuple):
    """An object's state, all in an order that does not depend on how it came to be.

    Attributes:
        maker: the function that makes a copy, or a name if the object is the only one of that name.
        arguments: of that function.
        attributes: those that count, by name in alphabetical order.
        rest: a state of another form, and the items of a container.
    """

    maker: Any
    arguments: tuple
    attributes: dict[str, Any]
    rest: tuple


def of(value: Any) -> State:
    """The state of an object that is not a container of Python or NumPy.

    It is what `__reduce_ex__` returns, as for `copy.copy`. Attributes of a class derived from one that has a
    `__reduce__` of its own, such as `datetime`, are added, since that one leaves them out.

    Raises:
        Exception: whatever the object raises if it cannot be copied.
    """
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = reduce(value) if reduce else value.__reduce_ex__(2)
    if isinstance(reduced, str):
        return State(reduced, (), {}, ())
    maker, arguments, state, *containers = (*reduced, None, None, None)[:5]
    attributes, other = _split(state)
    attributes = {**_left_out(value, _reducer(type(value))), **attributes}
    items = (tuple(each) if each is not None else None for each in containers)
    return State(maker, tuple(arguments), counted(attributes, type(value)), (other, *items))


def attributes(value: Any) -> tuple[dict[str, Any], Any]:
    """The attributes that count of an object, in `__dict__` and `__slots__`, and a state of another form.

    If the object's class has a `__getstate__`, they are what this returns.
    """
    found, other = _split(value.__getstate__())
    return counted(found, type(value)), other


def counted(found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The attributes in alphabetical order, without those that a `functools.cached_property` has made."""
    return {name: found[name] for name in sorted(found) if not _is_cached(name, kind)}


def _is_cached(name: str, kind: type) -> bool:
    return isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)


def _split(state: Any) -> tuple[dict[str, Any], Any]:
    """A state as attributes by name, if it has that form, and otherwise as it is."""
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if any(part is not None and not _is_named(part) for part in parts):
        return {}, state
    return {name: each for part in parts if part for name, each in part.items()}, None


def _is_named(part: Any) -> bool:
    return isinstance(part, dict) and all(isinstance(name, str) for name in part)


def _reducer(kind: type) -> type:
    """The class that decides what a copy is made from; `object` if that is Python's default."""
    if kind in copyreg.dispatch_table:
        return kind
    return next(each for each in kind.__mro__ if {"__reduce__", "__reduce_ex__"} & set(vars(each)))


def _left_out(value: Any, reducer: type) -> dict[str, Any]:
    """Attributes that classes derived from the reducer add, if its own objects have none."""
    if reducer is object or reducer.__dictoffset__:
        return {}
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__[: type(value).__mro__.index(reducer)]:
        names = [name for name, each in vars(kind).items() if inspect.ismemberdescriptor(each)]
        found |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    return found


def of_class(kind: type) -> list[tuple[str, Any]]:
    """What a user's class defines, by name in alphabetical order; of an enumeration the members' values."""
    found = {name: each for name, each in vars(kind).items() if name not in _OF_EVERY_CLASS}
    if issubclass(kind, enum.Enum):
        found = {name: each for name, each in found.items() if name != "__new__" and not _SUNDER.fullmatch(name)}
        found |= {name: each.value for name, each in kind.__members__.items()}
    return sorted(found.items())

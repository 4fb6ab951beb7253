"""The names that a piece of code uses, according to its bytecode, and what it takes of them."""

from __future__ import annotations

import dis
import types
from collections import defaultdict
from collections.abc import Iterable

Chains = set[tuple[str, ...]]  # what is taken of a name: ("b", "c") for a.b.c, () for a itself

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_LOCAL = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_NOTHING = ("EXTENDED_ARG", "CACHE")


def of_globals(code: types.CodeType) -> dict[str, Chains]:
    """The global names that the code loads, without those of functions defined in it; attributes are no names."""
    return _loaded(code, _GLOBAL)


def of_locals(code: types.CodeType) -> dict[str, Chains]:
    """The local and the closed-over names that the code loads; what a function defined in it takes is ()."""
    return _loaded(code, _LOCAL)


def assigned(code: types.CodeType) -> set[str]:
    """The names outside of the code that it assigns itself, as `global` and `nonlocal` allow."""
    steps = list(dis.get_instructions(code))
    of_others = {step.argval for step in steps if step.opname == "STORE_DEREF"} & set(code.co_freevars)
    return of_others | {step.argval for step in steps if step.opname == "STORE_GLOBAL"}


def below(chains: Iterable[tuple[str, ...]]) -> dict[str, Chains]:
    """What is taken of each attribute that begins one of the chains, none of which is ()."""
    found: dict[str, Chains] = defaultdict(set)
    for first, *rest in chains:
        found[first].add(tuple(rest))
    return dict(sorted(found.items()))


def _loaded(code: types.CodeType, operations: tuple[str, ...]) -> dict[str, Chains]:
    found: dict[str, Chains] = defaultdict(set)
    name, chain = "", []
    for step in dis.get_instructions(code):  # ends with a return, so that the last chain is added, too
        if step.opname in _NOTHING:
            continue
        if name and step.opname in _ATTRIBUTE:
            chain.append(step.argval)
            continue
        if name:
            found[name].add(tuple(chain))
        name, chain = (step.argval, []) if step.opname in operations else ("", [])
    return dict(sorted(found.items()))

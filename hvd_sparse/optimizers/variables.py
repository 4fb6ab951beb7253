"""The identity of an optimizer's variables: one name for each, and how ranks tell that they pair the same ones.

Keras numbers the names of layers by what else a process has built, and one function that builds two towers gives both
the same paths. So a variable is named by its path with these numbers counted anew over the optimizer's whole list, and
equal paths are told apart by their order. All places that pair variables use these names: the exchange, slots, files,
servers, averaging and telemetry.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

SHARD = "hvd_sparse_shard"  # set on a variable of which each rank has a different part
_UNNAMED = ("variable", "Variable", "seed_generator")  # what variables and seed generators without a name are called
_NUMBERED = re.compile(r"(.+)_\d+")
_BIDIRECTIONAL = ("forward_", "backward_")  # what keras.layers.Bidirectional puts before the names of its layers


def resource(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras variable; any other variable as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def path_of(variable: Any) -> str:
    """A variable's path in its model on this rank, for messages; its name if it has none."""
    return str(getattr(variable, "path", None) or variable.name)


def unique_names(variables: Sequence[Any]) -> list[str]:
    """The name that identifies each variable, the same on all ranks that build the same model.

    A model that Keras has loaded may have other names, as it leaves the layers around out of some paths: between such
    ranks, and between such a model and a file, variables pair by their order.

    Args:
        variables: all variables of an optimizer, or of an exchange without one, in order; a part of them would be
            numbered differently.
    """
    return list(_unique_names(tuple(map(path_of, variables))))


def names_by_id(variables: Sequence[Any]) -> dict[int, str]:
    """`unique_names` by the `id` of the variable."""
    return dict(zip(map(id, variables), unique_names(variables), strict=True))


def given_names(variable: Any) -> list[str | None]:
    """The parts of a variable's path, from its own name up to its model's; None for those that Keras has chosen.

    A part that is made of such a name, as in `Dense(8, name=f"{self.name}_in")`, is without Keras's number.
    """
    bases = _chosen_by_keras()
    parts = reversed(path_of(variable).split("/"))
    return [None if _base(part) in bases else _without_numbers(part, bases) for part in parts]


def contradict(names: Sequence[str | None], others: Sequence[str | None]) -> bool:
    """Whether two variables cannot be the same, as the user gave them different names; both from `given_names`."""
    return any(None not in pair and pair[0] != pair[1] for pair in zip(names, others, strict=False))


def refuse_shards(variables: Iterable[Any]) -> None:
    """Checks that no variable whose gradient is to be exchanged is a different one on each rank.

    Raises:
        ValueError: if one is.
    """
    shards = [path_of(each) for each in variables if getattr(each, SHARD, False)]
    if shards:
        raise ValueError(
            f"Expected the gradients of {', '.join(shards)} to stay on their ranks, which hold different rows: pass "
            "the layer as local_layers=[...] to hvd.DistributedOptimizer or hvd.DistributedGradientTape."
        )


@functools.lru_cache(maxsize=256)  # an eager loop asks in every step
def _unique_names(paths: tuple[str, ...]) -> tuple[str, ...]:
    bases = _chosen_by_keras()
    renamed: dict[str, str] = {"": ""}  # each beginning of a path
    counted: dict[tuple[str, str], int] = {}  # the parts with this base below this beginning
    seen: dict[str, int] = {}  # how often a name was wanted
    taken: dict[str, None] = {}
    for path in paths:
        beginning = ""
        for part in path.split("/"):
            above, beginning = renamed[beginning], f"{beginning}/{part}"
            if beginning not in renamed:
                renamed[beginning] = f"{above}/{_renumbered(part, above, bases, counted)}"
        name = wanted = renamed[beginning][1:]
        while name in taken:
            seen[wanted] = seen.get(wanted, 1) + 1
            name = f"{wanted}#{seen[wanted]}"
        taken[name] = None
    return tuple(taken)


def _renumbered(part: str, above: str, bases: frozenset[str], counted: dict[tuple[str, str], int]) -> str:
    base = _base(part)
    if base not in bases and not any(base.removeprefix(each) in bases for each in _BIDIRECTIONAL):
        return part
    number = counted[above, base] = counted.get((above, base), -1) + 1
    return f"{base}_{number}" if number else base


def _base(part: str) -> str:
    """A part of a path without the number that Keras or TensorFlow may have added."""
    part = part.partition(":")[0]
    found = _NUMBERED.fullmatch(part)
    return found[1] if found else part


def _without_numbers(part: str, bases: frozenset[str]) -> str:
    """A part of a path without the numbers that follow a name which Keras has chosen."""
    words = part.partition(":")[0].split("_")
    kept = [
        word
        for place, word in enumerate(words)
        if not (word.isdecimal() and any("_".join(words[begin:place]) in bases for begin in range(place)))
    ]
    return "_".join(kept)


def _chosen_by_keras() -> frozenset[str]:
    """What Keras calls layers without a name, before the number; a layer's class decides it."""
    return frozenset((*_UNNAMED, *(_snake_case(cls.__name__) for cls in _subclasses(keras.layers.Layer))))


def _subclasses(cls: type) -> Iterable[type]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


@functools.cache  # each variable's first exchange asks for all classes
def _snake_case(name: str) -> str:
    """The name that Keras makes of a class's."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()

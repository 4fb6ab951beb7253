"""Faults in Python that a seed draws from all that cosmic-ray's operators can plant in the rooms' modules.

Left out are changes that give an equal program by construction, or one that differs in nothing a test should check:

- annotations, which nothing reads, and code under `if TYPE_CHECKING`;
- the text of an error, a warning or a printed line: arguments of `raise`, of warnings and of logs, and the contents of
  f-strings;
- `==` for `is` and the reverse, which differ only for objects that no test compares so; CPython creates small numbers
  and short strings once;
- decorators that forbid or remember and do not compute: `abstractmethod`, `overload`, `cache`, `lru_cache`, and the
  arguments of `dataclass`, such as `frozen`;
- pure checks: `assert`, which informs the type checker, and `strict` of `zip`;
- numbers for waiting times and indentation: results do not depend on time;
- a change after which the syntax tree is the same, or the text does not parse.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import pathlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tools.mutants import rooms
from tools.mutants.faults import Fault, between

TRIES = 200  # rounds of draws: some draws give no program, or the same one
_SPEAKS = re.compile(r"(_warn|warn|warnings\.warn|print|_log\.\w+|log\.\w+|logging\.\w+)$")
_REMEMBERS = re.compile(r"@((abc|functools|typing)\.)?(abstractmethod|(lru_)?cache|overload|final)\b|@dataclass")
_WAITS = re.compile(r"second|timeout|interval|deadline|patience|stacklevel|indent", re.IGNORECASE)


class Planting(NamedTuple):
    """One change that an operator can make to a text."""

    operator: str
    occurrence: int
    place: tuple[Any, Any]


@functools.cache
def _operators() -> dict[str, Any]:
    made = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    kinds = {name: kind for name, kind in made.items() if not kind.arguments() and not _swaps_identity(name)}
    return {name: kind() for name, kind in kinds.items()}


def _swaps_identity(name: str) -> bool:
    was, _, becomes = name.rpartition("ReplaceComparisonOperator_")[2].partition("_")
    return "ReplaceComparisonOperator" in name and (was.startswith("Is") != becomes.startswith("Is"))


def plantings(text: str) -> list[Planting]:
    """All changes that the operators can make to a module, without those left out."""
    tree = get_ast(text)
    nodes = list(ast_nodes(tree))
    found = []
    for name, operator in _operators().items():
        places = ((node, place) for node in nodes for place in operator.mutation_positions(node))
        for occurrence, (node, place) in enumerate(places):
            if not _is_left_out(node, place, name):
                found.append(Planting(name, occurrence, place))
    return found


def planted(text: str, planting: Planting) -> str | None:
    """The text with the fault in it; None if it does not parse, or is the same program."""
    changed = mutate_code(text, _operators()[planting.operator], planting.occurrence)
    try:
        same = changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
    except (SyntaxError, ValueError):
        return None
    return None if same else changed


def draw(root: pathlib.Path, seed: int, count: int, patterns: Sequence[str] = ("*",)) -> list[Fault]:
    """`count` faults, from each room in turn; the faults of a smaller count are the first of a larger one.

    Args:
        root: of the repository.
        seed: of the draw.
        count: of the faults.
        patterns: of the modules to draw from, as `hvd_sparse/keras/*`.
    """
    drawn = random.Random(f"mutants {seed}")
    modules = {name: _matching(rooms.modules(root, room), patterns) for name, room in rooms.ROOMS.items()}
    names = [name for name, paths in modules.items() if paths]
    faults: dict[str, Fault] = {}
    for _ in range(TRIES):
        drawn.shuffle(names)
        for name in names:
            if len(faults) == count:
                return list(faults.values())
            fault = _draw_one(root, name, modules[name], drawn)
            if fault is not None:
                faults.setdefault(fault.key, fault)
    raise ValueError(f"The modules have fewer than {count} places for faults: draw fewer.")


def _matching(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [path for path in paths if any(fnmatch.fnmatch(path, pattern) for pattern in patterns)]


def _draw_one(root: pathlib.Path, room: str, paths: Sequence[str], drawn: random.Random) -> Fault | None:
    """A random file weighted by length, a place in it, and a change there; None if that gives no fault."""
    texts = [_text(root / path) for path in paths]
    path, text = drawn.choices(list(zip(paths, texts, strict=True)), [len(text) for text in texts])[0]
    choices = _by_place(text)
    if not choices:
        return None
    planting = drawn.choice(choices[drawn.choice(list(choices))])
    changed = planted(text, planting)
    if changed is None:
        return None
    operator = planting.operator.partition("/")[2]
    return between(f"{path}:{planting.place[0][0]} {operator}", room, path, text, changed)


@functools.cache
def _text(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf8")


@functools.cache
def _by_place(text: str) -> dict[tuple[Any, Any], list[Planting]]:
    found: dict[tuple[Any, Any], list[Planting]] = {}
    for planting in plantings(text):
        found.setdefault(planting.place, []).append(planting)
    return found


# ---- what is left out ----


def _is_left_out(node: Any, place: tuple[Any, Any], operator: str) -> bool:
    if operator.endswith("RemoveDecorator") and _REMEMBERS.match(node.get_code().strip()):
        return True
    own = [node, *_above(node)]
    if any(_is_unread(each, below, place) for each, below in zip(own, [None, *own], strict=False)):
        return True
    return operator.endswith("NumberReplacer") and any(_WAITS.search(words) for words in _words_of_number(node))


def _above(node: Any) -> Iterator[Any]:
    while node.parent is not None:
        node = node.parent
        yield node


def _is_unread(node: Any, below: Any, place: tuple[Any, Any]) -> bool:
    """Whether nothing reads the contents of a node, or of its child `below`."""
    if node.type in ("raise_stmt", "assert_stmt", "fstring"):
        return True
    if node.type == "argument":
        return node.children[0].get_code().strip() == "strict"
    if node.type in ("annassign", "tfpdef"):  # `: annotation = value`, `name: annotation`
        return below is not None and below is (node.children[1] if node.type == "annassign" else node.children[2])
    if node.type == "funcdef":
        return node.annotation is not None and node.annotation.start_pos <= place[0] < node.annotation.end_pos
    if node.type == "decorator":
        return bool(_REMEMBERS.match(node.get_code().strip().replace("@dataclasses.", "@")))
    if node.type == "if_stmt":
        return "TYPE_CHECKING" in node.children[1].get_code()
    if node.type in ("atom_expr", "power") and below is not None and below is not node.children[0]:
        return bool(_SPEAKS.match("".join(child.get_code() for child in node.children[:-1]).strip()))
    return False


def _words_of_number(node: Any) -> Iterator[str]:
    """The words about a number: the name of its variable, argument or parameter, and the comment."""
    for above in _above(node):
        if above.type in ("expr_stmt", "argument", "param"):
            yield above.children[0].get_code()
        if above.type == "expr_stmt":
            yield above.get_next_leaf().prefix

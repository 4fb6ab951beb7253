"""The register of multi-rank cases; `run.py` explains how to write one."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests import shares

RANKS = (1, 2, 3, 4, 6)
LIMIT = 300.0  # seconds per case: far more than any needs, even with more ranks than cores and other tests running
TRAINING = (
    "averaging",
    "horovod",
    "keras",
    "lars",
    "pipeline",
    "servers",
    "sync",
)  # prefixes of the suites that train models
# Prefixes of suites whose thorough cases share a launch, so that none takes much longer than others.
TOGETHER = {"roles": ("averaging", "pipeline", "servers"), "models": ("grid", "horovod", "keras", "lars", "sync")}


@dataclasses.dataclass(frozen=True)
class Launch:
    """How to start the ranks of a case that cannot share a launch with other cases.

    Attributes:
        hosts: the argument of `horovodrun -H`; Horovod takes "localhost" and "127.0.0.1" for two hosts; both are local.
        names: "network" or "loopback": starts the ranks on two hosts made of network namespaces. Each host's own name
            resolves to its address on the network or, as Debian configures it, to 127.0.1.1.
        dies: the ranks that are expected to end without recording an outcome.
        ended: ranks that the launcher may have to kill; at least one of them must end by itself. Horovod 0.28.1 checks
            for shutdown before it queues an operation, not while queuing; one queued in between is never answered.
    """

    hosts: str | None = None
    names: str | None = None
    dies: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """A function that every one of `ranks` ranks calls.

    Attributes:
        name: suite, function and arguments; unique for each number of ranks.
        ranks: the number of ranks P.
        run: takes no arguments; the case passes if it returns.
        limit: seconds after which the case counts as a hang.
        launch: None if the case runs on ranks that are already initialised and shared with other cases.
        arguments: the arguments of the function.
        quick: whether the case is in the quick tier; otherwise only in the thorough one.
    """

    name: str
    ranks: int
    run: Callable[[], None]
    limit: float
    launch: Launch | None
    arguments: Mapping[str, Any]
    quick: bool

    @property
    def group(self) -> str:
        """The launch it belongs to: its own, or one of its tier and number of ranks."""
        if self.launch is not None:
            return f"{self.ranks} ranks, {self.name}"
        if self.quick:
            return f"{self.ranks} ranks, quick"
        kind = next((kind for kind, suites in TOGETHER.items() if self.name.startswith(suites)), "others")
        return f"{self.ranks} ranks, thorough, {kind}"


_shares = shares.Shares()
_registered: dict[tuple[int, str], Case] = {}


def case(
    ranks: Sequence[int] = RANKS,
    over: Callable[[int], Iterable[dict[str, Any]]] = lambda ranks: [{}],
    limit: float = LIMIT,
    launch: Launch | None = None,
    quick: Callable[..., bool] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as a case for each number of ranks and each set of arguments.

    Args:
        ranks: the numbers of ranks P to run it with.
        over: returns, for P ranks, the keyword arguments of each case.
        limit: time limit of one case in seconds.
        launch: see `Launch`.
        quick: called with `ranks` and the arguments of each case, returns whether the case is in the quick tier; all
            others are in the thorough tier. By default, cases on 4 ranks are quick, or on 2 ranks in suites that train
            models, or on the first of `ranks` if that number is not among them. Pass `thorough` if none is quick. Of
            the functions that `shares` lists, a part of these is quick.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        suite = function.__module__.rpartition("cases_")[2]
        usual = 2 if suite.startswith(TRAINING) else 4
        usual = usual if usual in ranks else ranks[0]
        for count in ranks:
            for arguments in over(count):
                listed = ",".join(f"{key}={value}" for key, value in arguments.items())
                name = f"{suite}.{function.__name__}" + (f"[{listed}]" if listed else "")
                if (count, name) in _registered:
                    raise ValueError(f"Two cases for {count} ranks are called {name}: give each a name of its own.")
                is_quick = count == usual if quick is None else quick(ranks=count, **arguments)
                is_quick = is_quick and _shares.is_quick(f"{suite}.{function.__name__}")
                run = _bind(function, arguments)
                _registered[count, name] = Case(name, count, run, limit, launch, arguments, is_quick)
        return function

    return register


def thorough(**arguments: Any) -> bool:
    """Pass this as `quick` if no case belongs to the quick tier."""
    return False


def _bind(function: Callable[..., None], arguments: dict[str, Any]) -> Callable[[], None]:
    return lambda: function(**arguments)


def suites() -> list[str]:
    """The names of all suites: the files `cases_*.py` in this folder, except those that are meant to fail."""
    found = {path.stem.removeprefix("cases_") for path in pathlib.Path(__file__).parent.glob("cases_*.py")}
    return sorted(found - {"broken"})


def load(names: Sequence[str]) -> list[Case]:
    """Imports suites and returns their cases in order of definition."""
    for name in names:
        importlib.import_module(f"tests.parallel.cases_{name}")
    return [case for case in _registered.values() if case.name.partition(".")[0] in names]

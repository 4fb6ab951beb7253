"""The register of multi-rank cases; `run.py` tells how to write one."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

RANKS = (1, 2, 3, 4, 6)
LIMIT = 300.0  # seconds of a case: far more than any takes, with more ranks than cores and others' tests beside
TRAINING = (
    "averaging",
    "horovod",
    "keras",
    "lars",
    "pipeline",
    "servers",
    "sync",
)  # how names of suites begin that train


@dataclasses.dataclass(frozen=True)
class Launch:
    """How the ranks of a case are started that cannot share a launch with others.

    Attributes:
        hosts: what `horovodrun -H` gets; "localhost" and "127.0.0.1" are two hosts to Horovod, and both are here.
        names: "network" or "loopback": starts the ranks on two hosts made of network namespaces, whose own name
            resolves to the address on the network or, as Debian writes it, to 127.0.1.1.
        dies: the ranks that are meant to end without a word.
        ended: the ranks of which the launcher may have to end some, but not all. Horovod 0.28.1 looks whether it has
            been shut down before it queues an operation, not while; one that is queued in between is never answered.
    """

    hosts: str | None = None
    names: str | None = None
    dies: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """One function that every one of `ranks` ranks calls.

    Attributes:
        name: suite, function and arguments; unique for a number of ranks.
        ranks: the number of ranks P.
        run: called without arguments; passes by returning.
        limit: seconds after which the case is a hang.
        launch: None where the case shares its ranks, started and initialised, with other cases.
        arguments: what the function is called with.
        quick: whether the quick tier of tests has it, or only the thorough one.
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
        """What it is run with: alone, or in one launch with the cases of its tier on as many ranks."""
        if self.launch is not None:
            return f"{self.ranks} ranks, {self.name}"
        return f"{self.ranks} ranks, {'quick' if self.quick else 'thorough'}"


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
        over: gives for P the keyword arguments of each case.
        limit: seconds that one case may take.
        launch: see `Launch`.
        quick: called with `ranks` and the arguments of each case: whether it is in the quick tier; all others are in
            the thorough one. The default is those on 4 ranks, but in suites that train models those on 2; where a case
            is not run on so many, those on the first of its numbers. `thorough` is what none of is quick.
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
                run = _bind(function, arguments)
                _registered[count, name] = Case(name, count, run, limit, launch, arguments, is_quick)
        return function

    return register


def thorough(**arguments: Any) -> bool:
    """What to give as `quick` where the quick tier has none of the cases."""
    return False


def _bind(function: Callable[..., None], arguments: dict[str, Any]) -> Callable[[], None]:
    return lambda: function(**arguments)


def suites() -> list[str]:
    """The names of all suites: the files `cases_*.py` beside this one, but for those that are meant to fail."""
    found = {path.stem.removeprefix("cases_") for path in pathlib.Path(__file__).parent.glob("cases_*.py")}
    return sorted(found - {"broken"})


def load(names: Sequence[str]) -> list[Case]:
    """Imports suites and returns their cases, in the order in which they stand."""
    for name in names:
        importlib.import_module(f"tests.parallel.cases_{name}")
    return [case for case in _registered.values() if case.name.partition(".")[0] in names]

"""Residuals on disk: they survive a restart, another recipe, other buckets and another number of ranks.

Keras saves variables of the model and of the optimizer, which are the same on every rank. Residuals are not, and are
saved here, in two parts:

- PATH, written by rank 0: for each variable, the sum of the residuals of all ranks. It fits any recipe, buckets and
  number of ranks P'; scaled by P' / P, each rank gets an equal share. `CheckpointCallback` adds the means of variables
  that differ between ranks, such as moving statistics.
- PATH.rank3of8, written by every rank: its own exact state. It is used if nothing has changed, so that training
  continues as if it had not stopped; if one is missing or damaged, all ranks use PATH, and a warning says so.

Both are archives that numpy.load(path, allow_pickle=False) can read and whose every byte is checked: see
`hvd_sparse/storage/archives.py`. They get their names when they are complete and on the disk.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.state import RankState, ResidualSum
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.storage import archives, files
from hvd_sparse.storage.archives import read, write
from hvd_sparse.transport import first_rank, topology

__all__ = ["read", "restore", "save", "write"]
Path = str | os.PathLike
_OWN = "own "  # prefix of the names of variables that differ between ranks
_MEAN = "mean "  # prefix of the names of their means
_VELOCITY = "velocity "  # prefix of the names of variables with a velocity of the outer step
WITHOUT_OWN = (
    "All ranks share the residuals equally; moving statistics and sums of gradients are means over the ranks that "
    "saved; other state of those ranks, such as random seeds, states of stateful RNN layers and local variables, "
    "starts afresh."
)


class OwnState(NamedTuple):
    """Variables that differ between ranks.

    Attributes:
        variables: by names that are alike on all ranks.
        alike: names of variables that are left out of a file, as they are equal on all ranks.
        means: of those that have one, by name, the same on every rank.
        numbered: variables of files that give them numbers in place of names.
    """

    variables: Mapping[str, Any] = {}
    alike: Sequence[str] = ()
    means: Mapping[str, np.ndarray] = {}
    numbered: Sequence[Any] = ()


def save(path: Path, of: Any, exact: bool = True, own_variables: Sequence[Any] | OwnState = ()) -> dict[str, str]:
    """Saves the residuals; a collective that every rank calls at the same step.

    Args:
        path: the file, ending in .npz; the same on every rank.
        of: a distributed optimizer or a `GradientExchange`.
        exact: also save each rank's own state, one file per rank.
        own_variables: variables that differ between ranks, to be saved with it.

    Returns:
        The SHA-256 of each file that this rank wrote, by file name.

    Raises:
        OSError: on every rank, if any rank cannot write; the message names the rank.
        RuntimeError: before the first exchange.
    """
    exchange = _exchange_of(of)
    world = topology.world()
    total = exchange.residual_sum()
    own_state = _as_state(own_variables)
    manifest, arrays = _written(total, world.size, exact, own_state)
    # Rank 0's digest, as rank 0 writes the file; other ranks may have other names for the same variables.
    digest, *_ = world.gather_descriptions(archives.digest(manifest, arrays), "checkpoint.digest")
    written, problem = {}, None
    try:
        if world.rank == 0:
            written[pathlib.Path(path).name] = write(path, manifest, arrays)
        if exact:
            own = _written_own(exchange.rank_state(), digest, own_state)
            written[own_path(path).name] = write(own_path(path), *own)
    except Exception as error:  # reported below, as the other ranks wait for the outcome
        problem = f"{type(error).__name__}: {error}"
    raise_together(problem, "write the residuals")
    return written


def restore(path: Path, of: Any, own_variables: Sequence[Any] = ()) -> bool | None:
    """Restores what `save` saved; a collective. Only rank 0 reads PATH.

    If any rank's own state is not available, rank 0 warns, and all ranks continue from the sums.

    Args:
        path: as for `save`.
        of: a distributed optimizer or a `GradientExchange`, before or after its first exchange.
        own_variables: as for `save`; they are restored only if this rank's own file is available.

    Returns:
        Whether training continues bit for bit; None before the first exchange, when that is not known yet.

    Raises:
        OSError: on every rank, if PATH cannot be read or is damaged.
        ValueError: if its variables are not those of the optimizer.
    """
    taken = take_up(path, of, own_variables)
    if taken.lacking:
        first_rank.warn(f"Not every rank has its own state from {path}: {'; '.join(taken.lacking)}. {WITHOUT_OWN}")
    return taken.goes_on


class TakenUp(NamedTuple):
    """The outcome of restoring.

    Attributes:
        goes_on: the return value of `restore`.
        own: whether this rank's own variables have their values.
        named: whether this rank's own file names its variables; earlier versions gave them numbers.
        means: what PATH has for ranks that lack their own, by name.
        lacking: for each rank whose own state was expected but is not available, why; the same on every rank.
    """

    goes_on: bool | None
    own: bool
    named: bool
    means: dict[str, np.ndarray]
    lacking: list[str]


def take_up(path: Path, of: Any, own_variables: Sequence[Any] | OwnState = (), use_own: bool = True) -> TakenUp:
    """Like `restore`, but returns what to warn about instead of warning.

    Args:
        path: as for `restore`.
        of: as for `restore`.
        own_variables: as for `restore`.
        use_own: whether this rank's own file may be used.
    """
    exchange = _exchange_of(of)
    world = topology.world()
    manifest, arrays = _read_together(path)
    beside = archives.digest(manifest, arrays)
    found = _read_own(own_path(path), beside, _as_state(own_variables)) if use_own else _Found()
    # Each rank that saved has its own file, unless `exact` was False.
    expected = manifest["ranks"] == world.size and manifest["exact"]
    lacking = collect(found.problem if expected else None, "checkpoint.own")
    for variable, value in found.values:
        variable.assign(value)
    scale = world.size / manifest["ranks"]
    shapes = {name: tuple(shape) for name, shape in manifest["variables"]}
    residuals = {name: arrays[name] * np.float32(scale) for name in shapes if name in arrays}
    velocities = {name: arrays[f"{_VELOCITY}{name}"] for name in shapes if f"{_VELOCITY}{name}" in arrays}
    total = ResidualSum(shapes, residuals, manifest["step"], manifest["counters"], manifest["unit"], velocities)
    means = {name.removeprefix(_MEAN): each for name, each in arrays.items() if name.startswith(_MEAN)}
    goes_on = exchange.restore(total, found.own)
    return TakenUp(goes_on, found.own is not None, found.named, means, lacking)


def own_path(path: Path) -> pathlib.Path:
    """The path of this rank's own state."""
    world = topology.world()
    return files.of_rank(path, world.rank, world.size)


def _exchange_of(of: Any) -> GradientExchange:
    exchange = of if isinstance(of, GradientExchange) else exchange_of(of)
    if exchange is None:
        raise TypeError(f"Expected a distributed optimizer or a GradientExchange, got {type(of).__name__}.")
    return exchange


def _as_state(own_variables: Sequence[Any] | OwnState) -> OwnState:
    return own_variables if isinstance(own_variables, OwnState) else OwnState(numbered=list(own_variables))


def _written(
    total: ResidualSum, ranks: int, exact: bool, own: OwnState
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest = {
        "format": archives.FORMAT,
        "ranks": ranks,
        "exact": exact,
        "step": total.step,
        "counters": total.counters,
        "unit": total.unit,
        "variables": [[name, list(shape)] for name, shape in total.shapes.items()],
    }
    means = {f"{_MEAN}{name}": mean for name, mean in own.means.items()}
    if means:
        manifest["means"] = [[name, list(mean.shape), mean.dtype.str] for name, mean in means.items()]
    velocities = {f"{_VELOCITY}{name}": velocity for name, velocity in total.velocities.items()}
    return manifest, {**total.residuals, **velocities, **means}


def _written_own(own: RankState, beside: str, state: OwnState) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest: dict[str, Any] = {"format": archives.FORMAT, "beside": beside, "account": own.account}
    written = {str(number): each for number, each in enumerate(state.numbered)}
    if not state.numbered:
        manifest["alike"] = list(state.alike)
        written = dict(state.variables)
    return manifest, {**own.values, **{f"{_OWN}{name}": plain(variable) for name, variable in written.items()}}


def plain(variable: Any) -> np.ndarray:
    """A variable's value in a dtype that NumPy can store."""
    return storable(tf.convert_to_tensor(variable).numpy())


def storable(value: np.ndarray) -> np.ndarray:
    """A value in a dtype that NumPy can store: those that it does not know as float32, which holds them."""
    return value.astype(np.float32) if value.dtype.kind == "V" else value


class _Found(NamedTuple):
    """A rank's own state and the values of its variables, or why there is none."""

    own: RankState | None = None
    values: Sequence[tuple[Any, np.ndarray]] = ()
    problem: str | None = None
    named: bool = True


def _read_own(path: pathlib.Path, beside: str, state: OwnState) -> _Found:
    """This rank's own state, if it exists, is intact, and belongs to the archive of all ranks."""
    if not path.exists():
        return _Found(problem=f"{path} is missing")
    try:
        manifest, arrays = archives.read(path)
    except OSError as error:
        return _Found(problem=str(error))
    if manifest.get("beside") != beside:
        return _Found(problem=f"{path} belongs to another checkpoint")
    saved = {name.removeprefix(_OWN): arrays.pop(name) for name in list(arrays) if name.startswith(_OWN)}
    named = "alike" in manifest
    expected = state.variables if named else {str(number): each for number, each in enumerate(state.numbered)}
    fits = {*saved, *manifest.get("alike", ())} == set(expected)
    if not fits or any(tuple(expected[name].shape) != value.shape for name, value in saved.items()):
        return _Found(problem=f"{path} has local variables of other shapes than the model here")
    values = [(expected[name], value) for name, value in saved.items()]
    return _Found(RankState(manifest["account"], arrays), values, named=named)


def _read_together(path: Path) -> archives.Archive:
    """Returns on every rank what rank 0 reads."""
    world = topology.world()
    manifest: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    problem = None
    if world.rank == 0:
        try:
            manifest, arrays = archives.read(path)
            if "variables" not in manifest:
                problem = f"{path} holds the state of one rank, not the residuals of all of them."
        except OSError as error:
            problem = str(error)
    raise_together(problem, "read the residuals")
    manifest, names = world.gather_descriptions([manifest, list(arrays)], "checkpoint.manifest")[0]
    shapes = {name: (shape, "f4") for name, shape in manifest["variables"]}
    shapes |= {f"{_VELOCITY}{name}": of_variable for name, of_variable in shapes.items()}
    shapes |= {name: (shape, dtype) for name, shape, dtype in manifest.get("means", ())}
    for name in names:
        value = tf.constant(arrays.get(name, np.zeros(*shapes[name])))
        arrays[name] = world.broadcast(value, 0, "checkpoint.residual").numpy()
    return archives.Archive(manifest, arrays)


def collect(problem: str | None, name: str) -> list[str]:
    """The problems of all ranks, each naming its rank; a collective."""
    problems = topology.world().gather_descriptions(problem, name)
    return [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]


def raise_together(problem: str | None, verb: str, kind: type[Exception] = OSError) -> None:
    """Raises an error on every rank if any of them has a problem; a collective."""
    faulty = collect(problem, "checkpoint.problems")
    if faulty:
        raise kind(f"Could not {verb}. {'; '.join(faulty)}")
